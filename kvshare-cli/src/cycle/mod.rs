//! One handoff over HTTP: the calls to the decoder, around the library's desk and provider runner.

mod decoder;
mod handoff;

pub use decoder::{Completion, DecoderClient, DecoderError, DefaultSettings, Props, Timings};
pub use handoff::{Cycle, CycleError, FileHandoff, SharedHandoff};
