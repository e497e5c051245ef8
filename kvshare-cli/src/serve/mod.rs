//! `kvshare-cli serve`: the OpenAI-compatible server in front of a decoder and a provider.
//!
//! A request's prompt goes to the provider, its cache to the backend, and then the request itself, which the backend
//! answers from the cache (`handoff.rs` has the order). Everything else passes as it is (`relay.rs`), but for what would
//! change the slot behind a handoff's back. Each reply that comes
//! whole has the header `x-kvshare-handoff: shared|file|none; evaluated=N`. A streamed one has it without the count,
//! which nobody knows when the headers are sent: more than one evaluated token is a warning in the log and a count in
//! `/metrics` then.

mod api_error;
mod arguments;
mod backend;
mod backend_process;
pub mod end_with_parent;
mod handoff;
mod known_cache;
mod lifetime;
mod log;
mod metrics;
mod progress;
mod prompt;
mod provider_lock;
mod proxy;
mod refusals;
mod relay;
mod slot;
mod slot_directory;
mod timings;
mod visit;

pub use arguments::ServeArguments;
pub use lifetime::run;
