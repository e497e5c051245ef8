//! Waiting for a descriptor, never longer than until a deadline.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Waits until `descriptor` is ready for `events`, has failed or was hung up; `false` if the deadline passed first.
///
/// Looks at least once, also when the deadline has already passed.
pub(crate) fn ready(descriptor: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, events)], Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
