//! A proxy receives a decoder's share: whole and checked, or not at all, and with no descriptor left over.

use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use kvshare::handoff::{Cancel, ReceivedShare, ShareDesk, ShareFailure};
use kvshare::header::{Header, HeaderError, Params, Region};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::Unsealed;
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::wire::{WireError, connect};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

/// More than anything here takes.
const LONG: Duration = Duration::from_secs(20);

fn soon() -> Instant {
    Instant::now() + LONG
}

fn header() -> Header {
    let layout = Geometry::uniform(2, 64, 64, 256, TensorType::F16).layout().unwrap();
    Header::describe(&layout, None, Some(Params::plain(256, TensorType::F16)))
}

/// Memory that this test can tell from all others by its name.
fn memory(name: &str, size: u64) -> OwnedFd {
    Memfd::new().allocate(name, size).unwrap().descriptor
}

fn open_descriptors_named(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

/// What a desk receives from a decoder that does as `decoder` says.
fn received(decoder: impl FnOnce(&Path) + Send + 'static) -> Result<ReceivedShare, ShareFailure> {
    received_at(|desk| desk, decoder)
}

/// The same, at a desk that was set up by `set_up`.
fn received_at(
    set_up: impl FnOnce(ShareDesk) -> ShareDesk,
    decoder: impl FnOnce(&Path) + Send + 'static,
) -> Result<ReceivedShare, ShareFailure> {
    let directory = directory();
    let desk = set_up(ShareDesk::open(directory.path()).unwrap());
    let path = desk.path().to_owned();
    let decoder = std::thread::spawn(move || decoder(&path));
    let outcome = desk.receive(soon(), LONG, &Cancel::new().unwrap());
    decoder.join().unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the socket is gone");
    outcome
}

fn send(path: &Path, header: &[u8], descriptors: &[BorrowedFd<'_>]) {
    connect(path, soon()).unwrap().send(header, descriptors, soon()).unwrap();
}

#[test]
fn a_share_arrives_whole_and_its_header_as_it_was_sent() {
    let sent = header();
    let mut bytes = sent.to_json();
    bytes.extend(b"\n ");
    let also = bytes.clone();
    let share = received(move |path| send(path, &also, &[memory("desk-whole", 131_072).as_fd()])).unwrap();
    assert_eq!(*share.header, sent);
    assert_eq!(share.header_bytes, bytes);
    assert_eq!(share.descriptors.len(), 1);
    assert_eq!(open_descriptors_named("desk-whole"), 1);
    drop(share);
    assert_eq!(open_descriptors_named("desk-whole"), 0);
}

#[test]
fn a_share_that_does_not_fit_together_is_refused_and_closed() {
    type Check = fn(&ShareFailure) -> bool;
    let cases: [(&str, Vec<u64>, Check); 3] = [
        ("desk-short", vec![4096], |failure| {
            matches!(failure, ShareFailure::Header(HeaderError::BeyondDescriptor { .. }))
        }),
        ("desk-extra", vec![131_072, 4096], |failure| {
            matches!(failure, ShareFailure::Header(HeaderError::UnusedDescriptor { index: 1, .. }))
        }),
        ("desk-none", vec![], |failure| {
            matches!(failure, ShareFailure::Header(HeaderError::NoSuchDescriptor { count: 0, .. }))
        }),
    ];
    for (name, sizes, expected) in cases {
        let failure = received(move |path| {
            let memory: Vec<OwnedFd> = sizes.iter().map(|size| memory(name, *size)).collect();
            let borrowed: Vec<BorrowedFd<'_>> = memory.iter().map(|memory| memory.as_fd()).collect();
            send(path, &header().to_json(), &borrowed);
        })
        .unwrap_err();
        assert!(expected(&failure), "{name}: {failure}");
        assert_eq!(open_descriptors_named(name), 0, "{name}");
    }
}

/// Memory that anybody who holds it can truncate.
fn unsealed(name: &str, size: u64) -> OwnedFd {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, size).unwrap();
    memfd
}

#[test]
fn memory_that_could_be_truncated_is_refused_before_a_provider_starts() {
    let layout = Geometry::uniform(2, 64, 64, 256, TensorType::F16).layout().unwrap();
    // The same region once more, in a group of its own.
    let mut header = Header::describe(&layout, None, None);
    header.tensors.clear();
    header.regions.push(Region { fd: 1, group: 1, ..header.regions[0] });
    let text = header.to_json();
    let decoder = move |path: &Path| {
        let memory = [memory("desk-sealed", 131_072), unsealed("desk-unsealed", 131_072)];
        send(path, &text, &memory.each_ref().map(|memory| memory.as_fd()));
    };
    let failure = received(decoder.clone()).unwrap_err();
    assert!(matches!(failure, ShareFailure::Unsealed { index: 1 }), "{failure}");
    assert_eq!((open_descriptors_named("desk-sealed"), open_descriptors_named("desk-unsealed")), (0, 0));

    let share = received_at(|desk| desk.unsealed(Unsealed::AcceptSigbus), decoder).unwrap();
    assert_eq!(share.descriptors.len(), 2);
}

#[test]
fn a_header_that_is_wrong_is_refused_and_its_memory_closed() {
    let failure = received(|path| send(path, b"{}", &[memory("desk-wrong", 131_072).as_fd()])).unwrap_err();
    assert!(matches!(failure, ShareFailure::Header(HeaderError::Missing { .. })), "{failure}");
    assert_eq!(open_descriptors_named("desk-wrong"), 0);
}

#[test]
fn a_decoder_that_dies_in_the_middle_is_an_error() {
    let failure = received(|path| drop(connect(path, soon()).unwrap())).unwrap_err();
    assert!(matches!(failure, ShareFailure::Wire(WireError::ClosedBeforeMessage)), "{failure}");
}

#[test]
fn nobody_is_waited_for_longer_than_said() {
    let directory = directory();
    let desk = ShareDesk::open(directory.path()).unwrap();
    let failure = desk.receive(Instant::now(), LONG, &Cancel::new().unwrap()).unwrap_err();
    assert!(matches!(failure, ShareFailure::NobodyCame { .. }), "{failure}");

    let desk = ShareDesk::open(directory.path()).unwrap();
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    let failure = desk.receive(soon(), LONG, &cancel).unwrap_err();
    assert!(matches!(failure, ShareFailure::NobodyCame { reason: "cancelled" }), "{failure}");
}

/// A desk with a decoder that has sent half a message, and hangs up when it is dropped.
fn half_a_message() -> (tempfile::TempDir, ShareDesk, std::os::unix::net::UnixStream) {
    let directory = directory();
    let desk = ShareDesk::open(directory.path()).unwrap();
    let mut decoder = std::os::unix::net::UnixStream::connect(desk.path()).unwrap();
    decoder.write_all(&100_u32.to_le_bytes()).unwrap();
    decoder.write_all(b"{").unwrap();
    (directory, desk, decoder)
}

#[test]
fn a_message_has_a_limit_of_its_own() {
    let (_directory, desk, _decoder) = half_a_message();
    let failure = desk.receive(soon(), Duration::ZERO, &Cancel::new().unwrap()).unwrap_err();
    assert!(matches!(failure, ShareFailure::Wire(WireError::Stalled { done: 5, expected: 104 })), "{failure}");
}

#[test]
fn a_wait_in_the_middle_of_a_message_can_be_called_off() {
    let (_directory, desk, _decoder) = half_a_message();
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    let failure = desk.receive(soon(), LONG, &cancel).unwrap_err();
    assert!(matches!(failure, ShareFailure::Wire(WireError::Stopped { done: 5, expected: 104 })), "{failure}");
}

#[test]
fn a_message_that_came_whole_is_received_though_called_off() {
    let directory = directory();
    let desk = ShareDesk::open(directory.path()).unwrap();
    send(desk.path(), &header().to_json(), &[memory("desk-late", 131_072).as_fd()]);
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    assert_eq!(desk.receive(soon(), LONG, &cancel).unwrap().descriptors.len(), 1);
}

#[test]
fn a_directory_that_others_can_reach_is_refused() {
    let directory = directory();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(ShareDesk::open(directory.path()), Err(ShareFailure::Wire(WireError::DirectoryIsOpen { .. }))));
}
