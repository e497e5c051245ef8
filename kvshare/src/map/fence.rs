//! Fences: work of a device on a dma-buf, which may not have finished yet.
//!
//! See Linux, Documentation/driver-api/dma-buf.rst and sync_file.rst.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};

use super::cpu_access::{DMA_BUF_SYNC_READ, DMA_BUF_SYNC_WRITE};
use super::{Access, MapError};
use crate::fd::{self, FileSystem};

/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE` (linux/dma-buf.h, since Linux 6.0).
const EXPORT_SYNC_FILE: Opcode = opcode::read_write::<SyncFile>(b'b', 2);
/// `DMA_BUF_IOCTL_IMPORT_SYNC_FILE` (likewise).
const IMPORT_SYNC_FILE: Opcode = opcode::write::<SyncFile>(b'b', 3);
/// `SYNC_IOC_FILE_INFO` (linux/sync_file.h).
const FILE_INFO: Opcode = opcode::read_write::<FileInfo>(b'>', 4);

/// `struct dma_buf_export_sync_file`, and `struct dma_buf_import_sync_file` alike (linux/dma-buf.h).
#[repr(C)]
struct SyncFile {
    flags: u32,
    fd: i32,
}

/// `struct sync_file_info` (linux/sync_file.h).
#[repr(C)]
#[derive(Default)]
struct FileInfo {
    name: [u8; 32],
    status: i32,
    flags: u32,
    num_fences: u32,
    pad: u32,
    sync_fence_info: u64,
}

/// Work of a device that may not have finished: a `sync_file`.
///
/// A provider whose device is still writing need not wait for it. It [attaches](Self::attach) the device's fence to the
/// region and exits: the fence stays with the dma-buf, whoever holds that, and the decoder's
/// [`begin_cpu_access`](super::MappedRegion::begin_cpu_access) waits for it, as its GPU does. Nothing has to be said in
/// the result line, and no descriptor has to come back.
///
/// ```no_run
/// # fn example(region: std::os::fd::OwnedFd, of_my_device: std::os::fd::OwnedFd) -> Result<(), kvshare::map::MapError> {
/// use kvshare::map::{Access, Fence};
///
/// // In the provider, whose device writes:
/// Fence::from_descriptor(of_my_device)?.attach(&region, Access::ReadWrite)?;
/// // In the decoder, which wants to hand the wait to its own device:
/// let finished = Fence::export(&region, Access::ReadOnly)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fence {
    file: OwnedFd,
}

impl Fence {
    /// Takes what must have finished before a dma-buf may be accessed: for reading, all devices' writes; for writing, all
    /// their work. Work that is added later is not part of it. A buffer that no device uses gives a fence that has
    /// finished.
    ///
    /// # Errors
    ///
    /// [`MapError::NoFences`] for any other memory.
    #[doc(alias = "DMA_BUF_IOCTL_EXPORT_SYNC_FILE")]
    pub fn export(dma_buf: impl AsFd, access: Access) -> Result<Self, MapError> {
        check_dma_buf(dma_buf.as_fd())?;
        let file = export(dma_buf.as_fd(), flags(access)).map_err(explain("DMA_BUF_IOCTL_EXPORT_SYNC_FILE"))?;
        Ok(Self { file })
    }

    /// Takes a descriptor for a fence.
    ///
    /// # Errors
    ///
    /// [`MapError::NotAFence`] where it is anything but a `sync_file`.
    pub fn from_descriptor(descriptor: OwnedFd) -> Result<Self, MapError> {
        match info(descriptor.as_fd()) {
            Ok(_) => Ok(Self { file: descriptor }),
            Err(_) => Err(MapError::NotAFence),
        }
    }

    /// Attaches the fence to a dma-buf: as a device's read or, with [`Access::ReadWrite`], its write. Whoever accesses the
    /// buffer then waits for it.
    ///
    /// # Errors
    ///
    /// [`MapError::NoFences`] for any other memory.
    #[doc(alias = "DMA_BUF_IOCTL_IMPORT_SYNC_FILE")]
    pub fn attach(&self, dma_buf: impl AsFd, access: Access) -> Result<(), MapError> {
        check_dma_buf(dma_buf.as_fd())?;
        let explain = explain("DMA_BUF_IOCTL_IMPORT_SYNC_FILE");
        import(dma_buf.as_fd(), self.file.as_fd(), flags(access)).map_err(explain)
    }

