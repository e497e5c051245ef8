//! The system's own answers, for what the library refuses before it asks.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;

use kvshare::memory::{Memfd, Pages, RegionSource};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};
use rustix::mm::{MapFlags, ProtFlags};

/// `DMA_BUF_IOCTL_SYNC`, `DMA_BUF_SET_NAME_B`, `DMA_BUF_IOCTL_EXPORT_SYNC_FILE` (linux/dma-buf.h).
pub const SYNC: Opcode = opcode::write::<u64>(b'b', 0);
const SET_NAME: Opcode = opcode::write::<u64>(b'b', 1);
const EXPORT_SYNC_FILE: Opcode = opcode::read_write::<[u32; 2]>(b'b', 2);

pub const SYNC_READ: u64 = 1;
pub const SYNC_WRITE: u64 = 2;
pub const SYNC_END: u64 = 4;

/// What mmap answers.
pub fn mmap(memory: impl AsFd, length: u64, write: bool, shared: bool, offset: u64) -> Result<(), Errno> {
    let protection = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let length = length as usize;
    // SAFETY: the kernel picks a free range, which is given back at once and which nothing was pointed at. Other processes
    // are not affected.
    unsafe {
        let start = rustix::mm::mmap(ptr::null_mut(), length, protection, flags, memory, offset)?;
        rustix::mm::munmap(start, length)
    }
}

/// The first byte of a page that is mapped at its offset.
pub fn first_byte(memory: impl AsFd, offset: u64) -> Result<u8, Errno> {
    // SAFETY: the kernel picks a free range, which is read once and given back, and which nothing else points at. Another
    // process may write the byte meanwhile, so it is read as a volatile one.
    unsafe {
        let start = rustix::mm::mmap(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, memory, offset)?;
        let byte = start.cast::<u8>().read_volatile();
        rustix::mm::munmap(start, 4096)?;
        Ok(byte)
    }
}

/// The first byte of the page at `offset`, mapped with all before it, of which it is then parted by another protection.
pub fn first_byte_after_a_split(memory: impl AsFd, offset: u64) -> Result<u8, Errno> {
    let length = offset as usize + 4096;
    // SAFETY: as in `first_byte`; what loses its protection is not accessed.
    unsafe {
        let start = rustix::mm::mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, memory, 0)?;
        rustix::mm::mprotect(start, offset as usize, rustix::mm::MprotectFlags::empty())?;
        let byte = start.cast::<u8>().add(offset as usize).read_volatile();
        rustix::mm::munmap(start, length)?;
        Ok(byte)
    }
}

/// What `DMA_BUF_IOCTL_SYNC` answers.
pub fn sync(memory: impl AsFd, flags: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads one number, as linux/dma-buf.h says; memory is not changed, here or in other processes.
    unsafe { rustix::ioctl::ioctl(memory, Setter::<{ SYNC }, u64>::new(flags)) }
}

/// What `DMA_BUF_SET_NAME_B` answers to a name of 31 bytes, whose last is not zero.
pub fn set_name(memory: impl AsFd, name: &[u8; 31]) -> Result<(), Errno> {
    let mut bytes = [0; 32];
    bytes[..31].copy_from_slice(name);
    // SAFETY: the kernel reads a string that ends with a zero and outlives the call; other processes see the new name.
    unsafe { rustix::ioctl::ioctl(memory, Setter::<{ SET_NAME }, [u8; 32]>::new(bytes)) }
}

/// What `DMA_BUF_IOCTL_EXPORT_SYNC_FILE` answers where no descriptor is made.
pub fn export_sync_file(memory: impl AsFd) -> Result<(), Errno> {
    let mut argument = [SYNC_READ as u32, 0];
    // SAFETY: the kernel reads and writes two numbers, as linux/dma-buf.h says. Other processes are not affected.
    unsafe { rustix::ioctl::ioctl(memory, Updater::<{ EXPORT_SYNC_FILE }, [u32; 2]>::new(&mut argument)) }
}

/// A memfd of our own that can be read only.
pub fn read_only_memfd(size: u64) -> OwnedFd {
    let memory = Memfd::new().allocate("read-only", size).expect("memory").descriptor;
    reopened(&memory).expect("opened again")
}

/// The same of huge pages, as long as its last one.
pub fn read_only_huge_memfd(size: u64) -> OwnedFd {
    let source = Memfd::new().pages(Pages::HUGE_2_MIB);
    let memory = source.allocate("read-only", size.next_multiple_of(2 << 20)).expect("memory");
    assert_eq!(memory.pages, Pages::HUGE_2_MIB, "the pool has enough");
    reopened(&memory.descriptor).expect("opened again")
}

/// A descriptor's file, opened once more, for reading.
pub fn reopened(descriptor: impl AsFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Where a descriptor's link in `/proc` points.
pub fn link(descriptor: impl AsFd) -> String {
    let path = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    fs::read_link(path).expect("/proc is mounted").to_string_lossy().into_owned()
}

/// The lines of a descriptor's fdinfo.
pub fn fdinfo(descriptor: impl AsFd) -> String {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd());
    fs::read_to_string(path).expect("/proc is mounted")
}

/// Whether this process has a descriptor whose link names `name`.
pub fn holds(name: &str) -> bool {
    let links = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|link| link.to_string_lossy().contains(name))
}

/// Whether the kernel still has a dma-buf called `name`, for any process; `None` where debugfs does not tell.
pub fn kernel_keeps(name: &str) -> Option<bool> {
    Some(fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").ok()?.contains(name))
}
