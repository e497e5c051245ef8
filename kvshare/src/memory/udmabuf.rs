//! Memfds as a dma-buf (Linux, drivers/dma-buf/udmabuf.c and linux/udmabuf.h).

use std::ffi::c_void;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::str::FromStr;

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::{MapFlags, ProtFlags};

use super::request::check;
use super::{Allocation, Memfd, MemoryError, RegionSource, dma_buf};

const KIND: &str = "udmabuf";
const DEVICE: &str = "/dev/udmabuf";

/// `UDMABUF_CREATE_LIST` (linux/udmabuf.h); the argument is a head of two 32-bit numbers, flags and count, with an item
/// of three 64-bit ones for each part after it: the memfd (its upper half unused), offset and size.
const UDMABUF_CREATE_LIST: Opcode = opcode::write::<[u32; 2]>(b'u', 0x43);
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// The most parts that one buffer is made of, unless the module's parameter `list_limit` says otherwise (Linux,
/// drivers/dma-buf/udmabuf.c).
const PARTS_MAX: usize = 1024;

/// Allocates regions as dma-bufs over sealed memfds, which any machine with `/dev/udmabuf` can make. No device is
/// needed, and any that imports dma-bufs can use them.
///
/// The kernel pins their pages, so it limits their size: to 64 MiB unless the administrator has raised the module's
/// parameter `size_limit_mb`. Allocate several regions, or have it raised.
///
/// ```no_run
/// use kvshare::memory::{RegionSource, Udmabuf};
///
/// let region = Udmabuf::new().allocate("cache-0", 32 << 20)?;
/// # Ok::<(), kvshare::memory::MemoryError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Udmabuf {}

/// A part of a memfd that a [`Udmabuf`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct UdmabufPart<'a> {
    /// The memfd. It must be sealed against shrinking and not against writing.
    pub memfd: BorrowedFd<'a>,
    /// Where the part starts, in bytes; a multiple of the page size.
    pub offset: u64,
    /// Its bytes; a multiple of the page size that is not 0.
    pub size: u64,
}

impl Udmabuf {
    /// A source of dma-bufs over memfds of their own.
    pub const fn new() -> Self {
        Self {}
    }

    /// Makes one dma-buf of parts of memfds that exist already, one after the other and without copying.
    ///
    /// The pages stay the memfds' as well: what is written to one shows in the other. A hole that is punched into a memfd
    /// (`FALLOC_FL_PUNCH_HOLE`) takes the pages out of it, not out of the dma-buf, and from then on the two differ
    /// without an error.
    ///
    /// # Errors
    ///
    /// A part that is no part of such a memfd, more parts or bytes than the kernel allows, or what it answered.
    pub fn join(&self, name: &str, parts: &[UdmabufPart<'_>]) -> Result<Allocation, MemoryError> {
        let size = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.size));
        let size = size.ok_or(MemoryError::TooLarge { size: u64::MAX })?;
        check(name, size)?;
        check_limit(size)?;
        let limit = parameter("list_limit").unwrap_or(PARTS_MAX);
        if parts.len() > limit {
            return Err(MemoryError::TooManyParts { count: parts.len(), limit });
        }
        for (index, part) in parts.iter().enumerate() {
            check_part(index, part)?;
        }
        let device = dma_buf::open(Path::new(DEVICE), OFlags::RDWR, KIND)?;
        let refused = |call| move |errno| MemoryError::DmaBuf { kind: KIND, call, size, errno };
        for part in parts {
            touch(part).map_err(refused("mmap"))?;
        }
        let dma_buf = create(device.as_fd(), parts).map_err(refused("UDMABUF_CREATE_LIST"))?;
        dma_buf::finish(dma_buf, KIND, name, size)
    }
}

impl RegionSource for Udmabuf {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn allocate(&self, name: &str, size: u64) -> Result<Allocation, MemoryError> {
        check(name, size)?;
        // What the kernel will refuse takes no memory first.
        check_limit(size)?;
        let memory = Memfd::new().allocate(name, size)?;
        self.join(name, &[UdmabufPart { memfd: memory.descriptor.as_fd(), offset: 0, size }])
    }
}