    /// Waits until the work has finished, until `deadline` at most.
    ///
    /// # Errors
    ///
    /// [`MapError::DeviceBusy`] when it has not, [`MapError::DeviceFailed`] when it failed.
    pub fn wait(&self, deadline: Instant) -> Result<(), MapError> {
        if !fd::ready(self.file.as_fd(), PollFlags::IN, deadline).map_err(MapError::system("poll"))? {
            return Err(MapError::DeviceBusy);
        }
        judge(info(self.file.as_fd()).map_err(MapError::system("SYNC_IOC_FILE_INFO"))?.status)
    }
}

/// What the status of a fence says: 1 is success, a negative number an error (linux/sync_file.h).
pub(super) fn judge(status: i32) -> Result<(), MapError> {
    match status {
        0 => Err(MapError::DeviceBusy),
        1.. => Ok(()),
        // The kernel's error numbers end at 4095 (linux/err.h, MAX_ERRNO).
        -4095..0 => Err(MapError::DeviceFailed { errno: Errno::from_raw_os_error(-status) }),
        _ => Err(MapError::DeviceFailed { errno: Errno::IO }),
    }
}

impl AsFd for Fence {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Fence> for OwnedFd {
    fn from(fence: Fence) -> Self {
        fence.file
    }
}

fn flags(access: Access) -> u32 {
    let flags = match access {
        Access::ReadOnly => DMA_BUF_SYNC_READ,
        Access::ReadWrite => DMA_BUF_SYNC_READ | DMA_BUF_SYNC_WRITE,
    };
    flags as u32
}

/// Refuses any other memory, whose driver could give an operation of the same number another meaning.
fn check_dma_buf(descriptor: BorrowedFd<'_>) -> Result<(), MapError> {
    let file_system = FileSystem::of(descriptor).map_err(MapError::system("fstatfs"))?;
    if file_system.is_dma_buf { Ok(()) } else { Err(MapError::NoFences) }
}

/// What an answer of a dma-buf means, given that the arguments were right: a kernel before 6.0 knows no fences of it.
fn explain(call: &'static str) -> impl Fn(Errno) -> MapError {
    move |errno| match errno {
        Errno::NOTTY => MapError::NoFences,
        errno => MapError::System { call, errno },
    }
}

#[allow(unsafe_code)]
fn export(dma_buf: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd, Errno> {
    let mut argument = SyncFile { flags, fd: -1 };
    // SAFETY: operation and argument are those of linux/dma-buf.h: the kernel reads and writes one structure of that size.
    // No other process sees a change.
    unsafe { rustix::ioctl::ioctl(dma_buf, Updater::<{ EXPORT_SYNC_FILE }, SyncFile>::new(&mut argument)) }?;
    // SAFETY: the call succeeded, and what answered is the kernel, since the descriptor was checked to be a dma-buf: it has
    // just opened this descriptor for us, and nobody else in this process knows it. Other processes have no access to our
    // descriptor table.
    Ok(unsafe { OwnedFd::from_raw_fd(argument.fd) })
}

#[allow(unsafe_code)]
fn import(dma_buf: BorrowedFd<'_>, fence: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    let argument = SyncFile { flags, fd: fence.as_raw_fd() };
    // SAFETY: operation and argument are those of linux/dma-buf.h: the kernel reads one structure of that size and writes
    // none. Other processes that access the buffer wait for the fence, which is what it is for.
    unsafe { rustix::ioctl::ioctl(dma_buf, Setter::<{ IMPORT_SYNC_FILE }, SyncFile>::new(argument)) }
}

#[allow(unsafe_code)]
fn info(fence: BorrowedFd<'_>) -> Result<FileInfo, Errno> {
    let mut info = FileInfo::default();
    // SAFETY: operation and argument are those of linux/sync_file.h: the kernel writes one structure of that size, and no
    // list of fences, since the structure has room for none. A descriptor of another kind, which a peer may have sent,
    // refuses the operation, whose number says the same size. No other process sees a change.
    unsafe { rustix::ioctl::ioctl(fence, Updater::<{ FILE_INFO }, FileInfo>::new(&mut info)) }?;
    Ok(info)
}
