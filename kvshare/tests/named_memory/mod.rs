//! Memory that a test can recognize among all that its process has open, since tests run side by side in one.

use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::OwnedFd;

/// A memfd of this name.
pub fn memfd(name: &str) -> OwnedFd {
    memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd can be made")
}

/// How many descriptors this process has open on memfds of this name.
pub fn open_descriptors(name: &str) -> usize {
    let link = std::path::PathBuf::from(format!("/memfd:{name} (deleted)"));
    std::fs::read_dir("/proc/self/fd")
        .expect("/proc is mounted")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| *target == link)
        .count()
}
