//! Whatever a peer does wrong has its own error, closes every descriptor that arrived, and leaves the next connection
//! working.

mod named_memory;
mod own_process;
mod raw_send;

use kvshare::fd::{FdError, Kind};
use kvshare::wire::{Limits, Message, WireError, receive, send};
use named_memory::memfd;
use own_process::in_a_process_of_its_own;
use raw_send::send_raw;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { max_header: 1000, max_descriptors: 300 };

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn at_once() -> Instant {
    Instant::now() + Duration::from_millis(5)
}

/// How many descriptors this process has open on memfds of this name.
fn open_descriptors(name: &str) -> usize {
    let link = std::path::PathBuf::from(format!("/memfd:{name} (deleted)"));
    std::fs::read_dir("/proc/self/fd")
        .expect("/proc is mounted")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| *target == link)
        .count()
}

/// What `receive` makes of a peer that does `misbehave` with three descriptors named `name`; afterwards none of them is
/// left, and a good message still crosses.
fn outcome(
    name: &str,
    deadline: fn() -> Instant,
    misbehave: impl FnOnce(UnixStream, &[BorrowedFd<'_>]) -> Option<UnixStream>,
) -> WireError {
    let memory = memfd(name);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let kept_open = misbehave(ours, &[memory.as_fd(); 3]);
    let error = receive(&theirs, &LIMITS, deadline()).expect_err("a fault is an error");
    drop((kept_open, theirs));
    assert_eq!(open_descriptors(name), 1, "after {error:?}");

    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&ours, b"{}", &[memory.as_fd()], soon()).unwrap();
    assert_eq!(receive(&theirs, &LIMITS, soon()).unwrap().descriptors.len(), 1, "after {error:?}");
    error
}

const MESSAGE: &[u8] = b"\x0d\0\0\0{\"version\":1}";

#[test]
fn a_peer_that_dies_after_any_byte_is_reported_with_how_far_it_came() {
    for sent in 0..MESSAGE.len() {
        let error = outcome("dies", soon, |socket, descriptors| {
            if sent > 0 {
                send_raw(&socket, &MESSAGE[..sent], descriptors);
            }
            None
        });
        match error {
            WireError::ClosedBeforeMessage => assert_eq!(sent, 0),
            WireError::ClosedWithinMessage { done, expected } => {
                assert_eq!((done, expected), (sent, if sent < 4 { 4 } else { MESSAGE.len() }));
            }
            other => panic!("after {sent} bytes: {other:?}"),
        }
    }
}

#[test]
fn a_peer_that_stalls_after_any_byte_is_given_up_at_the_deadline() {
    for sent in 0..MESSAGE.len() {
        let error = outcome("stalls", at_once, |socket, descriptors| {
            if sent > 0 {
                send_raw(&socket, &MESSAGE[..sent], descriptors);
            }
            Some(socket)
        });
        let all = if sent < 4 { 4 } else { MESSAGE.len() };
        assert!(matches!(error, WireError::Stalled { done, expected } if (done, expected) == (sent, all)), "{error:?}");
    }
}

#[test]
fn a_length_of_nothing_or_too_much_is_refused_before_the_header_is_read() {
    let cases: [(u32, &str); 4] = [
        (0, "EmptyHeader"),
        (1001, "HeaderTooLong { announced: 1001, limit: 1000 }"),
        (0x7b0a_0d22, "HeaderTooLong { announced: 2064256290, limit: 1000 }"),
        (u32::MAX, "HeaderTooLong { announced: 4294967295, limit: 1000 }"),
    ];
    for (length, expected) in cases {
        let error = outcome("length", soon, |socket, descriptors| {
            send_raw(&socket, &length.to_le_bytes(), descriptors);
            Some(socket)
        });
        assert_eq!(format!("{error:?}"), expected);
    }
}

#[test]
fn more_descriptors_than_the_limit_are_refused_and_closed() {
    let error = outcome("too many", soon, |socket, descriptors| {
        send(&socket, b"{\"version\":1}", &[descriptors[0]; 301], soon()).unwrap();
        Some(socket)
    });
    assert!(matches!(error, WireError::TooManyDescriptors { received: 301, limit: 300 }), "{error:?}");
}

#[test]
fn a_descriptor_that_is_never_memory_is_refused_by_name() {
    let (pipe, _write_end) = std::io::pipe().unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let never_memory: [(Kind, OwnedFd); 4] = [
        (Kind::Socket, socket.into()),
        (Kind::Pipe, pipe.into()),
        (Kind::Directory, File::open("/").unwrap().into()),
        (Kind::PathOnly, open("/dev/zero", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()),
    ];
    for (kind, descriptor) in never_memory {
        let error = outcome("never memory", soon, |socket, descriptors| {
            send(&socket, b"{}", &[descriptors[0], descriptor.as_fd()], soon()).unwrap();
            Some(socket)
        });
        match &error {
            WireError::NotARegion { index: 1, source: FdError::NotARegion { kind: refused } } => {
                assert_eq!(*refused, kind);
            }
            other => panic!("{kind}: {other:?}"),
        }
        assert!(error.to_string().starts_with(&format!("descriptor 1 of a message: a {kind} cannot be a region")));
    }
}

/// Lowers this process's limit so that `free` more descriptors fit, and returns it.
fn leave_room_for(free: usize) -> u64 {
    let is_open = |number: u64| std::fs::exists(format!("/proc/self/fd/{number}")).unwrap();
    let last = (0..).filter(|&number| !is_open(number)).nth(free).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(last), ..getrlimit(Resource::Nofile) }).unwrap();
    last
}

