//! A way to stop what a handoff waits for, from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Once cancelled, every wait that was given this ends at once. Clones cancel together.
#[derive(Clone, Debug)]
pub struct Cancel {
    event: Arc<OwnedFd>,
}

impl Cancel {
    /// Not cancelled yet.
    ///
    /// # Errors
    /// The descriptor table is full.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event: Arc::new(event) })
    }

    /// Cancels, for good.
    pub fn cancel(&self) {
        // It fails only when the counter is full, and then it is cancelled already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Cancel {
    /// Readable once cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
