//! The header: the JSON that tells a provider which tensor lies where in the regions it was handed.
//!
//! [`Header::parse`] refuses everything that the header alone shows to be wrong; [`Header::check_descriptors`] compares
//! it with what came beside it. Whoever hands a header on sends the bytes as they came, since unknown fields belong to
//! somebody.
//!
//! ```
//! use kvshare::header::{Header, Params};
//! use kvshare::layout::{Geometry, TensorType};
//!
//! let layout = Geometry::uniform(2, 64, 64, 256, TensorType::F16).layout()?;
//! let header = Header::describe(&layout, None, Some(Params::plain(256, TensorType::F16)));
//! assert_eq!(Header::parse(&header.to_json())?, header);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod arrangement;
mod check;
mod digest;
mod error;
mod fields;
mod model;
mod parse;
mod strict_json;
#[cfg(test)]
mod tests;
mod write;

pub use error::HeaderError;

use crate::layout::{Layout, LayoutError, PlacedTensor, Planes, TensorType};

/// A header is at most this many bytes long.
pub const MAX_BYTES: usize = 1 << 20;
/// A header nests at most this deep.
pub const MAX_DEPTH: u32 = 8;
/// A header names at most this many regions.
pub const MAX_REGIONS: usize = 4096;
/// A tensor's name is at most this many bytes long: `GGML_MAX_NAME` (`ggml/include/ggml.h`) less the final zero.
pub const MAX_NAME_BYTES: usize = 63;
/// Rows are rotated in pieces of at most this many elements. Heads, which llama.cpp's pieces divide, are smaller.
pub const MAX_ROTATION: u32 = 1024;
/// The version this library writes, and the only one it reads.
pub const VERSION: u64 = 1;

/// Which regions there are and what lies in them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Which model the cache belongs to, if the sender says so.
    pub model: Option<ModelIdentity>,
    /// The parameters both sides must share, if the sender says them.
    pub params: Option<Params>,
    /// The regions; there is at least one.
    pub regions: Vec<Region>,
    /// The tensors in them; none from a decoder that sends regions only (see [`Header::complete`]).
    pub tensors: Vec<PlacedTensor>,
}

/// Which model a cache belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelIdentity {
    /// Its name, as the GGUF or the file has it.
    pub name: String,
    /// The SHA-256 of the model file in hex, if known.
    pub sha256: Option<String>,
}

/// The parameters of a decoder that shape its cache; names as in llama.cpp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Positions of context.
    pub n_ctx: u32,
    /// Logical batch size.
    pub n_batch: u32,
    /// Physical batch size.
    pub n_ubatch: u32,
    /// Whether flash attention is on.
    pub flash_attn: bool,
    /// The type of K.
    pub type_k: TensorType,
    /// The type of V.
    pub type_v: TensorType,
    /// Whether V is stored by channel (without flash attention).
    pub v_trans: bool,
    /// Streams.
    pub n_stream: u32,
    /// The block size of K's rotation, 0 for none (quantized caches rotate).
    pub n_rot_k: u32,
    /// The block size of V's rotation, 0 for none.
    pub n_rot_v: u32,
}

impl Params {
    /// Flash attention on, one stream, llama.cpp's default batch sizes, nothing rotated.
    pub fn plain(n_ctx: u32, tensor_type: TensorType) -> Self {
        Self {
            n_ctx,
            n_batch: 2048,
            n_ubatch: 512,
            flash_attn: true,
            type_k: tensor_type,
            type_v: tensor_type,
            v_trans: false,
            n_stream: 1,
            n_rot_k: 0,
            n_rot_v: 0,
        }
    }
}

/// One exported piece of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The index of its descriptor among those that came with the header. Several regions may share one.
    pub fd: usize,
    /// Where in the descriptor it starts, in bytes; a multiple of 4096.
    pub offset: u64,
    /// Its bytes; a multiple of 4096.
    pub size: u64,
    /// The layout hash of the tensors in it.
    pub layout: u64,
    /// Which memory it belongs to, counted from 0.
    pub group: u32,
}

impl Region {
    /// The offset in the descriptor just past the region.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

impl Header {
    /// The header of `layout`, each chunk a region at the start of a descriptor of its own.
    pub fn describe(layout: &Layout, model: Option<ModelIdentity>, params: Option<Params>) -> Self {
        let regions = layout.chunks().iter().enumerate().map(|(fd, chunk)| Region {
            fd,
            offset: 0,
            size: chunk.size,
            layout: chunk.hash,
            group: chunk.group,
        });
        Self { model, params, regions: regions.collect(), tensors: layout.tensors().to_vec() }
    }

    /// How many descriptors the header names: one more than the highest index.
    pub fn descriptor_count(&self) -> usize {
        self.regions.iter().map(|region| region.fd.saturating_add(1)).max().unwrap_or(0)
    }

    /// The bytes of all regions together.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().fold(0, |sum, region| sum.saturating_add(region.size))
    }

    /// Whether V is stored by channel; not, where the header does not say.
    pub fn v_trans(&self) -> bool {
        self.params.as_ref().is_some_and(|params| params.v_trans)
    }

    /// The K and V planes of its tensors.
    ///
    /// # Errors
    /// Tensors that do not pair up by layer.
    pub fn planes(&self) -> Result<Planes, LayoutError> {
        Planes::of(&self.tensors, self.v_trans())
    }
}
