//! Where a region's memory comes from.
//!
//! A [`RegionSource`] makes a descriptor that other processes can map. Nothing here maps memory: that is
//! [`crate::map`]'s work, since some descriptors can only be passed on.
//!
//! | source | makes | works on |
//! | --- | --- | --- |
//! | [`Memfd`] | a sealed memfd | every Linux machine |
//! | [`Udmabuf`] | a dma-buf over a memfd | a kernel with `/dev/udmabuf` |
//! | [`DmaHeap`] | a dma-buf of a heap's memory | a kernel with `/dev/dma_heap` |
//! | [`Drm`] | a dma-buf of a GPU's memory, or of vgem's | a machine with a card node in `/dev/dri` |
//!
//! ```
//! use kvshare::memory::{Memfd, Pages, RegionSource};
//!
//! let source = Memfd::new().pages(Pages::HUGE_2_MIB);
//! let allocation = source.allocate("cache-0", 8192)?;
//! assert_eq!(allocation.size, 8192);
//! for fallback in &allocation.fallbacks {
//!     eprintln!("{fallback}");
//! }
//! # Ok::<(), kvshare::memory::MemoryError>(())
//! ```

mod dma_buf;
mod dma_heap;
mod drm;
mod error;
mod machine;
mod memfd;
mod pages;
mod request;
mod udmabuf;

pub use self::drm::{Drm, ImportedBuffer};
pub use dma_heap::DmaHeap;
pub use error::MemoryError;
pub(crate) use memfd::create as create_memfd;
pub use memfd::{Memfd, Reserve};
pub use pages::{FallbackReason, PageFallback, Pages};
pub use udmabuf::{Udmabuf, UdmabufPart};

use std::os::fd::OwnedFd;

/// Something that regions can be allocated from: a memfd, a DMA heap, a GPU.
pub trait RegionSource {
    /// What this memory is called in messages and on the command line, such as `memfd`.
    fn kind(&self) -> &'static str;

    /// Allocates a region of `size` bytes, a multiple of [`ALIGNMENT`](crate::layout::ALIGNMENT) that is not 0.
    ///
    /// `name` is for people: it shows in `/proc/<pid>/maps` and `/proc/<pid>/fd`, and need not be unique. A dma-buf has
    /// the first 31 bytes of it. The memory reads as zeros.
    ///
    /// # Errors
    ///
    /// A size or a name that no source takes, memory that the machine does not have, or what the system answered.
    fn allocate(&self, name: &str, size: u64) -> Result<Allocation, MemoryError>;
}

/// A region's memory, and what it is made of.
#[derive(Debug)]
#[non_exhaustive]
pub struct Allocation {
    /// The memory. It lives until the last descriptor and the last mapping of it, in any process, are gone.
    pub descriptor: OwnedFd,
    /// The bytes asked for. The file behind the descriptor may be larger: it is rounded up to its own page size.
    pub size: u64,
    /// The pages that were got. [`Pages::TransparentHuge`] is a property of each mapping, too: set
    /// [`MapOptions::transparent_huge`](crate::map::MapOptions::transparent_huge) where it is mapped.
    pub pages: Pages,
    /// What was asked for and not got, in the order in which it was tried.
    pub fallbacks: Vec<PageFallback>,
}

#[cfg(test)]
mod tests;
