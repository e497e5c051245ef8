//! One request's handoff: which route, what falls back, and what each stage took.
//!
//! Only the handshake of the shared route falls back to the file route. Whatever fails once the provider was to start
//! leaves the request to the backend.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use kvshare::handoff::{Cancel, Destination, ProviderFailure, ProviderProgram, ProviderReport, RouteTimes};

use super::delivery::{CountedShare, HandshakeError, lease};
use super::log::{Event, LogFormat};
use super::metrics::{Metrics, Outcome, Route, Stage};
use super::progress::Listener;
use super::prompt::{Ask, NoPrompt, Prompt};
use super::provider_lock::{LockError, ProviderLock};
use super::slot::Turn;
use super::state_check::{KnownCache, StateCheckError};
use crate::cycle::{DecoderClient, DecoderError};

/// Numbers the state files of this process.
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// What handoffs need: the decoder, the provider, and the directory where they meet.
#[derive(Debug)]
pub struct Handoffs {
    /// The decoder.
    pub decoder: DecoderClient,
    /// The provider.
    pub provider: ProviderProgram,
    /// The file that is locked while it runs.
    pub lock: Option<PathBuf>,
    /// The decoder's slot directory.
    pub slot_directory: PathBuf,
    /// What is known of its cache.
    pub known: KnownCache,
    /// Whether the shared route is on.
    pub shares: bool,
    /// Set once the decoder has said that it cannot share.
    pub cannot_share: AtomicBool,
    /// Set once a provider could not be killed: it may write into the decoder's cache at any time.
    pub quarantined: Arc<AtomicBool>,
    /// Where it is said what happens.
    pub log: LogFormat,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
}

/// A handoff that worked.
#[derive(Clone, Copy, Debug)]
pub struct HandedOver {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The route's own stages.
    pub route: RouteTimes,
    /// The provider's prefill.
    pub prefill: Duration,
}

