//! The two sides of a cache that rows move between: where a file's rows come from, and where they go.

use std::fmt;
use std::ops::Range;

use super::{Half, StateFileError, StateShape};

/// Consecutive cells of one layer's K or V.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The stream, from 0.
    pub stream: usize,
    /// The layer among those that have a cache, from 0.
    pub layer: usize,
    /// K or V.
    pub half: Half,
    /// The cells, counted from the stream's first.
    pub cells: Range<u64>,
}

impl fmt::Display for Run {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, layer, half, cells } = self;
        write!(formatter, "{half} of layer {layer}, cells {}..{} of stream {stream}", cells.start, cells.end)
    }
}

/// A cache that rows are read from, to be written to a file.
pub trait CacheSource {
    /// Why a row could not be read.
    type Error;

    /// What its rows are made of. A file of other rows is not written.
    fn shape(&self) -> StateShape;

    /// Fills `rows` with the rows of `run`, one after the other. `rows` is exactly as long as they are.
    ///
    /// # Errors
    ///
    /// Where the cache has no such cells; the file is then left unfinished.
    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), Self::Error>;

    /// Fills `elements` with the elements of one `channel` of a transposed V, a cell after the other.
    ///
    /// # Errors
    ///
    /// As [`read_rows`](Self::read_rows).
    fn read_channel(&self, run: &Run, channel: u32, elements: &mut [u8]) -> Result<(), Self::Error>;
}

/// A cache that rows of a file are written to.
pub trait CacheSink {
    /// Why a row could not be written.
    type Error;

    /// What its rows are made of. A file of other rows is not read into it.
    fn shape(&self) -> StateShape;

    /// Takes the rows of `run`, one after the other.
    ///
    /// # Errors
    ///
    /// Where the cache has no such cells; rows taken before stay as they are.
    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), Self::Error>;

    /// Takes the elements of one `channel` of a transposed V, a cell after the other.
    ///
    /// # Errors
    ///
    /// As [`write_rows`](Self::write_rows).
    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), Self::Error>;
}

/// Why rows did not move between a file and a cache: the file's fault, or the cache's.
#[derive(Debug, thiserror::Error)]
pub enum CopyError<E> {
    /// The file could not be read or written, or cannot hold such a cache.
    #[error(transparent)]
    File(#[from] StateFileError),
    /// The cache refused a run.
    #[error("the cache refused {run}: {source}")]
    Cache {
        /// The rows that were asked for.
        run: Run,
        /// What the cache said.
        source: E,
    },
}
