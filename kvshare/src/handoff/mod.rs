//! The proxy's side: receive the decoder's message, run a provider on it, and say what happened.
//!
//! [`ShareDesk`] listens where the decoder is told to send its cache; what arrives is a [`ReceivedShare`],
//! whose header is read again only if it is not the [known](KnownHeader) one.
//! [`ProviderProgram`] runs a provider on either route, with a time limit, a way to cancel, and its own words in the log.
//! A [`ResidentProvider`] does the same with one process for many prompts.
//! On the file route a [`HandoffFile`] names its state file, checks it against what is [known](KnownCache) of the decoder's
//! cache, and removes it in the end.
//! The HTTP calls in between are the caller's; a [`Report`] puts the times of all stages into one line.
//!
//! Every call blocks, none longer than its deadline; a server runs them on threads of their own.

mod cancel;
mod desk;
mod device_work;
mod failure;
mod file;
mod known_cache;
mod known_header;
mod lines;
mod program;
mod report;
mod resident;
mod watch;

pub use cancel::Cancel;
pub use desk::{ReceivedShare, ShareDesk, ShareFailure};
pub use failure::{Ending, ProviderFailure};
pub use file::{HandoffFile, StateCheckError};
pub use known_cache::KnownCache;
pub use known_header::KnownHeader;
pub use program::{Destination, ProviderProgram, ProviderReport};
pub use report::{Report, RouteTimes};
pub use resident::ResidentProvider;
