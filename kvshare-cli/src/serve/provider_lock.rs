//! An advisory lock that is held while the provider runs, for those who share its device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Between two tries: flock(2) has no limit of time.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// A file that we have locked, until this is dropped.
#[derive(Debug)]
pub struct ProviderLock {
    _file: File,
}

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The file cannot be used.
    #[error("the provider's lock {} cannot be taken: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else kept it.
    #[error("the provider's lock {} was held by somebody else until the prefill's time limit", path.display())]
    Held {
        /// The file.
        path: PathBuf,
    },
    /// The request's client has gone.
    #[error("the handoff was cancelled while it waited for the provider's lock")]
    Cancelled,
}

impl ProviderLock {
    /// Locks the file at `path`, which is made if it is not there. Others may lock it, too, and wait for us.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(path: &Path, deadline: Instant, cancel: BorrowedFd<'_>) -> Result<Self, LockError> {
        let failed = |source| LockError::File { path: path.to_owned(), source };
        // The mode lets programs of other users lock the file that they share a device by, as far as the umask does.
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o666).open(path);
        let file = file.map_err(failed)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            if Instant::now() >= deadline {
                return Err(LockError::Held { path: path.to_owned() });
            }
            let pause = Timespec::try_from(TRY_EVERY).ok();
            if let Ok(1..) = poll(&mut [PollFd::from_borrowed_fd(cancel, PollFlags::IN)], pause.as_ref()) {
                return Err(LockError::Cancelled);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use kvshare::handoff::Cancel;

    use super::*;

    #[test]
    fn one_at_a_time_has_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device.lock");
        let cancel = Cancel::new().unwrap();
        let soon = || Instant::now() + 2 * TRY_EVERY;
        let held = ProviderLock::take(&path, soon(), cancel.as_fd()).unwrap();
        let second = ProviderLock::take(&path, soon(), cancel.as_fd());
        assert!(matches!(second, Err(LockError::Held { .. })), "{second:?}");
        drop(held);
        let _held = ProviderLock::take(&path, soon(), cancel.as_fd()).unwrap();
        cancel.cancel();
        let far = Instant::now() + Duration::from_secs(3600);
        assert!(matches!(ProviderLock::take(&path, far, cancel.as_fd()), Err(LockError::Cancelled)));
    }

    #[test]
    fn a_lock_that_cannot_be_made_is_named() {
        let cancel = Cancel::new().unwrap();
        let error = ProviderLock::take(Path::new("/no/such/lock"), Instant::now(), cancel.as_fd()).unwrap_err();
        assert!(error.to_string().contains("/no/such/lock"), "{error}");
    }
}
