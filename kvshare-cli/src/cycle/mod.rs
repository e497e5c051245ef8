//! One handoff over HTTP: the calls to the decoder, around the library's desk and provider runner.
//!
//! [`lease`], [`cancellable`] and [`restore`] are the steps, which the proxy takes with its locks and counts in between;
//! [`Cycle`] takes them one after the other.

mod caller;
mod cancellable;
mod decoder;
mod handoff;
mod lease;
mod place;
mod provider;
mod restore;

pub use caller::CallError;
pub(crate) use caller::with_causes;
pub use cancellable::cancellable;
pub use decoder::{Completion, DecoderClient, DecoderError, DefaultSettings, PreparedAdopt, Props, Restored, Timings};
pub use handoff::{Cycle, CycleError, FileHandoff, SharedHandoff};
pub use lease::{Lease, LeaseError, lease};
pub use place::Place;
pub use provider::{Provider, Resident, Runner};
pub use restore::{ReadBack, RestoreError, restore};
