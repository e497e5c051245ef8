//! Memory of a DRM device, exported and imported by PRIME (Linux, Documentation/gpu/drm-mm.rst).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use drm::Device as _;
use drm::buffer::{self, Buffer as _, DrmFourcc};
use drm::control::Device as _;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::request::{check, check_available};
use super::{Allocation, MemoryError, RegionSource, dma_buf};
use crate::fd::FileSystem;
use crate::layout::ALIGNMENT;

const KIND: &str = "drm";
const DIRECTORY: &str = "/dev/dri";

/// A dumb buffer is an image to the kernel. Ours has lines of [`ALIGNMENT`] bytes, so that no driver pads them.
const PIXELS_PER_LINE: u32 = ALIGNMENT as u32 / 4;
const BITS_PER_PIXEL: u32 = 32;

/// The kernel multiplies lines by bytes in 32 bits (drivers/gpu/drm/drm_dumb_buffers.c).
const SIZE_MAX: u64 = u32::MAX as u64 / ALIGNMENT * ALIGNMENT;

/// Allocates regions from a DRM device: dumb buffers, exported for reading and writing.
///
/// Each allocation opens the device anew. So every buffer is a fresh one (the first export's access mode sticks to a buffer
/// for life), and closing the device frees whatever a failure left behind.
///
/// ```
/// use kvshare::memory::{Drm, RegionSource};
///
/// for node in Drm::nodes() {
///     let region = Drm::new(node).allocate("cache-0", 4096);
///     # drop(region);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drm {
    node: PathBuf,
}

impl Drm {
    /// The device at `node`, such as `/dev/dri/card0`. Allocating needs a card node; importing does with a render node.
    pub fn new(node: impl Into<PathBuf>) -> Self {
        Self { node: node.into() }
    }

    /// The card nodes of this machine, in the order of their numbers; none where it has no DRM device.
    pub fn nodes() -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(DIRECTORY) else { return Vec::new() };
        let number = |name: &str| name.strip_prefix("card")?.parse::<u32>().ok();
        let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.ok()?.file_name().to_str()?)).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| Path::new(DIRECTORY).join(format!("card{number}"))).collect()
    }

    /// Imports a dma-buf, whoever made it, into the device.
    ///
    /// The handle is for the device's own commands. It says nothing of the CPU: a buffer that another driver made cannot
    /// be mapped through the importer (vgem answers `EINVAL`); map its descriptor instead, with
    /// [`MappedRegion`](crate::map::MappedRegion).
    ///
    /// # Errors
    ///
    /// A node that cannot be opened, or a buffer that the device does not take.
    pub fn import(&self, dma_buf: impl AsFd) -> Result<ImportedBuffer, MemoryError> {
        let card = Card::open(&self.node)?;
        // The device would say EINVAL, as it does of a dma-buf that it does not reach.
        if FileSystem::of(dma_buf.as_fd()).is_ok_and(|found| !found.is_dma_buf) {
            return Err(MemoryError::ImportOfOther { node: self.node.clone() });
        }
        let handle = card
            .prime_fd_to_buffer(dma_buf.as_fd())
            .map_err(|error| MemoryError::Import { node: self.node.clone(), errno: errno(&error) })?;
        Ok(ImportedBuffer { card, handle })
    }
}

impl RegionSource for Drm {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn allocate(&self, name: &str, size: u64) -> Result<Allocation, MemoryError> {
        check(name, size)?;
        let lines = match u32::try_from(size / ALIGNMENT) {
            Ok(lines) if size <= SIZE_MAX => lines,
            _ => return Err(MemoryError::DumbBufferTooLarge { size, limit: SIZE_MAX }),
        };
        check_available(size)?;
        let refused = |call| move |error| MemoryError::DmaBuf { kind: KIND, call, size, errno: errno(&error) };
        let card = Card::open(&self.node)?;
        let image = card
            .create_dumb_buffer((PIXELS_PER_LINE, lines), DrmFourcc::Xrgb8888, BITS_PER_PIXEL)
            .map_err(refused("DRM_IOCTL_MODE_CREATE_DUMB"))?;
        let exported = card.buffer_to_prime_fd(image.handle(), drm::CLOEXEC | drm::RDWR);
        // The export keeps the memory; the handle is not needed again. Should this fail, closing the card frees it.
        let _ = card.destroy_dumb_buffer(image);
        dma_buf::finish(exported.map_err(refused("DRM_IOCTL_PRIME_HANDLE_TO_FD"))?, KIND, name, size)
    }
}

/// A dma-buf that was imported into a DRM device: a handle, valid with the open device that belongs to it.
///
/// The handle is closed when this is dropped. The buffer itself lives on with its other holders.
#[derive(Debug)]
pub struct ImportedBuffer {
    card: Card,
    handle: buffer::Handle,
}

impl ImportedBuffer {
    /// The GEM handle, a number that only this open device knows. See [`as_fd`](AsFd::as_fd).
    pub fn handle(&self) -> u32 {
        self.handle.into()
    }
}

impl AsFd for ImportedBuffer {
    /// The open device, for the driver's own commands.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.card.as_fd()
    }
}

impl Drop for ImportedBuffer {
    fn drop(&mut self) {
        // Should it fail, the device's own closing just after frees the handle.
        let _ = self.card.close_buffer(self.handle);
    }
}

/// An open DRM device, of nobody else's in this process.
#[derive(Debug)]
struct Card {
    file: OwnedFd,
}

impl Card {
    fn open(node: &Path) -> Result<Self, MemoryError> {
        let card = Self { file: File::into(dma_buf::open(node, OFlags::RDWR, KIND)?) };
        // Whoever opens a card first becomes its master, and a display server that starts later would find it taken.
        let _ = card.release_master_lock();
        Ok(card)
    }
}

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl drm::Device for Card {}
impl drm::control::Device for Card {}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
