//! What others were hurt by at a socket, done to the proxy's socket: each peer gets an error that says what it did, every
//! descriptor that it sent is closed, and the next share arrives.
//!
//! | what hurt others | tested as |
//! | --- | --- |
//! | truncation of descriptors never looked at; a full table taken for a small buffer; one dropped by a security module | `descriptors_lost_to_a_full_table_are_counted_and_those_that_came_are_closed` (kvshare) |
//! | one descriptor more than expected | row "one more" |
//! | descriptors on a message that declares none | row "none declared" |
//! | too many descriptors queued | row "five thousand" |
//! | half a message held for ever | rows "half a length", "half a header" |
//! | sockets in flight | row "a socket" |
//! | a plain read that takes the next message's bytes | `a_receiver_takes_its_message_and_not_a_byte_more` |
//! | a batch without a byte is dropped | row "no byte" |
//! | 254 in one call | `python_receives_three_batches` (kvshare) |
//! | too many in flight | `too_many_descriptors_on_their_way_are_an_error_of_their_own` (kvshare) |
//! | leaks on error paths | all rows |
//! | no close-on-exec | `a_message_in_single_bytes_arrives_whole_and_closes_on_exec` |
//! | short writes | the same |
//! | descriptor numbers believed | row "a number" |
//! | memory for an announced length | row "four GiB" |
//! | a repeated key, nesting, an overlap, a sum that wraps | rows of these names |
//! | a send or a receive that waits for ever | `sending_to_a_peer_that_does_not_read_ends_at_the_deadline` (kvshare) |

use std::fs::Permissions;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kvshare::handoff::{Cancel, ReceivedShare, ShareDesk, ShareFailure};
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::wire::{Limits, receive};
use kvshare_tests::hostile_peer::{Act, perform};
use rustix::io::{FdFlags, fcntl_getfd};

const GOOD: &str = r#"{"version":1,"regions":[{"fd":0,"size":4096,"layout":"1"}]}"#;
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn framed(header: &str) -> Vec<u8> {
    [&u32::try_from(header.len()).unwrap().to_le_bytes()[..], header.as_bytes()].concat()
}

fn memory(name: &str) -> OwnedFd {
    Memfd::new().allocate(name, 4096).unwrap().descriptor
}

/// How many descriptors this process has open on memory of this name.
fn open_descriptors(name: &str) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| entry.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy() == format!("/memfd:{name} (deleted)")).count()
}

/// What a desk makes of a peer that follows `script` and then keeps its connection.
fn receives(directory: &tempfile::TempDir, limit: Duration, script: &[Act<'_>]) -> Result<ReceivedShare, ShareFailure> {
    let desk = ShareDesk::open(directory.path()).unwrap();
    let peer = UnixStream::connect(desk.path()).unwrap();
    std::thread::scope(|scope| {
        // One whose connection is closed on it in the middle has been refused, which is the purpose.
        let kept = scope.spawn(|| perform(peer, script).ok().flatten());
        let received = desk.receive(Instant::now() + LONG, limit, &Cancel::new().unwrap());
        drop(kept.join().unwrap());
        received
    })
}

fn private_directory() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap()
}

