//! What the file system behind a descriptor tells of it.

use rustix::fs::fstatfs;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// `DMA_BUF_MAGIC` (linux/magic.h), as `fstatfs` tells it.
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// `HUGETLBFS_MAGIC` (linux/magic.h).
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// The file system behind a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem {
    /// Whether the descriptor is a dma-buf, of which the file type of its status says nothing.
    pub is_dma_buf: bool,
    /// The bytes of one page: those of a huge page for a memfd from such a pool.
    pub page_bytes: u64,
}

impl FileSystem {
    /// Asks the kernel, by `fstatfs`.
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> Result<Self, Errno> {
        let found = fstatfs(descriptor)?;
        // The type is a 32-bit number, whatever the machine's C library keeps it in.
        let magic = found.f_type as u32;
        let page_bytes = match magic {
            HUGETLBFS_MAGIC => found.f_bsize as u64,
            _ => rustix::param::page_size() as u64,
        };
        Ok(Self { is_dma_buf: magic == DMA_BUF_MAGIC, page_bytes })
    }
}
