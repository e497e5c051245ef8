//! What can go wrong while memory is allocated.

use std::path::PathBuf;

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
    #[error("{name:?} cannot name a region; a name has at most 249 bytes, none of them zero")]
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
    /// The device that makes this kind of memory cannot be opened.
    #[error("{}, which makes {kind} memory, cannot be opened: {errno}; {}", path.display(), remedy(kind, *errno))]
    Device {
        /// The device's path.
        path: PathBuf,
        /// What it makes, as [`RegionSource::kind`](super::RegionSource::kind) says it.
        kind: &'static str,
        /// What `open` answered.
        errno: Errno,
    },
    /// A udmabuf over the kernel's limit.
    #[error(
        "a udmabuf of {size} bytes was asked for and the limit is {limit_mib} MiB; raise it in \
         /sys/module/udmabuf/parameters/size_limit_mb (at boot: udmabuf.size_limit_mb), or use several smaller regions"
    )]
    UdmabufTooLarge {
        /// The size asked for, in bytes.
        size: u64,
        /// The limit in force, in MiB.
        limit_mib: u64,
    },
    /// A udmabuf of more parts than the kernel allows.
    #[error(
        "a udmabuf of {count} parts was asked for, and the limit is {limit}; have the administrator raise \
         /sys/module/udmabuf/parameters/list_limit (at boot: udmabuf.list_limit), or use fewer parts"
    )]
    TooManyParts {
        /// How many parts were given.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A part of a udmabuf is no memfd, or one with the wrong seals.
    #[error("part {index} of a udmabuf must be a memfd with F_SEAL_SHRINK and without F_SEAL_WRITE")]
    PartSeals {
        /// Which part, counted from 0.
        index: usize,
    },
    /// A part of a udmabuf is not whole pages of its memfd.
    #[error(
        "part {index} of a udmabuf, at offset {offset} of {size} bytes, is not whole pages of {page} bytes in its memfd \
         of {held} bytes"
    )]
    Part {
        /// Which part, counted from 0.
        index: usize,
        /// Where it starts in its memfd, in bytes.
        offset: u64,
        /// Its bytes.
        size: u64,
        /// How many bytes its memfd has.
        held: u64,
        /// The machine's page size, in bytes.
        page: u64,
    },
    /// The name of a DMA heap that cannot be.
    #[error("{name:?} cannot be a DMA heap; the heaps of this machine are the files in /dev/dma_heap")]
    HeapName {
        /// The name as it was given.
        name: String,
    },
    /// A dumb buffer that the kernel cannot count in 32 bits.
    #[error("a dumb buffer of {size} bytes was asked for; it has at most {limit}: use several smaller regions")]
    DumbBufferTooLarge {
        /// The size asked for, in bytes.
        size: u64,
        /// The most that can be, in bytes.
        limit: u64,
    },
    /// The buffer that was got is smaller than the one asked for.
    #[error("{size} bytes of {kind} memory were asked for, and the driver made a buffer of {held}; use another device")]
    Short {
        /// What kind of memory, as [`RegionSource::kind`](super::RegionSource::kind) says it.
        kind: &'static str,
        /// The size asked for, in bytes.
        size: u64,
        /// The size got, in bytes.
        held: u64,
    },
    /// What was to be imported into a DRM device is no dma-buf.
    #[error("only a dma-buf can be imported into {}, and this descriptor is none", node.display())]
    ImportOfOther {
        /// The device's node.
        node: PathBuf,
    },
    /// A DRM device does not take a dma-buf.
    #[error("{} does not import this dma-buf: {errno}; does the device reach that kind of memory?", node.display())]
    Import {
        /// The device's node.
        node: PathBuf,
        /// What `DRM_IOCTL_PRIME_FD_TO_HANDLE` answered.
        errno: Errno,
    },
    /// The driver refused to make a dma-buf.
    #[error("{call} failed for {size} bytes of {kind} memory: {errno}; {}", refusal(kind, *errno))]
    DmaBuf {
        /// What kind of memory, as [`RegionSource::kind`](super::RegionSource::kind) says it.
        kind: &'static str,
        /// The ioctl's or system call's name.
        call: &'static str,
        /// The size asked for, in bytes.
        size: u64,
        /// What it answered.
        errno: Errno,
    },
    /// A system call failed that seldom does.
    #[error("{call} failed for a memfd of {size} bytes: {errno}; {}", refusal("memfd", *errno))]
    System {
        /// The system call's name.
        call: &'static str,
        /// The size asked for, in bytes.
        size: u64,
        /// What it answered.
        errno: Errno,
    },
}

const MORE_DESCRIPTORS: &str = "raise the limit of open descriptors (ulimit -n)";

/// What to do where a device cannot be opened.
fn remedy(kind: &str, errno: Errno) -> &'static str {
    match (errno, kind) {
        (Errno::ACCESS | Errno::PERM, _) => "join the group that owns it, or run as its owner",
        (Errno::MFILE | Errno::NFILE, _) => MORE_DESCRIPTORS,
        (Errno::NOENT, "udmabuf") => "load the kernel's module udmabuf, or use another kind of memory",
        (Errno::NOENT, "dma-heap") => "the heaps of this machine are the files in /dev/dma_heap",
        (Errno::NOENT, "drm") => "the devices of this machine are the card nodes in /dev/dri",
        _ => "use another kind of memory",
    }
}

/// What to do where a device, or the kernel, does not make the memory.
fn refusal(kind: &str, errno: Errno) -> &'static str {
    match (errno, kind) {
        // A render node refuses to make dumb buffers.
        (Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::ACCESS | Errno::PERM, "drm") => {
            "give a card node whose driver makes dumb buffers: one of /dev/dri/card*"
        }
        (Errno::NOMEM | Errno::NOSPC, _) => "free memory, or take a smaller context",
        (Errno::MFILE | Errno::NFILE, _) => MORE_DESCRIPTORS,
        (Errno::ACCESS | Errno::PERM, _) => "it is not allowed here; ask who confined this program",
        (_, "memfd") => "the kernel's log may say why (dmesg)",
        _ => "the kernel's log may say why (dmesg); else use another kind of memory",
    }
}
