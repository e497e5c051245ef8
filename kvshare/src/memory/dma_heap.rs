//! Memory of a DMA heap (Linux, Documentation/userspace-api/dma-buf-heaps.rst and linux/dma-heap.h).

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

use super::request::{check, check_available};
use super::{Allocation, MemoryError, RegionSource, dma_buf};

const KIND: &str = "dma-heap";
const DIRECTORY: &str = "/dev/dma_heap";

/// `DMA_HEAP_IOCTL_ALLOC` (linux/dma-heap.h).
const DMA_HEAP_IOCTL_ALLOC: Opcode = opcode::read_write::<AllocationData>(b'H', 0);

/// `struct dma_heap_allocation_data` (linux/dma-heap.h).
#[repr(C)]
#[derive(Default)]
struct AllocationData {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// Allocates regions from a DMA heap: kernel memory of a kind that devices need, as dma-bufs.
///
/// Every kernel with heaps has the one called `system`, of ordinary pages. A machine may have others, such as
/// `linux,cma` with memory that is contiguous for devices without address translation.
///
/// ```
/// use kvshare::memory::{DmaHeap, RegionSource};
///
/// for name in DmaHeap::names() {
///     let region = DmaHeap::new(name).allocate("cache-0", 4096);
///     # drop(region);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaHeap {
    name: String,
}

impl DmaHeap {
    /// The heap called `name`, a file in `/dev/dma_heap`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// The heap of ordinary pages.
    pub fn system() -> Self {
        Self::new("system")
    }

    /// The names of this machine's heaps, in alphabetical order; none where the kernel was built without.
    pub fn names() -> Vec<String> {
        let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

impl RegionSource for DmaHeap {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn allocate(&self, name: &str, size: u64) -> Result<Allocation, MemoryError> {
        check(name, size)?;
        if self.name.is_empty() || self.name.starts_with('.') || self.name.contains(['/', '\0']) {
            return Err(MemoryError::HeapName { name: self.name.clone() });
        }
        check_available(size)?;
        let heap = dma_buf::open(&Path::new(DIRECTORY).join(&self.name), OFlags::RDONLY, KIND)?;
        let refused = |errno| MemoryError::DmaBuf { kind: KIND, call: "DMA_HEAP_IOCTL_ALLOC", size, errno };
        dma_buf::finish(allocate(heap.as_fd(), size).map_err(refused)?, KIND, name, size)
    }
}

#[allow(unsafe_code)]
fn allocate(heap: BorrowedFd<'_>, size: u64) -> Result<OwnedFd, Errno> {
    let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let mut data = AllocationData { len: size, fd_flags, ..AllocationData::default() };
    // SAFETY: the operation and its argument are those of linux/dma-heap.h: the kernel reads and writes one structure of
    // that size and nothing else. No other process has a part in it: the memory is new.
    unsafe { rustix::ioctl::ioctl(heap, Updater::<{ DMA_HEAP_IOCTL_ALLOC }, AllocationData>::new(&mut data)) }?;
    // SAFETY: the call succeeded, so the kernel has just opened this descriptor for us and nobody else in this process
    // knows it. Other processes have no access to our descriptor table.
    Ok(unsafe { OwnedFd::from_raw_fd(data.fd as i32) })
}
