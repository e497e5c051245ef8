//! Anonymous shared memory: the source that every Linux machine has.

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;

use super::request::{check, check_available};
use super::{Allocation, FallbackReason, MemoryError, PageFallback, Pages, RegionSource, machine};
use crate::fd::REQUIRED_SEALS;

/// Where `memfd_create` takes the logarithm of a huge page's size (`MFD_HUGE_SHIFT`, linux/memfd.h).
const HUGE_SHIFT: u32 = 26;

/// When a region's memory is taken from the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// At once (`fallocate`): a machine that has too little says so with an error.
    #[default]
    Now,
    /// Page by page, as each is first touched. Allocating is free and memory that is never touched costs nothing,
    /// but a touch that finds the machine out of memory kills the process that touched, ours or a peer's, with
    /// `SIGBUS`.
    OnTouch,
}

/// Allocates regions as sealed memfds.
///
/// Each is sealed against shrinking, growing and further seals, so that a peer that maps it can rely on its size. A
/// memfd is not bound by the size of `/dev/shm`, only by the machine's memory and a memory cgroup.
///
/// ```
/// use kvshare::memory::{Memfd, Pages, RegionSource, Reserve};
///
/// let sparse = Memfd::new().reserve(Reserve::OnTouch).allocate("cache-0", 1 << 40)?;
/// assert_eq!((sparse.size, sparse.pages), (1 << 40, Pages::Base));
/// # Ok::<(), kvshare::memory::MemoryError>(())
/// ```
#[doc(alias = "memfd_create")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memfd {
    pages: Pages,
    reserve: Reserve,
}

impl Memfd {
    /// Memory in base pages, reserved at once.
    pub const fn new() -> Self {
        Self { pages: Pages::Base, reserve: Reserve::Now }
    }

    /// Asks for pages of a size. Those that cannot be had are replaced by the next smaller ones, and
    /// [`Allocation::fallbacks`] says why.
    ///
    /// Pages of a pool ([`Pages::Huge`]) are reserved at once whatever [`reserve`](Self::reserve) says: an empty pool
    /// would show itself only to whoever maps the memory, when it is too late to fall back.
    pub const fn pages(self, pages: Pages) -> Self {
        Self { pages, ..self }
    }

    /// Says when the memory is taken from the machine.
    pub const fn reserve(self, reserve: Reserve) -> Self {
        Self { reserve, ..self }
    }

    fn allocate_shared(&self, name: &str, size: u64) -> Result<OwnedFd, MemoryError> {
        if self.reserve == Reserve::Now {
            check_available(size)?;
        }
        let memfd = create(name, MemfdFlags::empty()).map_err(|errno| MemoryError::System {
            call: "memfd_create",
            size,
            errno,
        })?;
        set_size(&memfd, size)?;
        if self.reserve == Reserve::Now {
            reserve(&memfd, size).map_err(|errno| MemoryError::Reserve { size, errno })?;
        }
        seal(&memfd, size)?;
        Ok(memfd)
    }

    /// Why transparent huge pages are out of reach on this machine, if they are.
    fn transparent_huge_refusal(&self) -> Option<FallbackReason> {
        match machine::shared_memory_huge_setting() {
            None => Some(FallbackReason::TransparentHugeUnknown),
            Some(setting) => judge_transparent_huge(setting, self.reserve),
        }
    }
}

impl RegionSource for Memfd {
    fn kind(&self) -> &'static str {
        "memfd"
    }

    fn allocate(&self, name: &str, size: u64) -> Result<Allocation, MemoryError> {
        check(name, size)?;
        let mut fallbacks = Vec::new();
        if let Pages::Huge { page_bytes } = self.pages {
            match allocate_huge(name, size, page_bytes)? {
                Ok(descriptor) => return Ok(Allocation { descriptor, size, pages: self.pages, fallbacks }),
                Err(reason) => fallbacks.push(PageFallback { asked: self.pages, reason }),
            }
        }
        let mut pages = Pages::Base;
        if self.pages != Pages::Base {
            match self.transparent_huge_refusal() {
                None => pages = Pages::TransparentHuge,
                Some(reason) => fallbacks.push(PageFallback { asked: Pages::TransparentHuge, reason }),
            }
        }
        Ok(Allocation { descriptor: self.allocate_shared(name, size)?, size, pages, fallbacks })
    }
}

