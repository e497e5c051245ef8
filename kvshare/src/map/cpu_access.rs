//! The window in which the CPU may access a dma-buf.
//!
//! See Linux, Documentation/driver-api/dma-buf.rst, "CPU Access to DMA Buffer Objects" and "Implicit Fence Poll
//! Support".

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, opcode};

use super::{Access, MapError};
use crate::fd;

/// How long [`MappedRegion::begin_cpu_access`](super::MappedRegion::begin_cpu_access) waits for devices. The kernel
/// itself would wait for ever for work that was announced and never submitted.
pub const CPU_ACCESS_TIMEOUT: Duration = Duration::from_secs(10);

/// `DMA_BUF_IOCTL_SYNC` and its flags (linux/dma-buf.h); the argument is a `struct dma_buf_sync`, one 64-bit number.
const DMA_BUF_IOCTL_SYNC: Opcode = opcode::write::<u64>(b'b', 0);
pub(super) const DMA_BUF_SYNC_READ: u64 = 1;
pub(super) const DMA_BUF_SYNC_WRITE: u64 = 2;
const DMA_BUF_SYNC_START: u64 = 0;
const DMA_BUF_SYNC_END: u64 = 4;

/// The CPU's access to a region, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the access ends when this is dropped"]
pub struct CpuAccess {
    /// The dma-buf whose access is open; none for memory that needs no such thing.
    open: Option<Arc<OwnedFd>>,
    direction: u64,
}

impl CpuAccess {
    pub(super) fn unneeded() -> Self {
        Self { open: None, direction: 0 }
    }

    pub(super) fn begin(dma_buf: Arc<OwnedFd>, access: Access, deadline: Instant) -> Result<Self, MapError> {
        let (direction, finished) = match access {
            // Readers wait for the devices that write, writers for all.
            Access::ReadOnly => (DMA_BUF_SYNC_READ, PollFlags::IN),
            Access::ReadWrite => (DMA_BUF_SYNC_READ | DMA_BUF_SYNC_WRITE, PollFlags::OUT),
        };
        // The kernel would wait without end for work that was announced and never finishes, so we wait first. Work that
        // somebody adds in the moment between is waited for by the kernel.
        if !fd::ready(dma_buf.as_fd(), finished, deadline).map_err(MapError::system("poll"))? {
            return Err(MapError::DeviceBusy);
        }
        sync(&dma_buf, DMA_BUF_SYNC_START | direction, deadline)?;
        Ok(Self { open: Some(dma_buf), direction })
    }

    /// Ends the access, and says whether that worked.
    ///
    /// # Errors
    ///
    /// What the kernel answered. Devices may not see what was written then.
    pub fn end(mut self) -> Result<(), MapError> {
        self.end_once()
    }

    fn end_once(&mut self) -> Result<(), MapError> {
        match self.open.take() {
            Some(dma_buf) => sync(&dma_buf, DMA_BUF_SYNC_END | self.direction, Instant::now() + CPU_ACCESS_TIMEOUT),
            None => Ok(()),
        }
    }
}

impl Drop for CpuAccess {
    fn drop(&mut self) {
        // Nobody is left to tell; whoever wants to know calls `end`.
        let _ = self.end_once();
    }
}

fn sync(dma_buf: &OwnedFd, flags: u64, deadline: Instant) -> Result<(), MapError> {
    retried(deadline, || sync_once(dma_buf, flags))
}

/// Asks again as often as the kernel was interrupted, or wants to be asked again (linux/dma-buf.h).
pub(super) fn retried(deadline: Instant, mut ask: impl FnMut() -> Result<(), Errno>) -> Result<(), MapError> {
    loop {
        match ask() {
            Err(Errno::INTR | Errno::AGAIN) if Instant::now() < deadline => {}
            // It waits for a device, whichever way it says so.
            Err(Errno::INTR | Errno::AGAIN) => return Err(MapError::DeviceBusy),
            answer => return answer.map_err(MapError::system("DMA_BUF_IOCTL_SYNC")),
        }
    }
}

#[allow(unsafe_code)]
fn sync_once(dma_buf: &OwnedFd, flags: u64) -> Result<(), Errno> {
    // SAFETY: the operation and its argument are those of linux/dma-buf.h: the kernel reads one 64-bit number and
    // writes none. It orders this process's accesses with those of devices and changes no mapping, here or elsewhere.
    unsafe { rustix::ioctl::ioctl(dma_buf.as_fd(), Setter::<{ DMA_BUF_IOCTL_SYNC }, u64>::new(flags)) }
}
