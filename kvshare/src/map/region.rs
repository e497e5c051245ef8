//! A region mapped into this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::descriptor::Mappable;
use super::mapping::Mapping;
use super::placement::place;
use super::{Access, CPU_ACCESS_TIMEOUT, CpuAccess, Extent, MapError, MapOptions, View, ViewMut};

/// The size that most kernels join base pages into: a level of the page table on x86-64, and on arm64 with 4 KiB
/// pages.
const TRANSPARENT_HUGE_BYTES: u64 = 2 << 20;

/// The answer of mmap where a driver has no way to map its memory (`ENOTSUPP`, linux/errno.h; it has no name in libc).
pub(super) const ENOTSUPP: Errno = Errno::from_raw_os_error(524);

/// A region mapped into this process, shared with all others that hold its descriptor.
///
/// The region keeps a descriptor of its own. Dropping it unmaps all of it, guard pages included.
#[derive(Debug)]
pub struct MappedRegion {
    mapping: Mapping,
    descriptor: Arc<OwnedFd>,
    is_dma_buf: bool,
    extent: Extent,
}

impl MappedRegion {
    /// Maps the part `extent` of a descriptor.
    ///
    /// `tensors` are the tensors' extents within the region, in ascending order; only [`Guard::Tensor`] looks at
    /// them. They must start at multiples of [`ALIGNMENT`](crate::layout::ALIGNMENT) and may end anywhere.
    ///
    /// Everything is checked against what the kernel says of the descriptor, never against what a header says.
    ///
    /// # Errors
    ///
    /// A size or offset that cannot be, or is beyond the descriptor's real end; memory that is not sealed, cannot be
    /// written though it should be, or cannot be mapped by the CPU at all; tensors that cannot have guard pages, or a
    /// dma-buf whose driver cannot be relied on to map parts of it; what the kernel answered. Nothing stays mapped.
    ///
    /// [`Guard::Tensor`]: super::Guard::Tensor
    #[doc(alias = "mmap")]
    pub fn map(
        descriptor: impl AsFd,
        extent: Extent,
        tensors: &[Extent],
        options: &MapOptions,
    ) -> Result<Self, MapError> {
        extent.check_region()?;
        let mappable = Mappable::of(descriptor.as_fd())?;
        mappable.check_access(options.access)?;
        mappable.check_end(extent)?;
        mappable.check_seals(options.unsealed)?;

        let huge_bytes = if options.transparent_huge { TRANSPARENT_HUGE_BYTES } else { 0 };
        let alignment = mappable.page_bytes.max(huge_bytes);
        let from = mappable.map_from(descriptor.as_fd(), options.guard)?;
        let placement = place(extent, tensors, options.guard, from, mappable.page_bytes, alignment)?;

        let descriptor = descriptor.as_fd().try_clone_to_owned().map_err(|error| MapError::System {
            call: "F_DUPFD_CLOEXEC",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::MFILE),
        })?;
        let mapping = Mapping::new(descriptor.as_fd(), placement, options.access, options.transparent_huge)
            .map_err(|errno| explain(errno, &mappable))?;
        Ok(Self { mapping, descriptor: Arc::new(descriptor), is_dma_buf: mappable.is_dma_buf, extent })
    }

    /// The part of the descriptor that is mapped.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// How many bytes the region has.
    pub fn size(&self) -> u64 {
        self.extent.size
    }

    /// What the mapping allows.
    pub fn access(&self) -> Access {
        self.mapping.access()
    }

    /// A window for reading on `len` bytes from `offset` on, counted from the region's start.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfBounds`] where the region ends before them, [`MapError::AcrossGuard`] where tensors are
    /// guarded and the bytes are not within the pages of one.
    #[inline]
    pub fn view(&self, offset: u64, len: u64) -> Result<View<'_>, MapError> {
        self.check_bounds(offset, len)?;
        self.mapping.view(offset, len).ok_or(MapError::AcrossGuard { offset, len })
    }

    /// A window for writing on `len` bytes from `offset` on, counted from the region's start.
    ///
    /// # Errors
    ///
    /// [`MapError::MappedReadOnly`], and those of [`view`](Self::view).
    #[inline]
    pub fn view_mut(&mut self, offset: u64, len: u64) -> Result<ViewMut<'_>, MapError> {
        if self.access() == Access::ReadOnly {
            return Err(MapError::MappedReadOnly);
        }
        self.check_bounds(offset, len)?;
        self.mapping.view_mut(offset, len).ok_or(MapError::AcrossGuard { offset, len })
    }

    /// Opens a window in which the CPU may access memory that a device also uses.
    ///
    /// For a dma-buf it waits until devices have finished, and makes their writes visible to the CPU; ending the
    /// access makes the CPU's writes visible to devices. For a memfd there is nothing to do. It orders caches and
    /// excludes nobody: two processes may have access at once.
    ///
    /// The access does not borrow the region, so that views can be taken while it lasts.
    ///
    /// # Errors
    ///
    /// [`MapError::MappedReadOnly`] where writing is asked for and not mapped, [`MapError::DeviceBusy`] where a device
    /// has not finished after [`CPU_ACCESS_TIMEOUT`], or what the kernel answered.
    pub fn begin_cpu_access(&self, access: Access) -> Result<CpuAccess, MapError> {
        self.begin_cpu_access_until(access, Instant::now() + CPU_ACCESS_TIMEOUT)
    }

    /// As [`begin_cpu_access`](Self::begin_cpu_access), waiting for devices until `deadline` at most.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn begin_cpu_access_until(&self, access: Access, deadline: Instant) -> Result<CpuAccess, MapError> {
        if access == Access::ReadWrite && self.access() == Access::ReadOnly {
            return Err(MapError::MappedReadOnly);
        }
        if self.is_dma_buf {
            CpuAccess::begin(Arc::clone(&self.descriptor), access, deadline)
        } else {
            Ok(CpuAccess::unneeded())
        }
    }

    #[inline]
    fn check_bounds(&self, offset: u64, len: u64) -> Result<(), MapError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.extent.size => Ok(()),
            _ => Err(MapError::OutOfBounds { offset, len, size: self.extent.size }),
        }
    }
}

impl AsFd for MappedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What an answer of mmap means, given that sizes, offsets, access and seals were right.
pub(super) fn explain(errno: Errno, mappable: &Mappable) -> MapError {
    match errno {
        Errno::INVAL | Errno::NODEV | ENOTSUPP => MapError::NotByCpu,
        Errno::NOMEM if mappable.is_huge() => MapError::HugePoolTooSmall { page_bytes: mappable.page_bytes },
        errno => MapError::System { call: "mmap", errno },
    }
}