fn header_of(regions: usize) -> String {
    let regions: Vec<String> = (0..regions).map(|index| format!("{{\"fd\":{index},\"size\":4096}}")).collect();
    format!("{{\"regions\":[{}]}}", regions.join(","))
}

#[test]
fn descriptors_lost_to_a_full_table_are_counted_and_those_that_came_are_closed() {
    in_a_process_of_its_own("descriptors_lost_to_a_full_table_are_counted_and_those_that_came_are_closed", &[], || {
        let memory = memfd("lost");
        // Header, descriptors sent, announced, received: one batch, two, texts that say nothing, and what just fits.
        let cases = [
            (header_of(40), 40, Some(40), 7),
            (header_of(260), 260, Some(260), 14),
            ("not JSON".to_owned(), 8, None, 7),
            ("{\"regions\":[{\"fd\":0},{\"fd\":0},{\"fd\":1}]}".to_owned(), 9, Some(2), 7),
        ];
        let send_over_a_new_socket = |header: &str, count| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send(&ours, header.as_bytes(), &vec![memory.as_fd(); count], soon()).unwrap();
            (ours, theirs)
        };
        let sockets = cases.each_ref().map(|(header, sent, ..)| send_over_a_new_socket(header, *sent));
        let (_ours, just_fits) = send_over_a_new_socket("{}", 7);
        let limit = leave_room_for(7);
        for ((_, theirs), (_, _, announces, came)) in sockets.iter().zip(cases) {
            let error = receive(theirs, &Limits::default(), soon()).unwrap_err();
            match error {
                WireError::DescriptorsLost { announced, received, limit: told } => {
                    assert_eq!((announced, received, told), (announces, came, Some(limit)));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(open_descriptors("lost"), 1);
        }

        let Message { descriptors, .. } = receive(&just_fits, &LIMITS, soon()).expect("as many as fit still cross");
        assert_eq!(descriptors.len(), 7);
    });
}

#[test]
fn a_peer_that_loses_descriptors_and_then_dies_or_stalls_is_reported_as_loss() {
    in_a_process_of_its_own("a_peer_that_loses_descriptors_and_then_dies_or_stalls_is_reported_as_loss", &[], || {
        let memory = memfd("lost half way");
        for dies in [true, false] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send_raw(&ours, &MESSAGE[..9], &[memory.as_fd(); 20]);
            leave_room_for(4);
            let kept_open = if dies { None } else { Some(ours) };
            let error = receive(&theirs, &LIMITS, at_once()).unwrap_err();
            assert!(matches!(error, WireError::DescriptorsLost { announced: None, received: 4, .. }), "{error:?}");
            drop(kept_open);
            assert_eq!(open_descriptors("lost half way"), 1);
        }
    });
}

#[test]
fn too_many_descriptors_on_their_way_are_an_error_of_their_own() {
    in_a_process_of_its_own("too_many_descriptors_on_their_way_are_an_error_of_their_own", &[], || {
        // Root is exempt from this limit (unix(7), ETOOMANYREFS).
        if nix::unistd::geteuid().is_root() {
            nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).unwrap();
        }
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) }).unwrap();
        let memory = memfd("in flight");
        let (ours, _theirs) = UnixStream::pair().unwrap();
        send(&ours, b"{}", &[memory.as_fd(); 70], soon())
            .expect("the limit is checked against what is on its way already");
        let error = send(&ours, b"{}", &[memory.as_fd(); 1], soon()).unwrap_err();
        assert!(matches!(error, WireError::TooManyInFlight { descriptors: 1 }), "{error:?}");
    });
}

#[test]
fn sending_to_a_peer_that_is_gone_is_an_error_and_no_signal() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = send(&ours, b"{}", &[memfd("nobody there").as_fd()], soon()).unwrap_err();
    assert!(matches!(error, WireError::ClosedWithinMessage { done: 0, expected: 6 }), "{error:?}");
    assert_eq!(open_descriptors("nobody there"), 0);
}

#[test]
fn sending_to_a_peer_that_does_not_read_ends_at_the_deadline() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let header = vec![b' '; 16 << 20];
    let error = send(&ours, &header, &[], at_once()).unwrap_err();
    assert!(matches!(error, WireError::Stalled { done, expected } if done > 0 && done < expected), "{error:?}");
}

#[test]
fn what_cannot_be_a_message_is_not_sent() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let memory = memfd("not sent");
    assert!(matches!(send(&ours, b"", &[], soon()), Err(WireError::EmptyHeader)));
    let too_many = vec![memory.as_fd(); 6 * 253 + 1];
    let error = send(&ours, b"{}", &too_many, soon()).unwrap_err();
    assert!(matches!(error, WireError::TooFewBytes { descriptors: 1519, bytes: 6 }), "{error:?}");
    let nothing = std::io::Read::read(&mut &theirs, &mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}
