//! Work that blocks, for a caller who may stop waiting for it.

use std::io;

use kvshare::handoff::Cancel;

/// Cancels when it is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs `work` on a thread that may block. Dropping the future cancels it; the thread keeps what `work` holds until that
/// has ended.
///
/// # Errors
/// There is no descriptor left, or `work` panicked.
pub async fn cancellable<T: Send + 'static>(work: impl FnOnce(&Cancel) -> T + Send + 'static) -> io::Result<T> {
    let cancel = Cancel::new()?;
    let _cancelled_with_us = CancelOnDrop(cancel.clone());
    tokio::task::spawn_blocking(move || work(&cancel)).await.map_err(io::Error::other)
}
