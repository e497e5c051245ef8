//! A client's request under way, so that the log can say where it was when its client left.
//!
//! A client that goes away ends its request by dropping it, which no code on its way sees. This is dropped with it.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::log::{Event, LogFormat};

/// A request under way.
#[derive(Debug)]
pub struct Visit {
    log: LogFormat,
    stopping: watch::Receiver<bool>,
    doing: Mutex<Option<&'static str>>,
}

impl Visit {
    /// One that begins. Once the server is `stopping` it is not the client who left.
    pub fn begin(log: LogFormat, stopping: watch::Receiver<bool>) -> Self {
        Self { log, stopping, doing: Mutex::new(Some("it waited for the slot")) }
    }

    /// Notes what happens from now on, as it follows "the client left while".
    pub fn now(&self, doing: &'static str) {
        self.set(Some(doing));
    }

    /// Notes that the client has its answer, or an error in its place.
    pub fn end(&self) {
        self.set(None);
    }

    fn set(&self, doing: Option<&'static str>) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let doing = self.doing.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(doing) = doing.filter(|_| !*self.stopping.borrow()) {
            self.log.write(Event::ClientLeft { doing });
        }
    }
}
