//! What all requests share: the decoder, for which they wait in order, and what may be known without waiting.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

use super::error::ApiError;
use crate::brain::Brain;
use crate::decoder::{Decoder, DecoderError, Settings};

/// A decoder that is served.
pub struct Server {
    brain: Arc<dyn Brain>,
    settings: Arc<Settings>,
    /// Fair: requests get it in the order in which they asked.
    decoder: Arc<FairMutex<Decoder>>,
    slot: Mutex<SlotReport>,
    requests: AtomicU64,
    stopping: AtomicBool,
}

/// What `/slots` tells, as it was when the slot was last idle.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotReport {
    /// Tokens that it held.
    pub n_tokens: usize,
    /// The last completion's number and parameters.
    pub task: Option<(u64, Value)>,
}

impl Server {
    /// Serves `decoder`.
    pub fn new(decoder: Decoder) -> Self {
        Self {
            brain: Arc::clone(decoder.brain()),
            settings: Arc::clone(decoder.settings()),
            decoder: Arc::new(FairMutex::new(decoder)),
            slot: Mutex::default(),
            requests: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Ends the generation that is under way, and all after it.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn brain(&self) -> &Arc<dyn Brain> {
        &self.brain
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A number for each completion, from 0.
    pub(super) fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for the decoder. Whoever stops waiting leaves the queue.
    pub(super) async fn decoder(&self) -> OwnedMutexGuard<Decoder> {
        Arc::clone(&self.decoder).lock_owned().await
    }

    /// Waits for the decoder and works with it, on a thread that may block.
    pub(super) async fn with_decoder<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Decoder) -> Result<T, DecoderError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let mut decoder = self.decoder().await;
        let server = Arc::clone(self);
        blocking(move || {
            let result = work(&mut decoder);
            server.note_tokens(&decoder);
            Ok(result?)
        })
        .await
    }

    pub(super) fn is_busy(&self) -> bool {
        self.decoder.try_lock().is_err()
    }

    pub(super) fn slot(&self) -> SlotReport {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers how many tokens the slot holds.
    pub(super) fn note_tokens(&self, decoder: &Decoder) {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).n_tokens = decoder.tokens().len();
    }

    /// Remembers the completion that is beginning.
    pub(super) fn note_task(&self, number: u64, parameters: Value) {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).task = Some((number, parameters));
    }
}

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::internal("the decoder failed; its log says why")),
    }
}

/// A number that no other reply has, of this server or of one before it.
pub(super) fn unique_number() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    nanoseconds.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Seconds since 1970.
pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
