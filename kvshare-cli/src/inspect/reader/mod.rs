//! A cache's regions, read without changing them and without trusting whoever else holds them.
//!
//! [`CacheReader`] gives the rows of any tensor of a header as numbers or as bytes; [`survey`] looks at every row and says
//! which were written, how large they are, and which are odd. Nothing is written, and no page is allocated by looking.
//! A region may shrink meanwhile: its bytes are read by `pread`, which then comes up short, and not through a mapping,
//! which would kill the process. (A dma-buf can only be mapped, and never shrinks.)

mod cache;
mod error;
mod padding;
mod region;
mod survey;

pub use cache::{CacheReader, CacheTensor};
pub use error::ReadError;
pub use padding::Padding;
pub use survey::{Odd, Oddity, RowFacts, RowsSurvey, TensorSurvey, survey};
