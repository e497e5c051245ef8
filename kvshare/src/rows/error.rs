//! Why rows could not be read or written.

use crate::layout::LayoutError;
use crate::map::MapError;
use crate::values::ValuesError;

/// Why a cache could not be mapped, or a row in it not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// A layer, position or stream that the cache does not have, or tensors that make no cache.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The memory.
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
