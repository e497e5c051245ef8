//! A provider that stays: started once, told of each prompt, with its mappings and its model kept.

mod serve;
mod words;

pub use serve::run_resident;
pub(crate) use words::{Order, PROTOCOL, Word};
