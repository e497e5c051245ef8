//! The sizes of pages that memory can be made of, and why one asked for was not got.

use std::fmt;

/// The pages that a region's memory is made of.
///
/// Larger pages are faulted in faster: the first touch of 1 GiB by a second process takes about 100 ms with pages of
/// 4 KiB and 3.4 ms with pages of 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pages {
    /// The machine's base pages, 4 KiB on most.
    #[default]
    Base,
    /// Base pages that the kernel joins into huge ones where it can (transparent huge pages).
    TransparentHuge,
    /// Pages from a pool that the administrator set aside (`hugetlb`), each of `page_bytes` bytes.
    Huge {
        /// The size of one page, a power of two that the kernel has a pool for: see `/sys/kernel/mm/hugepages`.
        page_bytes: u64,
    },
}

impl Pages {
    /// Pages of 2 MiB from the pool, the usual huge page of x86-64 and of arm64 with 4 KiB base pages.
    pub const HUGE_2_MIB: Self = Self::Huge { page_bytes: 2 << 20 };
}

impl fmt::Display for Pages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => formatter.write_str("base pages"),
            Self::TransparentHuge => formatter.write_str("transparent huge pages"),
            Self::Huge { page_bytes } if page_bytes % 1024 == 0 => write!(formatter, "{} KiB pages", page_bytes / 1024),
            Self::Huge { page_bytes } => write!(formatter, "{page_bytes} byte pages"),
        }
    }
}

/// Pages that were asked for and not got.
///
/// Displays as a line for a log: `transparent huge pages were not to be had: ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageFallback {
    /// What was asked for. The next smaller pages were tried instead.
    pub asked: Pages,
    /// Why it was not to be had.
    pub reason: FallbackReason,
}

impl fmt::Display for PageFallback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} were not to be had: {}", self.asked, self.reason)
    }
}

/// Why pages of a size were not to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackReason {
    /// The kernel has no pool of pages of this size.
    #[error("this kernel has no pool for pages of that size; /sys/kernel/mm/hugepages lists those it has")]
    NoSuchPool,
    /// The pool has too few free pages.
    #[error("{needed} free pages are needed and the pool has fewer; raise nr_hugepages in /sys/kernel/mm/hugepages")]
    PoolTooSmall {
        /// How many pages the region takes.
        needed: u64,
    },
    /// The kernel was built without transparent huge pages, or `/sys` is not mounted.
    #[error("/sys/kernel/mm/transparent_hugepage/shmem_enabled cannot be read")]
    TransparentHugeUnknown,
    /// The administrator turned transparent huge pages off for shared memory, which is the usual default.
    #[error("/sys/kernel/mm/transparent_hugepage/shmem_enabled is {setting:?}; set it to \"advise\" or \"always\"")]
    TransparentHugeOff {
        /// The setting in force, `never` or `deny`.
        setting: String,
    },
    /// With the setting `advise` the kernel joins only pages that are first touched through an advised mapping, and
    /// memory that is reserved now is touched before there is one.
    #[error(
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled is \"advise\", which leaves memory that is reserved at \
         once in base pages; reserve it on touch, or set it to \"always\""
    )]
    TransparentHugeOnTouchOnly,
}
