//! Why rows could not be read or written.

use crate::header::HeaderError;
use crate::layout::LayoutError;
use crate::map::MapError;
use crate::memory::MemoryError;
use crate::values::ValuesError;

/// Why a cache could not be mapped, or a row in it not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// A layer, position or stream that the cache does not have, or tensors that make no cache.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A header that does not hold together.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Memory that cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Memory that cannot be mapped or accessed so.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The numbers.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// A region that cannot be mapped.
    #[error("region {region} of the cache: {source}")]
    Region {
        /// Which one.
        region: usize,
        /// What is wrong with it.
        source: MapError,
    },
    /// A header without tensors.
    #[error(
        "the header names no tensors, so nobody knows where a row lies; complete it from the model's geometry first"
    )]
    NoTensors,
    /// A descriptor that the header names and that is not there.
    #[error("the header names descriptor {index}, but only {count} were given")]
    NoDescriptor {
        /// The index named.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A layer asked for by its place among those that have a cache.
    #[error("layer {index} (counted from 0) of those that have a cache was asked for, but there are {count}")]
    LayerIndex {
        /// The place asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A tensor that the cache does not have.
    #[error(
        "the cache has no tensor {name:?}; its names are such as cache_k_l0, cache_v_l0, cache_r_l0 and cache_s_l0"
    )]
    NoSuchTensor {
        /// The name, shortened.
        name: String,
    },
    /// Somebody wrote past a tensor.
    #[error(
        "byte {offset} behind the end of tensor {tensor:?} was overwritten; whoever filled the cache writes past its \
         tensors (map it with guard pages around tensors to find where)"
    )]
    PaddingDamaged {
        /// The tensor.
        tensor: String,
        /// How many bytes lie between its end and the first one that was overwritten.
        offset: u64,
    },
    /// A buffer that is no whole number of rows.
    #[error("{found} {what} were given, but rows of this plane have {width}; give one row or several")]
    Length {
        /// "values" or "bytes".
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many a row has.
        width: u64,
    },
}
