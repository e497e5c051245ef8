//! Which tensor lies where: types, shapes, placement into regions, the layout hash, and the address of any row.
//!
//! Nothing here touches the operating system. Both sides of a handoff compute all of it apart from each other, so it
//! must agree bit for bit; `docs/layout-vectors.json` holds vectors that other implementations can run.
//!
//! ```
//! use kvshare::layout::{Geometry, TensorType};
//!
//! // Qwen3-0.6B with 20480 cells: 2240 MiB in three regions.
//! let layout = Geometry::uniform(28, 1024, 1024, 20480, TensorType::F16).layout()?;
//! let sizes: Vec<u64> = layout.chunks().iter().map(|chunk| chunk.size).collect();
//! assert_eq!(sizes, [1048576000, 1048576000, 251658240]);
//! assert_eq!(layout.chunks()[2].hash, 1589745360344459949);
//! # Ok::<(), kvshare::layout::LayoutError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod geometry;
mod gguf;
mod hash;
mod placement;
mod plane;
mod planes;
mod tensor;
mod tensor_type;
#[cfg(test)]
mod tests;

pub use error::LayoutError;
pub use geometry::{Geometry, HeadSizes, LayerWidths, RecurrentWidths};
pub use gguf::{GgufError, GgufMetadata, GgufValue};
pub use hash::{EMPTY_HASH, layout_hash};
pub use placement::{CHUNK_LIMIT, Chunk, Layout, PlacedTensor};
pub use plane::{Plane, Row};
pub use planes::{LayerPlanes, Planes};
pub use tensor::{Part, Tensor, tensor_name};
pub use tensor_type::{TensorType, UnknownTensorType};

/// Every tensor and every region starts at a multiple of this many bytes, and a region is at least this long.
pub const ALIGNMENT: u64 = 4096;
