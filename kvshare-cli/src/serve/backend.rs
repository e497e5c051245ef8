//! The backend as requests see it: an address, and whether anybody answers there.

use std::time::Duration;

use tokio::sync::watch;

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

/// The backend as requests see it.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its address, such as `http://127.0.0.1:8081`.
    pub url: String,
    state: watch::Receiver<BackendState>,
}

/// The backend is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend is not there: {reason}")]
pub struct BackendGone {
    /// Why.
    pub reason: String,
}

impl Backend {
    /// The backend at `url`, whose state `state` tells.
    pub fn new(url: String, state: watch::Receiver<BackendState>) -> Self {
        Self { url, state }
    }

    /// How it is now.
    pub fn state(&self) -> BackendState {
        self.state.borrow().clone()
    }

    /// Waits until it answers, at most `limit`.
    ///
    /// # Errors
    /// It does not, or never will.
    pub async fn is_up(&self, limit: Duration) -> Result<(), BackendGone> {
        let mut state = self.state.clone();
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
