//! The backend as requests see it: an address, and whether anybody answers there.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::watch;

/// Of a backend that others have started.
const SPOILED: &str = "a provider that could not be ended may still write into its cache; end that provider, and start the \
                       backend and kvshare-cli serve again";

/// How the backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendState {
    /// It loads its model.
    Starting,
    /// It answers.
    Up,
    /// It ended, in these words, and will be started again.
    Down(String),
    /// It will not be started again.
    Stopped(String),
}

/// The backend as requests see it. Clones are of one backend.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its address, such as `http://127.0.0.1:8081`.
    pub url: String,
    state: Arc<watch::Sender<BackendState>>,
    /// Counts the wishes to start it again; none where it is not ours to start.
    restart: Option<Arc<OwnedFd>>,
}

/// The backend is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend cannot be used: {reason}")]
pub struct BackendGone {
    /// Why.
    pub reason: String,
}

impl Backend {
    /// One at `url` that is being started, and that can be started again.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn ours(url: String) -> io::Result<Self> {
        let restart = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Arc::new(watch::Sender::new(BackendState::Starting));
        Ok(Self { url, state, restart: Some(Arc::new(restart)) })
    }

    /// One at `url` that somebody else has started.
    pub fn of_others(url: String) -> Self {
        Self { url, state: Arc::new(watch::Sender::new(BackendState::Up)), restart: None }
    }

    /// How it is now.
    pub fn state(&self) -> BackendState {
        self.state.borrow().clone()
    }

    /// Tells how it is from now on.
    pub fn set(&self, state: BackendState) {
        self.state.send_replace(state);
    }

    /// Uses nothing of it any more as it is now: whoever could not be ended may write into its memory at any time.
    ///
    /// Ours is started again, with other memory. One of others must be, and then the proxy. Returns what is to be said
    /// about it, if the keeper of ours does not say it.
    pub fn quarantine(&self) -> Option<&'static str> {
        let Some(restart) = &self.restart else {
            self.set(BackendState::Stopped(SPOILED.to_owned()));
            return Some(SPOILED);
        };
        self.set(BackendState::Down("it is started again, since a provider may still write into its cache".to_owned()));
        // It fails only when the counter is full, and then it is full of wishes.
        let _ = rustix::io::write(restart, &1_u64.to_ne_bytes());
        None
    }

    /// What is readable while somebody wants it started again.
    pub fn restart(&self) -> Option<BorrowedFd<'_>> {
        self.restart.as_ref().map(|restart| restart.as_fd())
    }

    /// Whether somebody wants it started again. Asking takes the wish.
    pub fn takes_restart(&self) -> bool {
        self.restart.as_ref().is_some_and(|restart| rustix::io::read(restart, &mut [0; 8]).is_ok())
    }

    /// Waits until it answers, at most `limit`.
    ///
    /// # Errors
    /// It does not, or never will.
    pub async fn is_up(&self, limit: Duration) -> Result<(), BackendGone> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| matches!(state, BackendState::Up | BackendState::Stopped(_)));
        let settled = match tokio::time::timeout(limit, settled).await {
            Ok(Ok(state)) => state.clone(),
            // Out of time, or nobody tells any more.
            Ok(Err(_)) | Err(_) => self.state(),
        };
        match settled {
            BackendState::Up => Ok(()),
            BackendState::Starting => Err(BackendGone { reason: "it is still starting".to_owned() }),
            BackendState::Down(reason) | BackendState::Stopped(reason) => Err(BackendGone { reason }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_spoiled_backend_of_ours_is_used_again_once_it_was_started_again() {
        let backend = Backend::ours("http://127.0.0.1:1".to_owned()).unwrap();
        backend.set(BackendState::Up);
        assert!(!backend.takes_restart() && backend.is_up(SOON).await.is_ok());
        assert_eq!(backend.quarantine(), None);
        assert!(backend.is_up(SOON).await.is_err());
        assert!(backend.takes_restart() && !backend.takes_restart());
        backend.set(BackendState::Up);
        assert!(backend.is_up(SOON).await.is_ok());
    }

    #[tokio::test]
    async fn a_spoiled_backend_of_others_is_not_used_again() {
        let backend = Backend::of_others("http://127.0.0.1:1".to_owned());
        assert!(backend.is_up(SOON).await.is_ok());
        let said = backend.quarantine().unwrap();
        let gone = backend.is_up(Duration::from_secs(3600)).await.unwrap_err().to_string();
        assert!(gone.ends_with(said) && said.contains("start the backend and kvshare-cli serve again"), "{gone}");
    }
}
