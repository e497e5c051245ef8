//! What can be wrong with a layout.

use super::TensorType;

/// Why a layout or an address in it is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A tensor has no dimension, more than four, or an empty one.
    #[error("tensor {name:?} has the shape {ne:?}; a tensor has one to four dimensions, none of them 0")]
    Shape {
        /// The tensor.
        name: String,
        /// Its dimensions as given.
        ne: Vec<u64>,
    },
    /// The first dimension is not whole blocks of the type.
    #[error(
        "tensor {name:?} has rows of {width} elements, which is not a multiple of the {block} that one block of \
         {tensor_type} holds; use another type or width"
    )]
    Block {
        /// The tensor.
        name: String,
        /// Its first dimension.
        width: u64,
        /// Its type.
        tensor_type: TensorType,
        /// Elements a block.
        block: u64,
    },
    /// A size in bytes that does not fit.
    #[error("tensor {name:?} of shape {ne:?} is larger than 2^63 - 1 bytes")]
    Overflow {
        /// The tensor.
        name: String,
        /// Its dimensions.
        ne: Vec<u64>,
    },
    /// A layer without both of its tensors, or one of them twice.
    #[error("layer {layer} has {problem}; an attention layer has one cache_k and one cache_v tensor")]
    Pairing {
        /// The layer.
        layer: u32,
        /// What is missing or repeated.
        problem: &'static str,
    },
    /// K and V of a layer, or two layers, disagree about cells or streams.
    #[error("tensor {name:?} has {found} {what}, but {expected} were expected as in the tensors before it")]
    Uneven {
        /// The tensor.
        name: String,
        /// "cells" or "streams".
        what: &'static str,
        /// What the tensors before it have.
        expected: u64,
        /// What this one has.
        found: u64,
    },
    /// Transposed V in a type whose elements share a block.
    #[error(
        "tensor {name:?} is {tensor_type} and transposed; elements of {tensor_type} share a block and cannot be stored \
         by channel: turn flash attention on, or use f16, bf16 or f32 for V"
    )]
    TransposedBlocks {
        /// The tensor.
        name: String,
        /// Its type.
        tensor_type: TensorType,
    },
    /// Rows together, of a plane that stores channels together.
    #[error(
        "V is transposed (flash attention is off), so its rows do not lie together; go by row or by channel, one at a time"
    )]
    Transposed,
    /// A channel together, of a plane that stores rows together.
    #[error("the tensor is not transposed, so the elements of a channel do not lie together; go by rows")]
    NotTransposed,
    /// A layer that the cache does not have.
    #[error("the cache has no attention layer {layer}; it has {available}")]
    NoSuchLayer {
        /// The layer asked for.
        layer: u32,
        /// The layers there are, in words.
        available: String,
    },
    /// A position, channel or stream beyond the cache.
    #[error("{what} {value} is outside the cache, which has {limit} (counted from 0)")]
    Outside {
        /// "position", "channel" or "stream".
        what: &'static str,
        /// The number asked for.
        value: u64,
        /// How many there are.
        limit: u64,
    },
}
