//! Memory that a test can recognize among all that its process has open, since tests run side by side in one.

use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::OwnedFd;

/// A memfd of this name.
pub fn memfd(name: &str) -> OwnedFd {
    memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd can be made")
}
