//! The stand-ins: a decoder without a GPU, a reference provider, and the small CPU model that both can run.
//!
//! They exist to show and to test the handoff on any machine. The decoder speaks llama-server's HTTP; it is no inference
//! engine to compete with one.
#![forbid(unsafe_code)]

pub mod brain;
pub mod cache_rows;
pub mod checker;
pub mod decoder;
pub mod http;
pub mod memory_kind;
pub mod model;
pub mod reference_provider;
pub mod serve;
