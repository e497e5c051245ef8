//! The llama.cpp sequence-state file, version 4: read, validate, write, and move its rows to and from a cache.
//!
//! It is what `llama-server` writes for `POST /slots/0?action=save` and reads for `restore`, and so the handoff's file
//! route. The stock server trusts such a file too much: one that is cut in its rows takes the server down, and one with
//! wrong positions is answered from with wrong text. So [`StateFile::walk`] follows a file to its last byte, and
//! [`StateFile::validate`] refuses whatever would not restore to exactly the prompt that was asked for.
//!
//! ```text
//! u32 magic "qsgg", u32 version 4
//! u32 n_words, then so many 32-bit words:
//!     i32 -1, u32 1, u32 n_tokens, i32 ids, u32 n_media, u32 starts, per medium (u32 length, bytes), zeros to a word
//!     or, where the first word is not -1: i32 ids
//! u32 n_stream, then per stream:
//!     u32 cell_count, and nothing more where it is 0
//!     per cell: i32 position, u32 1, [i32 x, y, token for M-RoPE models], i32 seq_id
//!     u32 v_trans, u32 n_layer, u32 n_rot_k, u32 n_rot_v
//!     per layer, K: i32 type, u64 row_size, the rows of all cells
//!     per layer, V: the same, or transposed: i32 type, u32 element_size, u32 n_embd_v_gqa, the cells of each channel
//! ```
//!
//! All of it is little-endian and without padding. The cache part is that of `llama_kv_cache::state_write_meta` and
//! `state_write_data` in `src/llama-kv-cache.cpp`. A recurrent memory has another form, which is not read here.
//!
//! No row is ever held as a whole file: reading skips rows, and [`StateFile::write`] and [`StateFile::scatter`] move
//! them in pieces of at most 1 MiB between a file and a [`CacheSource`] or [`CacheSink`].
//!
//! ```
//! use kvshare::layout::TensorType;
//! use kvshare::state_file::{Expected, StateShape, RowShape, ReadOptions, Slot, StateFile};
//! # use kvshare::state_file::{CacheSource, Run};
//! # struct Zeros(StateShape);
//! # impl CacheSource for Zeros {
//! #     type Error = std::convert::Infallible;
//! #     fn shape(&self) -> StateShape { self.0.clone() }
//! #     fn read_rows(&self, _: &Run, rows: &mut [u8]) -> Result<(), Self::Error> { rows.fill(0); Ok(()) }
//! #     fn read_channel(&self, _: &Run, _: u32, part: &mut [u8]) -> Result<(), Self::Error> { part.fill(0); Ok(()) }
//! # }
//! let f16 = RowShape { tensor_type: TensorType::F16, width: 192 };
//! let shape = StateShape::uniform(30, f16, f16);
//! # let cache = Zeros(shape.clone());
//!
//! let mut bytes = Vec::new();
//! StateFile::of_prompt(vec![504, 3575], shape.clone(), Slot::default())?.write(&cache, &mut bytes)?;
//! assert_eq!(bytes.len(), 23056 * 2 + 772);
//!
//! let file = StateFile::parse(&bytes, ReadOptions::default())?;
//! file.validate(&Expected { tokens: Some(&[504, 3575]), shape: Some(&shape), ..Expected::default() })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod contents;
mod error;
mod fields;
mod pieces;
mod publish;
mod scatter;
mod shape;
mod validate;
mod walk;
mod write;

pub use cache::{CacheSink, CacheSource, CopyError, Run};
pub use contents::{Cell, CellExtension, Medium, Packing, Record, Slot, StateFile, Stream};
pub use error::StateFileError;
pub use publish::check_filename;
pub use shape::{Half, LayerShape, RowShape, StateShape};
pub use validate::Expected;
pub use walk::ReadOptions;

/// The first four bytes, "qsgg" (`LLAMA_STATE_SEQ_MAGIC` in `include/llama.h`).
pub const MAGIC: u32 = 0x6767_7371;

/// The version that is read and written (`LLAMA_STATE_SEQ_VERSION`).
pub const VERSION: u32 = 4;

/// The version of the packed token section.
const PACK_VERSION: u32 = 1;

/// The most words that a token section may have. No context is that long; a file that says so is broken, even if it is
/// long enough, since it may be sparse.
const MAX_WORDS: u32 = 1 << 24;

/// The most streams (`LLAMA_MAX_SEQ` in `src/llama-cparams.h`).
const MAX_STREAMS: u32 = 256;

/// The most layers (`LLAMA_MAX_LAYERS` in `src/llama-hparams.h`).
const MAX_LAYERS: u32 = 512;

/// The most bytes of a row, and of a piece moved at once.
const MAX_ROW_BYTES: u64 = 1 << 20;
