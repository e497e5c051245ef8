//! Why the reference provider has no result.

use std::error::Error;
use std::path::PathBuf;

use kvshare::provider::ProviderError;
use reqwest::StatusCode;

/// Why the provider has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceProviderError {
    /// What any provider can run into.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The backend's address was not told.
    #[error("--via-backend needs the backend's address; give --backend-url, or set ONEBIT_HYBRID_BACKEND_URL")]
    NoAddress,
    /// The backend's key is no header.
    #[error("the backend's key holds a character that no header can; give another --backend-key")]
    Key,
    /// A backend writes its slot to a file, and to nothing else.
    #[error("--via-backend takes the file route only; start the proxy without --kv-share and ONEBIT_KV_SHARE")]
    SharedRoute,
    /// The client could not be set up.
    #[error("the HTTP client cannot be set up: {}", innermost(.0))]
    Client(#[source] reqwest::Error),
    /// The system.
    #[error("the backend could not be called: {0}")]
    System(#[from] std::io::Error),
    /// A call did not go through.
    #[error("the backend did not answer {call}: {}", innermost(source))]
    Call {
        /// The path called.
        call: &'static str,
        /// What went wrong.
        source: reqwest::Error,
    },
    /// The backend refused.
    #[error("the backend answered {call} with {status}: {message}")]
    Refused {
        /// The path called.
        call: &'static str,
        /// The HTTP status.
        status: StatusCode,
        /// Its own words.
        message: String,
    },
    /// An answer has no end.
    #[error("the backend's answer to {call} is longer than {limit} bytes; is it a llama-server?")]
    TooLong {
        /// The path called.
        call: &'static str,
        /// The most bytes that are read.
        limit: usize,
    },
    /// An answer is not a llama-server's.
    #[error("the backend's answer to {call} is not understood: {problem}; is it a llama-server?")]
    Answer {
        /// The path called.
        call: &'static str,
        /// What is wrong with it.
        problem: serde_json::Error,
    },
    /// The slot was somebody else's by the time it was saved.
    #[error("the backend saved {saved} tokens after a prompt of {given}; let only the proxy use its slot")]
    Saved {
        /// What the file holds.
        saved: u64,
        /// What it was to hold.
        given: usize,
    },
    /// The file lies in another directory.
    #[error(
        "the backend saved {}, but not to the working directory; start it with this directory as --slot-save-path",
        name.display()
    )]
    Elsewhere {
        /// The file's name.
        name: PathBuf,
    },
}

impl ReferenceProviderError {
    /// Whether the command line is at fault.
    pub fn is_misuse(&self) -> bool {
        match self {
            Self::NoAddress | Self::Key | Self::SharedRoute => true,
            Self::Provider(error) => error.is_misuse(),
            _ => false,
        }
    }
}

/// The cause that says most: reqwest's own words name only the address.
fn innermost(error: &reqwest::Error) -> &dyn Error {
    let mut innermost: &dyn Error = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}
