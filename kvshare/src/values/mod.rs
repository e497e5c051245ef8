//! The numbers of a row: f32 and f16 to and from every type a cache can have, and the rotation of quantized caches.
//!
//! A *row* is what one cell holds of one layer's K or V: `n_embd_k_gqa` (or `n_embd_v_gqa`) elements. A provider
//! computes rows as floats and writes them as [`encode_row`] gives them; whoever looks into a cache reads them with
//! [`decode_row`]. A decoder whose cache is quantized keeps its rows rotated: see [`rotate`].
//!
//! ```
//! use kvshare::layout::TensorType;
//! use kvshare::values;
//!
//! let numbers: Vec<f32> = (0..64).map(|i| i as f32 / 8.0).collect();
//! let mut row = [0; 68];
//! values::encode_row(TensorType::Q8_0, &numbers, &mut row)?;
//!
//! let mut back = [0.0; 64];
//! values::decode_row(TensorType::Q8_0, &row, &mut back)?;
//! assert!(numbers.iter().zip(back).all(|(a, b)| (a - b).abs() < 0.05));
//! # Ok::<(), values::ValuesError>(())
//! ```
#![forbid(unsafe_code)]

mod blocks;
mod floats;
mod rotation;
mod row;
#[cfg(test)]
mod tests;

pub use rotation::{key_rotation, rotate, value_rotation};
pub use row::{decode_row, decode_row_f16, encode_row, encode_row_f16};

use crate::layout::TensorType;

/// Why numbers and bytes do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValuesError {
    /// A block of this type would be cut.
    #[error(
        "a {tensor_type} row cannot hold {elements} elements; use a multiple of {}",
        tensor_type.block_elements()
    )]
    PartialBlock {
        /// The row's type.
        tensor_type: TensorType,
        /// How many numbers were given.
        elements: usize,
    },
    /// The row has another length than that many elements take.
    #[error("{elements} elements of {tensor_type} take {needed} bytes, but the row has {given}; pass whole rows")]
    RowLength {
        /// The row's type.
        tensor_type: TensorType,
        /// How many numbers were given.
        elements: usize,
        /// The bytes that so many numbers take.
        needed: u64,
        /// The bytes that were given.
        given: usize,
    },
    /// The rotation's size is not one that a row can be rotated by.
    #[error(
        "a row of {elements} elements cannot be rotated by {size}; use a power of two that divides it, or 0 for none"
    )]
    RotationSize {
        /// The size of one rotated piece.
        size: u32,
        /// How many numbers were given.
        elements: usize,
    },
}
