//! How a provider can fail.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::fd::{FdError, SpawnError};
use crate::map::MapError;
use crate::provider::ResultLineError;

/// Why a provider gave no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderFailure {
    /// A file that the provider was to read could not be written.
    #[error("cannot write {what} in {}: {source}", directory.display())]
    Prepare {
        /// Which file.
        what: &'static str,
        /// Where.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program did not start, or could not be watched.
    #[error(transparent)]
    Start(#[from] SpawnError),
    /// It ran past its limit and was stopped.
    #[error(
        "the provider ran past its limit of {} s and was stopped ({ending}); raise the limit if it needs longer",
        limit.as_secs_f64()
    )]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// How it ended.
        ending: Ending,
    },
    /// Nobody waits for its result any more, and it was stopped.
    #[error("the handoff was cancelled and the provider stopped ({ending})")]
    Cancelled {
        /// How it ended.
        ending: Ending,
    },
    /// It ended by itself, but not well.
    #[error("the provider ended badly ({ending}){}", quoted(said))]
    Failed {
        /// How it ended.
        ending: Ending,
        /// How its standard error begins and ends: the first line and the last, shortened.
        said: Option<String>,
    },
    /// It printed nothing on its standard output.
    #[error("the provider printed no result; its last line must be {{\"n_tokens\": N, \"argmax\": id}}")]
    NoResult,
    /// Its last line is something else.
    #[error(transparent)]
    BadResult(#[from] ResultLineError),
    /// It prefilled another number of tokens than it was given.
    #[error("the provider prefilled {reported} tokens, but was given {given}; the two must be equal")]
    WrongCount {
        /// What it reported.
        reported: u64,
        /// What it was given.
        given: usize,
    },
    /// It is gone, and its device did not write what it was to write.
    #[error("the provider's device did not fill the cache: {0}")]
    Device(#[source] MapError),
    /// A resident provider did not prefill the prompt, and said so. It lives on.
    #[error("the provider failed: {words}")]
    Said {
        /// Its words.
        words: String,
    },
    /// A resident provider did not speak as one, and was stopped.
    #[error("the resident provider is not understood, and was stopped ({ending}): {problem}")]
    NotUnderstood {
        /// What is wrong with what it said.
        problem: String,
        /// How it ended.
        ending: Ending,
    },
    /// The system failed while the provider ran.
    #[error("watching the provider failed: {0}")]
    Watch(#[from] FdError),
}

impl ProviderFailure {
    /// Whether the provider may have begun to write. If not, another route can be tried.
    pub fn after_start(&self) -> bool {
        match self {
            Self::Prepare { .. } => false,
            Self::Start(error) => matches!(error, SpawnError::Unwatched { .. }),
            _ => true,
        }
    }

    /// Whether the provider, a helper that it started, or its device may still be at work, so that its regions must not be used again.
    pub fn may_still_write(&self) -> bool {
        match self {
            Self::TimedOut { ending, .. }
            | Self::Cancelled { ending }
            | Self::Failed { ending, .. }
            | Self::NotUnderstood { ending, .. } => {
                matches!(ending, Ending::StillRunning | Ending::HelpersRunning)
            }
            Self::Start(SpawnError::Unwatched { gone, .. }) => !gone,
            Self::Watch(_) | Self::Device(MapError::DeviceBusy) => true,
            _ => false,
        }
    }
}

fn quoted(said: &Option<String>) -> String {
    said.as_ref().map_or_else(String::new, |words| format!("; it said: {words}"))
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an exit status.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// Not at all, though it was killed: a driver holds it in the kernel.
    StillRunning,
    /// By itself or killed, but a process of its group still runs after `SIGKILL`.
    HelpersRunning,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(status) => write!(formatter, "exit status {status}"),
            Self::Signal(number) => write!(formatter, "signal {number}"),
            Self::StillRunning => write!(formatter, "still running after SIGKILL"),
            Self::HelpersRunning => write!(formatter, "a process that it started is still running after SIGKILL"),
        }
    }
}

impl From<std::process::ExitStatus> for Ending {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        match status.code() {
            Some(code) => Self::Exit(code),
            None => Self::Signal(status.signal().unwrap_or_default()),
        }
    }
}