/// The kernel answers `EINVAL` to a buffer over its limit, as it does to much else.
fn check_limit(size: u64) -> Result<(), MemoryError> {
    match size_limit_mib() {
        Some(limit_mib) if size > limit_mib.saturating_mul(1 << 20) => {
            Err(MemoryError::UdmabufTooLarge { size, limit_mib })
        }
        _ => Ok(()),
    }
}

fn size_limit_mib() -> Option<u64> {
    parameter("size_limit_mb")
}

/// A parameter of the kernel's module, where it tells them.
fn parameter<T: FromStr>(name: &str) -> Option<T> {
    fs::read_to_string(format!("/sys/module/udmabuf/parameters/{name}")).ok()?.trim().parse().ok()
}

fn check_part(index: usize, part: &UdmabufPart<'_>) -> Result<(), MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(part.memfd).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) || seals.contains(SealFlags::WRITE) {
        return Err(MemoryError::PartSeals { index });
    }
    let page = rustix::param::page_size() as u64;
    let held = rustix::fs::fstat(part.memfd).map_or(0, |status| u64::try_from(status.st_size).unwrap_or(0));
    let aligned = part.offset.is_multiple_of(page) && part.size.is_multiple_of(page) && part.size > 0;
    match part.offset.checked_add(part.size) {
        Some(end) if aligned && end <= held => Ok(()),
        _ => Err(MemoryError::Part { index, offset: part.offset, size: part.size, held, page }),
    }
}

/// Has the kernel clear every page of the part that nobody has touched yet.
///
/// A page that `fallocate` took is cleared when it is first mapped, and udmabuf pins it as it is (seen on Linux 6.12). Its
/// bytes would be what the kernel had there before, and what is written through the dma-buf would be lost when somebody maps
/// the memfd later.
#[allow(unsafe_code)]
fn touch(part: &UdmabufPart<'_>) -> Result<(), Errno> {
    let length = usize::try_from(part.size).map_err(|_| Errno::NOMEM)?;
    let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
    // SAFETY: the kernel picks a range that is free, so no existing mapping changes, and nothing is read through this one.
    // The seals keep other processes from truncating the memfd; what they write to it stays as they wrote it.
    let start = unsafe { rustix::mm::mmap(ptr::null_mut(), length, protection, flags, part.memfd, part.offset) }?;
    // SAFETY: the range is the one just mapped, and nothing points into it. Other processes' mappings are not affected.
    unsafe { rustix::mm::munmap(start, length) }
}

#[allow(unsafe_code)]
fn create(device: BorrowedFd<'_>, parts: &[UdmabufPart<'_>]) -> Result<OwnedFd, Errno> {
    let mut words = vec![pair(UDMABUF_FLAGS_CLOEXEC, parts.len() as u32)];
    for part in parts {
        words.extend([pair(part.memfd.as_raw_fd() as u32, 0), part.offset, part.size]);
    }
    // SAFETY: the operation and its argument are those of linux/udmabuf.h: the kernel reads the head and as many items
    // as it counts, all of which `words` holds, and writes none. It pins pages of the memfds and changes no mapping;
    // another process that holds a memfd keeps its own view of it.
    unsafe { rustix::ioctl::ioctl(device, CreateList { words }) }
}

/// Two 32-bit numbers as they lie in memory, the first one first.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

struct CreateList {
    words: Vec<u64>,
}

// SAFETY: the operation code tells that the kernel only reads, the pointer is to words that live as long as the value, and
// the kernel's answer to it is a descriptor. No other process has a part in the call.
#[allow(unsafe_code)]
unsafe impl Ioctl for CreateList {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        UDMABUF_CREATE_LIST
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: the kernel has just opened the descriptor for us, and nobody else in this process knows it. Other
        // processes have no access to our descriptor table.
        Ok(unsafe { OwnedFd::from_raw_fd(answer) })
    }
}
