//! The K and V rows of a mapped cache: written by a provider, read by a decoder, where they lie.
//!
//! A [`MappedCache`] is a header's regions mapped into this process. [`Rows`] reads and [`RowsMut`] writes the rows of one
//! plane, in the cache's own type or converted, contiguous or transposed; no caller computes an offset. What has no rows,
//! a recurrent layer's state, is reached by name ([`MappedCache::tensor`]).
//!
//! ```
//! use kvshare::header::{Header, Params};
//! use kvshare::layout::{Geometry, TensorType};
//! use kvshare::map::{Access, MapOptions};
//! use kvshare::memory::Memfd;
//! use kvshare::rows::{MappedCache, allocate};
//!
//! let layout = Geometry::uniform(2, 64, 64, 256, TensorType::F16).layout()?;
//! let header = Header::describe(&layout, None, Some(Params::plain(256, TensorType::F16)));
//! let descriptors = allocate(&header, &Memfd::new(), "example")?;
//!
//! let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
//! let mut cache = MappedCache::map(&header, &descriptors, &options)?;
//! cache.k_mut(1)?.write_f32(17, &[0.5; 64])?;
//!
//! let mut row = [0.0; 64];
//! cache.k(1)?.read_f32(17, &mut row)?;
//! assert_eq!(row, [0.5; 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod allocate;
mod cache;
mod error;
mod padding;
mod reader;
mod state;
#[cfg(test)]
mod tests;
mod tile;
mod writer;

pub use allocate::allocate;
pub use cache::{CpuAccesses, MappedCache};
pub use error::RowsError;
pub use padding::PADDING_PATTERN;
pub use reader::Rows;
pub use writer::RowsMut;
