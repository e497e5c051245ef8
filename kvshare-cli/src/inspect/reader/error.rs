//! Why a region's bytes cannot be read.

use std::sync::Arc;

use kvshare::fd::FdError;
use kvshare::layout::LayoutError;
use kvshare::map::MapError;
use kvshare::values::ValuesError;
use rustix::io::Errno;

/// Why a region's bytes cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The descriptor is no memory, or the kernel does not say what it is.
    #[error(transparent)]
    Descriptor(#[from] Arc<FdError>),
    /// It can be written only.
    #[error("the descriptor is not open for reading; send one that is open for reading and writing")]
    NotReadable,
    /// Only a device reaches the memory.
    #[error("this memory cannot be read by the CPU; ask its device's tools")]
    NotByCpu,
    /// There are fewer bytes than the header says, or than there were before.
    #[error(
        "byte {offset} of the region is past the end of its memory: the memory is smaller than the header says, or \
         somebody shrinks it (seal it with F_SEAL_SHRINK)"
    )]
    PastEnd {
        /// The first byte that is not there, from the region's start.
        offset: u64,
    },
    /// A dma-buf that cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A layer, position or stream that the cache does not have.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Bytes that are no whole row.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// A descriptor that the header names and that is not there.
    #[error("region {region} lies in descriptor {index} of the header, but only {count} were given")]
    NoDescriptor {
        /// The region.
        region: usize,
        /// The descriptor's index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A tensor that the header does not have.
    #[error("there is no tensor {name:?}; the header's are {available}")]
    NoSuchTensor {
        /// The name, shortened.
        name: String,
        /// The first and the last there is.
        available: String,
    },
    /// A row that no model has.
    #[error("a row of {width} elements is not read as a whole; at most {limit} are")]
    LongRow {
        /// Its elements.
        width: u64,
        /// The most.
        limit: u64,
    },
    /// A system call failed that seldom does.
    #[error("{call} failed: {errno}")]
    System {
        /// The call, by the name of its manual page.
        call: &'static str,
        /// What the system answered.
        errno: Errno,
    },
}
