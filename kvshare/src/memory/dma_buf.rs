//! What all sources of dma-bufs share: opening the device that makes them, and giving a buffer its name.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, opcode};

use super::{Allocation, MemoryError, Pages};
use crate::fd::dma_buf_size;

/// `DMA_BUF_SET_NAME_B` (linux/dma-buf.h). Its number speaks of a 64-bit argument; what the kernel takes is a string
/// (drivers/dma-buf/dma-buf.c, `dma_buf_set_name`).
const DMA_BUF_SET_NAME: Opcode = opcode::write::<u64>(b'b', 1);

/// `DMA_BUF_NAME_LEN` (linux/dma-buf.h): a dma-buf's name with its final zero.
const NAME_BYTES: usize = 32;

/// Opens a device. `kind` is what it makes, for the error.
pub(super) fn open(path: &Path, access: OFlags, kind: &'static str) -> Result<File, MemoryError> {
    match rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => Ok(device.into()),
        Err(errno) => Err(MemoryError::Device { path: path.to_owned(), kind, errno }),
    }
}

/// Names a fresh dma-buf, and makes sure that it has the size that was asked for.
pub(super) fn finish(dma_buf: OwnedFd, kind: &'static str, name: &str, size: u64) -> Result<Allocation, MemoryError> {
    let held =
        dma_buf_size(dma_buf.as_fd()).map_err(|errno| MemoryError::DmaBuf { kind, call: "lseek", size, errno })?;
    if held < size {
        return Err(MemoryError::Short { kind, size, held });
    }
    // The name is for people; a kernel before 5.3 has none to give.
    let _ = set_name(&dma_buf, padded(name));
    Ok(Allocation { descriptor: dma_buf, size, pages: Pages::Base, fallbacks: Vec::new() })
}

/// As much of a name as a dma-buf can have, in whole characters, with zeros to its end.
pub(super) fn padded(name: &str) -> [u8; NAME_BYTES] {
    let end = (0..=name.len().min(NAME_BYTES - 1)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    let mut padded = [0; NAME_BYTES];
    padded[..end].copy_from_slice(&name.as_bytes()[..end]);
    padded
}

#[allow(unsafe_code)]
fn set_name(dma_buf: &OwnedFd, name: [u8; NAME_BYTES]) -> Result<(), Errno> {
    // SAFETY: the kernel reads a string that ends with a zero and lives until the call returns, and writes nothing. Other
    // holders of the buffer see its new name, and nothing else.
    unsafe { rustix::ioctl::ioctl(dma_buf, Setter::<{ DMA_BUF_SET_NAME }, [u8; NAME_BYTES]>::new(name)) }
}
