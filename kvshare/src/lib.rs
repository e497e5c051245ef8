//! Hands a language model's KV cache from the program that computes it to the program that decodes from it, on one
//! machine, without copying a byte.
//!
//! The modules stand in the order in which data flows; none uses one below it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`layout`] | tensor types, shapes, offsets, chunks, the layout hash, the address of any row |
//! | [`values`] | the numbers of a row: f32 to and from each tensor type, and the rotation of quantized caches |
//! | [`header`] | the header: parse, validate, write |
//! | [`state_file`] | the llama.cpp sequence-state file: read, validate, write |
//! | [`fd`] | what a descriptor is, and how a child inherits it |
//! | [`memory`] | where a region's memory comes from |
//! | [`map`] | a region mapped into this process |
//! | [`rows`] | the K and V rows of a mapped cache |
//! | [`wire`] | one message sent or received over a unix socket |
//! | [`share`] | the decoder's side: mint a share, adopt it once |
//! | [`provider`] | the provider's side: arguments, tokens, regions, rows, the result line |
//! | [`handoff`] | the proxy's side: receive a message, run a provider, say what happened |
#![deny(unsafe_code, missing_docs)]

pub mod fd;
pub mod handoff;
pub mod header;
pub mod layout;
pub mod map;
pub mod memory;
pub mod provider;
pub mod rows;
pub mod share;
pub mod state_file;
pub mod values;
pub mod wire;
