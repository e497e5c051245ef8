//! One request's handoff: which route, what falls back, and what each stage took.
//!
//! Only the handshake of the shared route falls back to the file route. Whatever fails once the provider was to start
//! leaves the request to the backend.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvshare::handoff::{Cancel, HandoffFile, KnownCache, ProviderFailure, ProviderReport, RouteTimes};

use super::backend::Backend;
use super::log::{Event, LogFormat};
use super::metrics::{Metrics, Outcome, Route, Stage};
use super::progress::Listener;
use super::prompt::{Ask, NoPrompt, Prompt};
use super::provider_lock::{LockError, ProviderLock};
use super::slot::Turn;
use super::slot_directory::sweep;
use super::visit::Visit;
use crate::cycle::{
    DecoderClient, DecoderError, Lease, LeaseError, Place, PreparedAdopt, Provider, ReadBack, RestoreError, Runner,
    lease, restore,
};

/// What handoffs need: the decoder, the provider, and the directory where they meet.
#[derive(Debug)]
pub struct Handoffs {
    /// The backend, whose memory a provider can spoil.
    pub backend: Backend,
    /// The same as a decoder.
    pub decoder: DecoderClient,
    /// How long it may take to begin sharing.
    pub share_limit: Duration,
    /// The provider.
    pub provider: Provider,
    /// The file that is locked while it runs.
    pub lock: Option<PathBuf>,
    /// The decoder's slot directory.
    pub slot_directory: PathBuf,
    /// Whether that is ours alone, and what a provider leaves there can be removed.
    pub sweeps: bool,
    /// What is known of the decoder's cache.
    pub known: Arc<KnownCache>,
    /// Whether the shared route is on.
    pub shares: bool,
    /// Set once the decoder has said that it cannot share.
    pub cannot_share: AtomicBool,
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
    /// The decoder did not template, tokenize or adopt.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The provider's device stayed locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The provider.
    #[error(transparent)]
    Provider(#[from] ProviderFailure),
    /// Its state file, or the decoder reading it.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The system.
    #[error("the handoff could not be run: {0}")]
    System(#[from] std::io::Error),
}

impl NotHandedOver {
    /// Whether the decoder may be unable to take the request itself: it was silent, or its memory is not its own.
    pub fn doubts_decoder(&self) -> bool {
        match self {
            Self::Decoder(DecoderError::Call { .. }) => true,
            Self::Restore(RestoreError::Decoder(DecoderError::Call { .. })) => true,
            Self::Provider(failure) => failure.may_still_write(),
            _ => false,
        }
    }

    /// How it is counted.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Prompt(_) | Self::TooShort { .. } | Self::TooLong { .. } => Outcome::NotHandedOver,
            _ => Outcome::Failed,
        }
    }
}

