//! Work that blocks, for a caller who may stop waiting for it.

use std::{io, thread};

use kvshare::handoff::Cancel;
use tokio::sync::oneshot;

/// Cancels when it is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// What work on another thread will come to. The work is cancelled when this is dropped.
pub(super) struct Outcome<T> {
    _cancelled_with_us: CancelOnDrop,
    receiver: oneshot::Receiver<T>,
}

impl<T> Outcome<T> {
    /// What the work looks at to see whether it is cancelled, where it leaves its outcome, and that outcome.
    pub(super) fn of_work() -> io::Result<(Cancel, oneshot::Sender<T>, Self)> {
        let cancel = Cancel::new()?;
        let (sender, receiver) = oneshot::channel();
        Ok((cancel.clone(), sender, Self { _cancelled_with_us: CancelOnDrop(cancel), receiver }))
    }

    /// Waits for it.
    pub(super) async fn get(self) -> io::Result<T> {
        self.receiver.await.map_err(|_| panicked())
    }
}

/// Why there is no outcome.
pub(super) fn panicked() -> io::Error {
    io::Error::other("a step of the handoff panicked")
}

/// Runs `work` on a thread that may block. Dropping the future cancels it; the thread keeps what `work` holds until that
/// has ended.
///
/// # Errors
/// There is no descriptor or no thread left, or `work` panicked.
pub async fn cancellable<T: Send + 'static>(work: impl FnOnce(&Cancel) -> T + Send + 'static) -> io::Result<T> {
    let (cancel, sender, outcome) = Outcome::of_work()?;
    // Not a thread of the runtime's pool: that panics where the system has none left (tokio, `spawn_blocking`).
    let thread = thread::Builder::new().name("handoff".to_owned());
    thread.spawn(move || drop(sender.send(work(&cancel))))?;
    outcome.get().await
}
