//! Waiting for a descriptor, never longer than until a deadline.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The descriptor is ready, has failed or was hung up.
    Ready,
    /// The deadline passed.
    Late,
    /// It was stopped.
    Stopped,
}

/// Waits until `descriptor` is ready for `events`, has failed or was hung up; `false` if the deadline passed first.
///
/// Looks at least once, also when the deadline has already passed.
pub(crate) fn ready(descriptor: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> Result<bool> {
    Ok(ready_unless(descriptor, events, deadline, None)? == Waited::Ready)
}

/// The same, ended early once `stop` is readable. A descriptor that is ready then is ready all the same.
pub(crate) fn ready_unless(
    descriptor: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Instant,
    stop: Option<BorrowedFd<'_>>,
) -> Result<Waited> {
    // Without a stop, the second place is filled and not looked at.
    let mut sources = [(descriptor, events), (stop.unwrap_or(descriptor), PollFlags::IN)]
        .map(|(source, events)| PollFd::from_borrowed_fd(source, events));
    let sources = if stop.is_some() { &mut sources[..] } else { &mut sources[..1] };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(sources, Some(&timeout)) {
            Ok(0) => return Ok(Waited::Late),
            Ok(_) if !sources[0].revents().is_empty() => return Ok(Waited::Ready),
            Ok(_) => return Ok(Waited::Stopped),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