/// The inner result is an error where smaller pages may still do.
fn allocate_huge(name: &str, size: u64, page_bytes: u64) -> Result<Result<OwnedFd, FallbackReason>, MemoryError> {
    // A logarithm of 0 would ask for the machine's default size instead of this one.
    if !page_bytes.is_power_of_two() || page_bytes == 1 {
        return Ok(Err(FallbackReason::NoSuchPool));
    }
    let size_flag = MemfdFlags::from_bits_retain(page_bytes.trailing_zeros() << HUGE_SHIFT);
    let memfd = match create(name, MemfdFlags::HUGETLB | size_flag) {
        Ok(memfd) => memfd,
        // ENODEV where there is no pool of this size, the others from a kernel without any (fs/hugetlbfs/inode.c).
        Err(Errno::NODEV | Errno::INVAL | Errno::NOSYS) => return Ok(Err(FallbackReason::NoSuchPool)),
        Err(errno) => return Err(MemoryError::System { call: "memfd_create", size, errno }),
    };
    let file_size = size.checked_next_multiple_of(page_bytes).ok_or(MemoryError::TooLarge { size })?;
    set_size(&memfd, file_size)?;
    match reserve(&memfd, file_size) {
        Ok(()) => {}
        Err(Errno::NOMEM | Errno::NOSPC) => {
            return Ok(Err(FallbackReason::PoolTooSmall { needed: file_size / page_bytes }));
        }
        Err(errno) => return Err(MemoryError::Reserve { size, errno }),
    }
    seal(&memfd, size)?;
    Ok(Ok(memfd))
}

pub(super) fn judge_transparent_huge(setting: String, reserve: Reserve) -> Option<FallbackReason> {
    match (setting.as_str(), reserve) {
        ("always" | "within_size" | "force", _) | ("advise", Reserve::OnTouch) => None,
        ("advise", Reserve::Now) => Some(FallbackReason::TransparentHugeOnTouchOnly),
        _ => Some(FallbackReason::TransparentHugeOff { setting }),
    }
}

/// A memfd without a size that can be sealed.
pub(crate) fn create(name: &str, pages: MemfdFlags) -> Result<OwnedFd, Errno> {
    create_sealable(pages, |flags| rustix::fs::memfd_create(name, flags))
}

/// Asks for memory that can be sealed and cannot be executed, the latter only where the kernel knows it (since 6.3).
/// Sealing is asked for in so many words both times: `MFD_NOEXEC_SEAL` implies it, and its fallback must not lose it.
pub(super) fn create_sealable(
    pages: MemfdFlags,
    create: impl Fn(MemfdFlags) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    match create(flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(flags),
        answer => answer,
    }
}

/// Sets the size before anything is reserved, since `within_size` huge pages are given only inside a file's size.
fn set_size(memfd: &OwnedFd, size: u64) -> Result<(), MemoryError> {
    rustix::fs::ftruncate(memfd, size).map_err(|errno| MemoryError::System { call: "ftruncate", size, errno })
}

fn reserve(memfd: &OwnedFd, size: u64) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(memfd, FallocateFlags::empty(), 0, size))
}

fn seal(memfd: &OwnedFd, size: u64) -> Result<(), MemoryError> {
    rustix::fs::fcntl_add_seals(memfd, REQUIRED_SEALS).map_err(|errno| MemoryError::System {
        call: "F_ADD_SEALS",
        size,
        errno,
    })
}
