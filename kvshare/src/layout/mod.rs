//! Which tensor lies where: types, shapes, placement into regions, the layout hash, and the address of any row.
//!
//! Nothing here touches the operating system. Both sides of a handoff compute all of it apart from each other, so it
//! must agree bit for bit.
#![forbid(unsafe_code)]

mod tensor_type;

pub use tensor_type::{TensorType, UnknownTensorType};

/// Every tensor and every region starts at a multiple of this many bytes, and a region is at least this long.
pub const ALIGNMENT: u64 = 4096;
