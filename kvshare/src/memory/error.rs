//! What can go wrong while memory is allocated.

use rustix::io::Errno;

use crate::layout::ALIGNMENT;

/// Why a region could not be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region of no bytes was asked for.
    #[error("a region of 0 bytes was asked for; the smallest has {ALIGNMENT}")]
    Empty,
    /// The size is not a multiple of [`ALIGNMENT`].
    #[error("a region of {size} bytes was asked for; round it up to a multiple of {ALIGNMENT}")]
    Unaligned {
        /// The size asked for, in bytes.
        size: u64,
    },
    /// The size is more than a process can address.
    #[error("a region of {size} bytes was asked for; a process can address at most {} in one piece", isize::MAX)]
    TooLarge {
        /// The size asked for, in bytes.
        size: u64,
    },
    /// The name is too long, or has a zero byte in it.
    #[error("{name:?} cannot name a memfd; a name has at most 249 bytes, none of them zero")]
    Name {
        /// The name as it was given.
        name: String,
    },
    /// The machine does not have the memory now.
    #[error(
        "a region of {size} bytes was asked for and the machine has {available} bytes available; take a smaller \
         context, or free memory"
    )]
    NotEnoughMemory {
        /// The size asked for, in bytes.
        size: u64,
        /// What `MemAvailable` in `/proc/meminfo` said, in bytes.
        available: u64,
    },
    /// The kernel refused to reserve the memory.
    #[error("{size} bytes of memory could not be reserved: {errno}; the machine or a memory cgroup is at its limit")]
    Reserve {
        /// The size asked for, in bytes.
        size: u64,
        /// What `fallocate` answered.
        errno: Errno,
    },
    /// A system call failed that seldom does.
    #[error("{call} failed for a memfd of {size} bytes: {errno}")]
    System {
        /// The system call's name.
        call: &'static str,
        /// The size asked for, in bytes.
        size: u64,
        /// What it answered.
        errno: Errno,
    },
}