impl Handoffs {
    /// Hands over the prompt of a request whose whole body is `body`. Dropping the future stops the provider; `turn` is
    /// kept until that is gone. `visit` is told how far it is.
    ///
    /// # Errors
    /// [`NotHandedOver`] says why; the request is to be forwarded as it came.
    pub async fn hand_over(
        &self,
        ask: &Ask,
        body: &[u8],
        turn: &Arc<Turn>,
        visit: &Visit,
    ) -> Result<HandedOver, NotHandedOver> {
        visit.now("its prompt was tokenized");
        let tokens = self.tokens(&ask.prompt, body).await?;
        let prompt_tokens = tokens.len();
        if prompt_tokens < 2 {
            return Err(NotHandedOver::TooShort { tokens: prompt_tokens });
        }
        if let Some(n_ctx) = self.known.n_ctx.filter(|n_ctx| prompt_tokens as u64 >= *n_ctx) {
            return Err(NotHandedOver::TooLong { tokens: prompt_tokens, n_ctx });
        }
        let tokens: Arc<[i32]> = tokens[..prompt_tokens - 1].into();
        let (route, prefill) = self.route(tokens, turn, visit).await?;
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

    async fn route(
        &self,
        tokens: Arc<[i32]>,
        turn: &Arc<Turn>,
        visit: &Visit,
    ) -> Result<(RouteTimes, Duration), NotHandedOver> {
        if self.shares && !self.cannot_share.load(Ordering::Relaxed) {
            visit.now("the backend's cache was shared");
            let asked = Instant::now();
            match lease(&self.decoder, &self.slot_directory, self.share_limit).await {
                Ok(lease) => {
                    let took = asked.elapsed();
                    self.metrics.time(Stage::Share, took);
                    return self.fill_and_adopt(lease, took, tokens, turn, visit).await;
                }
                // The other route leads to it, too.
                Err(LeaseError::Decoder(error)) if error.is_gone() => return Err(error.into()),
                Err(reason) => self.note_fall_back(&reason),
            }
        }
        self.write_and_restore(tokens, turn, visit).await
    }

    fn note_fall_back(&self, reason: &LeaseError) {
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
        Lease { share, share_id }: Lease,
        took: Duration,
        tokens: Arc<[i32]>,
        turn: &Arc<Turn>,
        visit: &Visit,
    ) -> Result<(RouteTimes, Duration), NotHandedOver> {
        let bytes = share.header.bytes();
        let prepared = async { PreparedAdopt::new(&tokens, share_id) };
        let provided = self.provide(Arc::clone(&tokens), Place::Shared(share), turn, visit);
        let (prepared, report) = tokio::join!(prepared, provided);
        let report = report?;
        visit.now("its cells were adopted");
        let adopting = Instant::now();
        self.decoder.adopt_prepared(prepared).await?;
        let adopt = adopting.elapsed();
        self.metrics.time(Stage::Adopt, adopt);
        self.metrics.bytes_shared.inc_by(bytes);
        Ok((RouteTimes::Shared { share: took, adopt }, report.prefill()))
    }

    async fn write_and_restore(
        &self,
        tokens: Arc<[i32]>,
        turn: &Arc<Turn>,
        visit: &Visit,
    ) -> Result<(RouteTimes, Duration), NotHandedOver> {
        let file = Arc::new(HandoffFile::new(&self.slot_directory));
        let report = self.provide(Arc::clone(&tokens), Place::File(Arc::clone(&file)), turn, visit).await?;
        visit.now("its state file was restored");
        let ReadBack { bytes, took } = restore(&self.decoder, &file, &tokens, &self.known).await?;
        self.metrics.time(Stage::Restore, took);
        self.metrics.bytes_copied.inc_by(bytes);
        Ok((RouteTimes::File { restore: took, fell_back: self.shares }, report.prefill()))
    }

    /// Runs the provider on a thread that may block, and that keeps what it needs until the provider is gone.
    async fn provide(
        &self,
        tokens: Arc<[i32]>,
        place: Place,
        turn: &Arc<Turn>,
        visit: &Visit,
    ) -> Result<ProviderReport, NotHandedOver> {
        visit.now("the provider ran");
        let descriptors = match &place {
            Place::Shared(share) => Some(self.metrics.descriptors(share.descriptors.len())),
            Place::File(_) => None,
        };
        let (time_limit, directory, sweeps) = (self.provider.time_limit(), self.slot_directory.clone(), self.sweeps);
        let (lock, backend, log, turn) = (self.lock.clone(), self.backend.clone(), self.log, Arc::clone(turn));
        let work = move |provider: Runner<'_>, cancel: &Cancel| {
            let _kept = (turn, descriptors);
            let limit = Instant::now() + time_limit;
            let _lock = lock.as_deref().map(|path| ProviderLock::take(path, limit, cancel.as_fd())).transpose()?;
            let listener = Listener::new(log);
            let mut hear = |line: &str| listener.hear(line);
            let report = provider.run(&tokens, place.destination(), &directory, cancel, &mut hear);
            // Here and not where the report is awaited: the request's client may have gone by now.
            if let (Err(failure), Place::Shared(_)) = (&report, &place)
                && failure.may_still_write()
                && let Some(words) = backend.quarantine()
            {
                log.write(Event::Notice { words: &words });
            }
            if sweeps {
                let kept = match &place {
                    Place::Shared(_) => None,
                    Place::File(file) => Some(file.name()),
                };
                sweep(&directory, kept);
            }
            Ok(report?)
        };
        self.provider.cancellable(work).await?
    }
}
