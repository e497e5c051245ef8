//! Work that blocks, for a caller who may stop waiting for it.

use std::{io, thread};

use kvshare::handoff::Cancel;
use tokio::sync::oneshot;

/// Cancels when it is dropped.
pub(super) struct CancelOnDrop(pub(super) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs `work` on a thread that may block. Dropping the future cancels it; the thread keeps what `work` holds until that
/// has ended.
///
/// # Errors
/// There is no descriptor or no thread left, or `work` panicked.
pub async fn cancellable<T: Send + 'static>(work: impl FnOnce(&Cancel) -> T + Send + 'static) -> io::Result<T> {
    let cancel = Cancel::new()?;
    let _cancelled_with_us = CancelOnDrop(cancel.clone());
    let (sender, receiver) = oneshot::channel();
    // Not a thread of the runtime's pool: that panics where the system has none left (tokio, `spawn_blocking`).
    let thread = thread::Builder::new().name("handoff".to_owned());
    thread.spawn(move || drop(sender.send(work(&cancel))))?;
    receiver.await.map_err(|_| io::Error::other("a step of the handoff panicked"))
}
