//! The provider's side: everything that a program which computes KV caches needs to hand them over.
//!
//! [`run`] is a whole provider but for the mathematics: it parses the arguments, reads the tokens, maps the decoder's
//! regions (or, on the file route, memory of its own), calls a function that fills them, and reports the result.
//! [`Provider`] is the same in steps, for a device that maps the descriptors itself. A provider made with [`run`] can also stay
//! [resident](run_resident): it is started once, keeps its mappings and its model, and is told of each prompt.
//!
//! The contract with the proxy stands in `docs/src/protocol.md`, section 9.

mod arguments;
mod error;
mod geometry;
mod open;
mod resident;
mod result_line;
mod run;
#[cfg(test)]
mod tests;
mod tokens;

pub use arguments::{Arguments, Invocation, ResidentArguments, Route};
pub use error::ProviderError;
pub use geometry::{AssumedCache, AssumedLayers, match_model, read_metadata};
pub use open::Provider;
pub use resident::run_resident;
pub(crate) use resident::{Order, PROTOCOL, Word};
pub use result_line::{ResultLine, ResultLineError};
pub use run::{Prefill, run, run_with};
pub use tokens::{format_tokens, parse_tokens, read_tokens};