/// Why a request was not handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotHandedOver {
    /// It has no prompt that can be.
    #[error(transparent)]
    Prompt(#[from] NoPrompt),
    /// Its prompt is too short: the decoder evaluates the last token itself.
    #[error("the prompt has {tokens} token{}, and one without its last is nothing to hand over", if *tokens == 1 { "" } else { "s" })]
    TooShort {
        /// How many it has.
        tokens: usize,
    },
    /// Its prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, and the context {n_ctx}")]
    TooLong {
        /// How many it has.
        tokens: usize,
        /// The decoder's context.
        n_ctx: u64,
    },
    /// The decoder did not template, tokenize, restore or adopt.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The provider's device stayed locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The provider.
    #[error(transparent)]
    Provider(#[from] ProviderFailure),
    /// Its state file.
    #[error(transparent)]
    StateFile(#[from] StateCheckError),
    /// The decoder read less than the file holds.
    #[error("the decoder restored {restored} tokens of {expected}")]
    Restored {
        /// What it restored.
        restored: u64,
        /// What the file holds.
        expected: usize,
    },
    /// The system.
    #[error("the handoff could not be run: {0}")]
    System(#[from] std::io::Error),
}

impl NotHandedOver {
    /// How it is counted.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Prompt(_) | Self::TooShort { .. } | Self::TooLong { .. } => Outcome::NotHandedOver,
            _ => Outcome::Failed,
        }
    }
}

/// Cancels when it is dropped: with the request whose client has gone.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Handoffs {
    /// Hands over the prompt of a request whose whole body is `body`. Dropping the future stops the provider; `turn` is
    /// kept until that is gone.
    ///
    /// # Errors
    /// [`NotHandedOver`] says why; the request is to be forwarded as it came.
    pub async fn hand_over(&self, ask: &Ask, body: &[u8], turn: &Arc<Turn>) -> Result<HandedOver, NotHandedOver> {
        let tokens = self.tokens(&ask.prompt, body).await?;
        let prompt_tokens = tokens.len();
        if prompt_tokens < 2 {
            return Err(NotHandedOver::TooShort { tokens: prompt_tokens });
        }
        if let Some(n_ctx) = self.known.n_ctx.filter(|n_ctx| prompt_tokens as u64 >= *n_ctx) {
            return Err(NotHandedOver::TooLong { tokens: prompt_tokens, n_ctx });
        }
        let tokens: Arc<[i32]> = tokens[..prompt_tokens - 1].into();
        let (route, prefill) = self.route(tokens, turn).await?;
        self.metrics.time(Stage::Prefill, prefill);
        Ok(HandedOver { prompt_tokens, route, prefill })
    }

    async fn tokens(&self, prompt: &Prompt, body: &[u8]) -> Result<Vec<i32>, DecoderError> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => self.decoder.tokenize(text).await,
            Prompt::Messages => {
                let text = self.decoder.apply_template_to(body.to_vec()).await?;
                self.decoder.tokenize(&text).await
            }
        }
    }

    async fn route(&self, tokens: Arc<[i32]>, turn: &Arc<Turn>) -> Result<(RouteTimes, Duration), NotHandedOver> {
        if self.shares && !self.cannot_share.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match lease(&self.decoder, &self.slot_directory, &self.metrics).await {
                Ok((share, share_id)) => {
                    let took = asked.elapsed();
                    self.metrics.time(Stage::Share, took);
                    return self.fill_and_adopt(share, share_id, took, tokens, turn).await;
                }
                // It is gone, and the other route leads to it, too.
                Err(HandshakeError::Decoder(error @ DecoderError::Call { .. })) => return Err(error.into()),
                Err(reason) => self.note_fall_back(&reason),
            }
        }
        self.write_and_restore(tokens, turn).await
    }

    fn note_fall_back(&self, reason: &HandshakeError) {
        self.metrics.count(Route::Shared, Outcome::FellBack);
        if reason.is_for_good() {
            self.cannot_share.store(true, Ordering::Relaxed);
            self.log.write(Event::NoSharing { reason });
        } else {
            self.log.write(Event::FellBack { reason });
        }
    }

    async fn fill_and_adopt(
        &self,
        share: CountedShare,
        share_id: u64,
        took: Duration,
        tokens: Arc<[i32]>,
        turn: &Arc<Turn>,
    ) -> Result<(RouteTimes, Duration), NotHandedOver> {
        let bytes = share.header.bytes();
        let report = self.provide(Arc::clone(&tokens), Place::Shared(share), turn).await?;
        let adopting = Instant::now();
        self.decoder.adopt(&tokens, share_id).await?;
        let adopt = adopting.elapsed();
        self.metrics.time(Stage::Adopt, adopt);
        self.metrics.bytes_shared.inc_by(bytes);
        Ok((RouteTimes::Shared { share: took, adopt }, report.prefill()))
    }

    async fn write_and_restore(
        &self,
        tokens: Arc<[i32]>,
        turn: &Arc<Turn>,
    ) -> Result<(RouteTimes, Duration), NotHandedOver> {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvshare-{}-{number}.bin", std::process::id());
        let file = Arc::new(StateFileOfOurs { path: self.slot_directory.join(&name), name });
        let report = self.provide(Arc::clone(&tokens), Place::File(Arc::clone(&file)), turn).await?;
        let restoring = Instant::now();
        let bytes = {
            let (known, tokens, file) = (self.known, Arc::clone(&tokens), Arc::clone(&file));
            blocking(move || known.check(&file.path, &tokens)).await??
        };
        self.restore(&file.name, tokens.len()).await?;
        let restore = restoring.elapsed();
        self.metrics.time(Stage::Restore, restore);
        self.metrics.bytes_copied.inc_by(bytes);
        Ok((RouteTimes::File { restore, fell_back: self.shares }, report.prefill()))
    }

    async fn restore(&self, name: &str, expected: usize) -> Result<(), NotHandedOver> {
        let failure = match self.decoder.restore(name).await {
            Ok(restored) if restored == expected as u64 => return Ok(()),
            Ok(restored) => NotHandedOver::Restored { restored, expected },
            Err(error) => error.into(),
        };
        // A restore that failed can leave the slot broken (ggml-org/llama.cpp#27068). If this fails, too, the backend is
        // in such a state that forwarding the request will say more.
        let _ = self.decoder.erase().await;
        Err(failure)
    }

    /// Runs the provider on a thread that may block, and that keeps what it needs until the provider is gone.
    async fn provide(
        &self,
        tokens: Arc<[i32]>,
        place: Place,
        turn: &Arc<Turn>,
    ) -> Result<ProviderReport, NotHandedOver> {
        let cancel = Cancel::new()?;
        let _cancelled_with_us = CancelOnDrop(cancel.clone());
        let (provider, directory, log) = (self.provider.clone(), self.slot_directory.clone(), self.log);
        let (lock, turn, quarantined) = (self.lock.clone(), Arc::clone(turn), Arc::clone(&self.quarantined));
        blocking(move || {
            let _turn = turn;
            let limit = Instant::now() + provider.time_limit;
            let _lock = lock.as_deref().map(|path| ProviderLock::take(path, limit, cancel.as_fd())).transpose()?;
            let destination = match &place {
                Place::Shared(share) => Destination::Shared(share),
                Place::File(file) => Destination::File { name: &file.name },
            };
            let listener = Listener::new(log);
            let report = provider.run(&tokens, destination, &directory, Some(&cancel), &mut |line| listener.hear(line));
            if let (Err(failure), Place::Shared(_)) = (&report, &place)
                && failure.may_still_write()
            {
                // Said here and not where the report is awaited: the request's client may have gone by now.
                quarantined.store(true, Ordering::Relaxed);
            }
            Ok(report?)
        })
        .await?
    }
}

/// Where the provider's rows go, with what must live as long as it does.
enum Place {
    Shared(CountedShare),
    File(Arc<StateFileOfOurs>),
}

/// A state file in the slot directory. It is removed when this is dropped, whatever happens.
struct StateFileOfOurs {
    name: String,
    path: PathBuf,
}

impl Drop for StateFileOfOurs {
    fn drop(&mut self) {
        // It is not there if the provider failed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)
}

/// Whether a refusal says that the decoder never shares: one of a stock llama-server, which knows no such action, or of a
/// decoder that cannot export.
pub(super) fn never_shares(error: &DecoderError) -> bool {
    match error {
        DecoderError::Refused { status, message, .. } => {
            *status == StatusCode::NOT_IMPLEMENTED
                || *status == StatusCode::BAD_REQUEST && message.contains("Invalid action")
        }
        _ => false,
    }
}
