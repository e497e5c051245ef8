//! Whether a file restores to exactly what was asked for.
//!
//! The stock server takes a file with more cells than tokens, or with every position off by ten, and then answers from
//! it with other text and no error. Nothing of that passes here.

use super::{Packing, StateFile, StateFileError, StateShape, Stream};

/// What a file is expected to restore to. A field left at `None` is not compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected<'a> {
    /// The prompt's token ids.
    pub tokens: Option<&'a [i32]>,
    /// How many ids the model's vocabulary has.
    pub n_vocab: Option<u32>,
    /// How many cells one sequence can have.
    pub n_ctx: Option<u64>,
    /// How many streams the decoder's cache has.
    pub n_stream: Option<usize>,
    /// The decoder's cache; that of a file it saved itself will do.
    pub shape: Option<&'a StateShape>,
}

impl StateFile {
    /// Makes sure that a decoder which restores this file holds what `expected` says, and nothing else.
    ///
    /// Whatever is expected, the file must have one stream with cells, a cell for each token, positions 0, 1, 2 and so
    /// on, one sequence, and no media.
    ///
    /// # Errors
    ///
    /// The third group of [`StateFileError`]: the first difference, in the order of the file.
    pub fn validate(&self, expected: &Expected<'_>) -> Result<(), StateFileError> {
        self.validate_tokens(expected)?;
        if let Some(n_stream) = expected.n_stream
            && n_stream != self.streams.len()
        {
            return Err(StateFileError::StreamCount { found: self.streams.len(), expected: n_stream });
        }
        let stream = self.only_stream()?;
        self.validate_cells(stream, expected)?;
        match expected.shape {
            Some(shape) => stream.shape.compare(shape),
            None => Ok(()),
        }
    }

    /// The one stream that has cells.
    ///
    /// # Errors
    ///
    /// [`StateFileError::NoCells`] or [`StateFileError::SeveralStreams`].
    pub fn only_stream(&self) -> Result<&Stream, StateFileError> {
        let mut occupied = self.occupied();
        let (_, stream) = occupied.next().ok_or(StateFileError::NoCells)?;
        match occupied.count() {
            0 => Ok(stream),
            others => Err(StateFileError::SeveralStreams { count: others + 1 }),
        }
    }

    /// Whether all rows are made as `cache` says.
    pub(super) fn check_shape(&self, cache: &StateShape) -> Result<(), StateFileError> {
        self.occupied().try_for_each(|(_, stream)| stream.shape.compare(cache))
    }

    fn validate_tokens(&self, expected: &Expected<'_>) -> Result<(), StateFileError> {
        if let Packing::Packed(media) = &self.packing
            && !media.is_empty()
        {
            return Err(StateFileError::Media { count: media.len() });
        }
        if let Some(tokens) = expected.tokens {
            if tokens.len() != self.tokens.len() {
                return Err(StateFileError::TokenCount { found: self.tokens.len(), expected: tokens.len() });
            }
            let mut pairs = self.tokens.iter().zip(tokens).enumerate();
            if let Some((index, (&found, &expected))) = pairs.find(|(_, (found, expected))| found != expected) {
                return Err(StateFileError::Token { index, found, expected });
            }
        }
        let Some(n_vocab) = expected.n_vocab else { return Ok(()) };
        let is_unknown = |id: i32| u32::try_from(id).map_or(true, |id| id >= n_vocab);
        match self.tokens.iter().enumerate().find(|(_, id)| is_unknown(**id)) {
            Some((index, &id)) => Err(StateFileError::Vocabulary { index, id, n_vocab }),
            None => Ok(()),
        }
    }

    fn validate_cells(&self, stream: &Stream, expected: &Expected<'_>) -> Result<(), StateFileError> {
        let cells = &stream.cells;
        if cells.len() != self.tokens.len() {
            return Err(StateFileError::CellCount { cells: cells.len(), tokens: self.tokens.len() });
        }
        if let Some(n_ctx) = expected.n_ctx
            && cells.len() as u64 > n_ctx
        {
            return Err(StateFileError::Context { cells: cells.len(), n_ctx });
        }
        let first = cells.first().map_or(0, |cell| cell.seq_id);
        for (index, cell) in cells.iter().enumerate() {
            if usize::try_from(cell.position) != Ok(index) {
                return Err(StateFileError::Position { cell: index, found: cell.position });
            }
            if cell.seq_id != first {
                return Err(StateFileError::MixedSequences { cell: index, found: cell.seq_id, first });
            }
        }
        Ok(())
    }
}