#[test]
fn each_gets_its_own_error_and_the_next_share_arrives() {
    let directory = private_directory();
    let ours = memory("hostile");
    let (socket, _other) = UnixStream::pair().unwrap();
    let (one, two) = ([ours.as_fd()], [ours.as_fd(); 2]);
    let many = [ours.as_fd(); 250];
    let region =
        |fd: u32, offset: u64, size: u64| format!(r#"{{"fd":{fd},"offset":{offset},"size":{size},"layout":1}}"#);
    let regions = |all: &[String]| framed(&format!(r#"{{"version":1,"regions":[{}]}}"#, all.join(",")));
    let whole = framed(GOOD);
    let (none, number) = (framed(r#"{"version":1,"regions":[]}"#), regions(&[region(3, 0, 4096)]));
    let repeated = framed(r#"{"version":1,"version":1,"regions":[{"fd":0,"size":4096,"layout":1}]}"#);
    let nested = framed(&format!(r#"{{"x":{}{}}}"#, "[".repeat(9), "]".repeat(9)));
    let overlap = regions(&[region(0, 0, 4096), region(0, 0, 4096)]);
    let wraps = regions(&[region(0, 18_446_744_073_709_547_520, 4096)]);
    let beyond = regions(&[region(0, 4096, 4096)]);
    let huge = u32::MAX.to_le_bytes();
    let with = |bytes, descriptors| vec![Act::SendWith(bytes, descriptors)];
    let socket: [BorrowedFd<'_>; 1] = [socket.as_fd()];
    let flood: Vec<_> = whole.chunks(3).map(|bytes| Act::SendWith(bytes, &many)).collect();
    for (name, limit, script, words) in [
        ("nothing", LONG, vec![Act::HangUp], "closed the connection"),
        ("half a length", SHORT, with(&whole[..2], &one), "stalled"),
        ("half a header", SHORT, with(&whole[..20], &one), "stalled"),
        ("half, then gone", LONG, vec![Act::SendWith(&whole[..20], &one), Act::HangUp], "closed the connection"),
        ("half, then silent", LONG, vec![Act::SendWith(&whole[..20], &one), Act::StopSending], "closed the connection"),
        ("no descriptor", LONG, vec![Act::Send(&whole)], "descriptor"),
        ("no byte", LONG, vec![Act::SendWith(b"", &one), Act::Send(&whole)], "descriptor"),
        ("one more", LONG, with(&whole, &two), "descriptor"),
        ("none declared", LONG, with(&none, &two), "regions"),
        ("five thousand", LONG, flood, "4096"),
        ("a socket", LONG, with(&whole, &socket), "a socket cannot be a region"),
        ("a number", LONG, with(&number, &one), "descriptor"),
        ("four GiB", LONG, with(&huge, &one), "4294967295 bytes"),
        ("a repeated key", LONG, with(&repeated, &one), "version"),
        ("nesting", LONG, with(&nested, &one), "deep"),
        ("an overlap", LONG, with(&overlap, &one), "overlap"),
        ("a sum that wraps", LONG, with(&wraps, &one), "offset"),
        ("past the end", LONG, with(&beyond, &one), "4096"),
    ] {
        let refused = receives(&directory, limit, &script).map(drop).unwrap_err().to_string();
        assert!(refused.contains(words), "{name}: {refused}");
        assert_eq!(open_descriptors("hostile"), 1, "{name}");
        let next = receives(&directory, LONG, &with(&whole, &one)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(next.descriptors.len(), 1, "{name}");
        drop(next);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn a_message_in_single_bytes_arrives_whole_and_closes_on_exec() {
    let ours = memory("in single bytes");
    let (one, whole) = ([ours.as_fd()], framed(GOOD));
    let rest = whole[1..].chunks(1).map(Act::Send);
    let script: Vec<_> = [Act::SendWith(&whole[..1], &one)].into_iter().chain(rest).collect();
    let share = receives(&private_directory(), LONG, &script).unwrap();
    assert_eq!(share.header_bytes, GOOD.as_bytes());
    assert!(fcntl_getfd(&share.descriptors[0]).unwrap().contains(FdFlags::CLOEXEC));
}

#[test]
fn a_receiver_takes_its_message_and_not_a_byte_more() {
    let ours = memory("coalesced");
    let one = [ours.as_fd()];
    let (peer, proxy) = UnixStream::pair().unwrap();
    let both = [framed("{}"), framed("[]")].concat();
    let _peer = perform(peer, &[Act::SendWith(&both, &one)]).unwrap();
    let deadline = Instant::now() + LONG;
    let first = receive(&proxy, &Limits::default(), deadline).unwrap();
    let second = receive(&proxy, &Limits::default(), deadline).unwrap();
    assert_eq!((first.header, second.header), (b"{}".to_vec(), b"[]".to_vec()));
    assert_eq!((first.descriptors.len(), second.descriptors.len()), (1, 0));
}
