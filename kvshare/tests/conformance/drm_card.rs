//! What is particular to memory of a DRM device: access modes that stick, import, and fences.
//!
//! Fences need a device that can be told when its work ends. vgem is one: it runs no work, but attaches a fence to a
//! buffer and signals it when told to (Linux, drivers/gpu/drm/vgem/vgem_fence.c).

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use drm::Device as _;
use drm::buffer::{Buffer as _, DrmFourcc, Handle};
use drm::control::Device as _;
use drm::control::dumbbuffer::DumbBuffer;
use kvshare::map::{Access, Extent, Fence, MapError, MappedRegion};
use kvshare::memory::{DmaHeap, Drm, MemoryError, RegionSource};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};

use crate::Promise;
use crate::kinds::Kind;
use crate::promises::READ_WRITE;
use crate::system;

pub const PROMISES: &[Promise] = &[
    ("a_node_that_is_no_card_is_named_in_the_error", a_node_that_is_no_card_is_named_in_the_error),
    ("a_buffer_too_large_for_the_kernels_count_is_refused", a_buffer_too_large_for_the_kernels_count_is_refused),
    ("the_first_exports_access_sticks_to_the_buffer", the_first_exports_access_sticks_to_the_buffer),
    ("an_imported_buffer_has_a_handle_that_the_importer_cannot_map", an_imported_buffer_has_a_handle),
    ("what_is_no_dma_buf_is_not_imported", what_is_no_dma_buf_is_not_imported),
    ("cpu_access_waits_for_a_devices_work_and_no_longer_than_told", cpu_access_waits_for_a_devices_work),
    ("a_reader_does_not_wait_for_a_device_that_reads", a_reader_does_not_wait_for_a_device_that_reads),
    ("a_fence_is_handed_on_with_the_buffer", a_fence_is_handed_on_with_the_buffer),
];

struct Card(File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl drm::Device for Card {}
impl drm::control::Device for Card {}

/// The first card that is vgem. A GPU is left alone: what is shown here needs fences that end when told.
pub fn node() -> PathBuf {
    let is_vgem = |node: &PathBuf| open(node).is_some_and(|card| driver(&card) == "vgem");
    Drm::nodes().into_iter().find(is_vgem).unwrap_or_else(|| "/dev/dri/card-of-vgem".into())
}

fn open(node: &PathBuf) -> Option<Card> {
    OpenOptions::new().read(true).write(true).open(node).ok().map(Card)
}

fn driver(card: &Card) -> String {
    card.get_driver().map_or_else(|_| String::new(), |driver| driver.name().to_string_lossy().into_owned())
}

/// The card, and a buffer of one page that is its own.
fn card_with_buffer() -> (Card, DumbBuffer) {
    let card = open(&node()).expect("a card");
    let buffer = card.create_dumb_buffer((1024, 1), DrmFourcc::Xrgb8888, 32).expect("a buffer");
    (card, buffer)
}

/// A buffer that was exported for reading.
pub fn read_only(size: u64) -> OwnedFd {
    let (card, _) = card_with_buffer();
    let lines = (size / 4096) as u32;
    let buffer = card.create_dumb_buffer((1024, lines), DrmFourcc::Xrgb8888, 32).expect("a buffer");
    card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC).expect("an export")
}

/// `DRM_IOCTL_VGEM_FENCE_ATTACH` and `_SIGNAL` with their arguments (drm/vgem_drm.h).
const FENCE_ATTACH: Opcode = opcode::read_write::<[u32; 4]>(b'd', 0x41);
const FENCE_SIGNAL: Opcode = opcode::write::<[u32; 2]>(b'd', 0x42);
const FENCE_WRITE: u32 = 1;

/// Work of the device on a buffer, which ends when it is told to.
fn begin_work(card: &Card, buffer: Handle, flags: u32) -> u32 {
    let mut argument = [buffer.into(), flags, 0, 0];
    // SAFETY: the kernel reads and writes four numbers, as drm/vgem_drm.h says. No other process has a part in it.
    unsafe { rustix::ioctl::ioctl(card, Updater::<{ FENCE_ATTACH }, [u32; 4]>::new(&mut argument)) }.expect("a fence");
    argument[2]
}

fn end_work(card: &Card, work: u32) {
    // SAFETY: the kernel reads two numbers, as drm/vgem_drm.h says. No other process has a part in it.
    unsafe { rustix::ioctl::ioctl(card, Setter::<{ FENCE_SIGNAL }, [u32; 2]>::new([work, 0])) }.expect("in time");
}

fn map(memory: impl AsFd) -> MappedRegion {
    MappedRegion::map(memory, Extent { offset: 0, size: 4096 }, &[], &READ_WRITE).expect("a mapping")
}

/// A deadline that no work in these tests meets unless it has ended already.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}

