//! What is particular to memory of a DRM device: access modes that stick, and import.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use drm::Device as _;
use drm::buffer::{Buffer as _, DrmFourcc};
use drm::control::Device as _;
use drm::control::dumbbuffer::DumbBuffer;
use kvshare::map::{Extent, MapError, MappedRegion};
use kvshare::memory::{DmaHeap, Drm, MemoryError, RegionSource};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

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
];

pub struct Card(File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Card {
    fn from(card: OwnedFd) -> Self {
        Self(card.into())
    }
}

impl drm::Device for Card {}
impl drm::control::Device for Card {}

/// The first card that is vgem. A GPU is left alone: what is shown here needs fences that end when told, as vgem's do.
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
pub fn card_with_buffer() -> (Card, DumbBuffer) {
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

pub fn map(memory: impl AsFd) -> MappedRegion {
    MappedRegion::map(memory, Extent { offset: 0, size: 4096 }, &[], &READ_WRITE).expect("a mapping")
}

fn a_node_that_is_no_card_is_named_in_the_error(_: &Kind) {
    let error = Drm::new("/dev/dri/card999").allocate("a", 4096).expect_err("there is none");
    assert_eq!(error, MemoryError::Device { path: "/dev/dri/card999".into(), kind: "drm", errno: Errno::NOENT });
    let error = Drm::new("/dev/null").allocate("a", 4096).expect_err("it is no card");
    let call = "DRM_IOCTL_MODE_CREATE_DUMB";
    assert_eq!(error, MemoryError::DmaBuf { kind: "drm", call, size: 4096, errno: Errno::NOTTY });
    let error = Drm::new("/dev/dri/renderD128").allocate("a", 4096).expect_err("it renders and makes no image");
    assert_eq!(error, MemoryError::DmaBuf { kind: "drm", call, size: 4096, errno: Errno::ACCESS });
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
    let card = Card::from(imported.as_fd().try_clone_to_owned().expect("a descriptor"));
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
    assert_eq!(error, MemoryError::ImportOfOther { node });
}
