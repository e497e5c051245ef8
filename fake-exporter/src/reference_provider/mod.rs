//! The reference provider: CPU prefill of a GGUF on both routes, the checker's function, or the backend's own prefill.
//!
//! It is a whole provider, made from [`kvshare::provider::run_with`] and this crate's model. With `--via-backend` it computes
//! nothing: the backend prefills the prompt, saves its slot and empties it, and the route can be tried with every model that
//! the backend runs.

mod error;
mod program;
mod via_backend;

pub use error::ReferenceProviderError;
pub use program::{ReferenceProviderArguments, provide_and_print, run};