/// A deadline that is passed only if something hangs.
fn late() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn a_node_that_is_no_card_is_named_in_the_error(_: &Kind) {
    let error = Drm::new("/dev/dri/card999").allocate("a", 4096).expect_err("there is none");
    assert_eq!(error, MemoryError::Device { path: "/dev/dri/card999".into(), kind: "drm", errno: Errno::NOENT });
    let error = Drm::new("/dev/null").allocate("a", 4096).expect_err("it is no card");
    let call = "DRM_IOCTL_MODE_CREATE_DUMB";
    assert_eq!(error, MemoryError::DmaBuf { kind: "drm", call, size: 4096, errno: Errno::NOTTY });
}

fn a_buffer_too_large_for_the_kernels_count_is_refused(kind: &Kind) {
    let limit = (1 << 32) - 4096;
    let error = kind.source.allocate("large", 1 << 32).expect_err("4 GiB");
    assert_eq!(error, MemoryError::DumbBufferTooLarge { size: 1 << 32, limit });
}

fn the_first_exports_access_sticks_to_the_buffer(_: &Kind) {
    let (card, buffer) = card_with_buffer();
    let first = card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC).expect("an export for reading");
    let second = card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export for writing");
    for export in [first, second] {
        let answer = MappedRegion::map(export, Extent { offset: 0, size: 4096 }, &[], &READ_WRITE).err();
        assert_eq!(answer, Some(MapError::DmaBufReadOnly));
    }
}

fn an_imported_buffer_has_a_handle(_: &Kind) {
    let foreign = DmaHeap::system().allocate("foreign", 4096).expect("the guest has a heap").descriptor;
    let imported = Drm::new(node()).import(&foreign).expect("vgem imports it");
    assert_ne!(imported.handle(), 0);
    let card = Card(File::from(imported.as_fd().try_clone_to_owned().expect("a descriptor")));
    assert_eq!(map_offset(&card, imported.handle()), Err(Errno::INVAL));

    map(&foreign).view_mut(0, 4).expect("the descriptor itself is mapped").fill(1);
    drop(imported);
    assert_eq!(map_offset(&card, 1), Err(Errno::NOENT), "the handle was closed");
}

/// What `DRM_IOCTL_MODE_MAP_DUMB` answers (drm/drm_mode.h).
fn map_offset(card: &Card, handle: u32) -> Result<u64, Errno> {
    let mut argument = [u64::from(handle), 0];
    const MAP_DUMB: Opcode = opcode::read_write::<[u64; 2]>(b'd', 0xB3);
    // SAFETY: the kernel reads and writes a handle and an offset, as drm/drm_mode.h says, and maps nothing yet. No other
    // process has a part in it.
    unsafe { rustix::ioctl::ioctl(card, Updater::<{ MAP_DUMB }, [u64; 2]>::new(&mut argument)) }?;
    Ok(argument[1])
}

fn what_is_no_dma_buf_is_not_imported(_: &Kind) {
    let node = node();
    let error = Drm::new(&node).import(system::read_only_memfd(4096)).expect_err("a memfd is none");
    assert_eq!(error, MemoryError::Import { node, errno: Errno::INVAL });
}

fn cpu_access_waits_for_a_devices_work(_: &Kind) {
    let (card, buffer) = card_with_buffer();
    let region = map(card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export"));
    let work = begin_work(&card, buffer.handle(), FENCE_WRITE);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let answer = region.begin_cpu_access_until(access, soon()).err();
        assert_eq!(answer, Some(MapError::DeviceBusy), "{access:?}");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| end_work(&card, work));
        region.begin_cpu_access_until(Access::ReadWrite, late()).expect("the work ends").end().expect("its end");
    });
}

fn a_reader_does_not_wait_for_a_device_that_reads(_: &Kind) {
    let (card, buffer) = card_with_buffer();
    let region = map(card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export"));
    let work = begin_work(&card, buffer.handle(), 0);
    region.begin_cpu_access_until(Access::ReadOnly, late()).expect("two readers").end().expect("its end");
    let answer = region.begin_cpu_access_until(Access::ReadWrite, soon()).err();
    assert_eq!(answer, Some(MapError::DeviceBusy));
    end_work(&card, work);
}

fn a_fence_is_handed_on_with_the_buffer(kind: &Kind) {
    let (card, buffer) = card_with_buffer();
    let of_device = card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export");
    let work = begin_work(&card, buffer.handle(), FENCE_WRITE);
    let fence = Fence::export(&of_device, Access::ReadOnly).expect("a fence");
    assert_eq!(fence.wait(soon()), Err(MapError::DeviceBusy));

    // The provider attaches its device's fence to the decoder's region and is gone; the decoder waits for it all the same.
    let region = map(kind.region("fenced", 1));
    let fence = Fence::from_descriptor(fence.into()).expect("it is one");
    fence.attach(&region, Access::ReadWrite).expect("it is attached");
    drop((fence, of_device));
    let answer = region.begin_cpu_access_until(Access::ReadOnly, soon()).err();
    assert_eq!(answer, Some(MapError::DeviceBusy));
    let seen = Fence::export(&region, Access::ReadOnly).expect("the decoder's own view of it");
    end_work(&card, work);
    seen.wait(late()).expect("the work ended");
    region.begin_cpu_access(Access::ReadOnly).expect("nothing is left to wait for").end().expect("its end");
}
