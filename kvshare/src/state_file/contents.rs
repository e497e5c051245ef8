//! What a state file says, all but the rows, and where these lie in it.

use super::{Half, MAX_STREAMS, MAX_WORDS, StateFileError, StateShape};

/// A state file without its rows.
///
/// [`walk`](Self::walk) and [`parse`](Self::parse) make one from a file, [`of_prompt`](Self::of_prompt) from a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    /// The prompt's token ids, one for each cell.
    pub tokens: Vec<i32>,
    /// How the ids are stored, and what goes with them.
    pub packing: Packing,
    /// The cache's streams; `None` for one without a cell. A slot's file has one with cells.
    pub streams: Vec<Option<Stream>>,
}

/// How a file stores its token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Bare ids, as a plain `llama_state_seq_save_file` writes them.
    Plain,
    /// Behind a version, and followed by the prompt's images and sounds, as `llama-server` writes them.
    Packed(Vec<Medium>),
}

/// An image or a sound in the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Medium {
    /// The index of its first token.
    pub start: u32,
    /// Its description, opaque here.
    pub bytes: Vec<u8>,
}

/// A stream that has cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its cells in order; at least one.
    pub cells: Vec<Cell>,
    /// What its rows are made of.
    pub shape: StateShape,
}

/// What a file says of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The position in the sequence.
    pub position: i32,
    /// The sequence it belongs to.
    pub seq_id: i32,
    /// What models with M-RoPE add; all cells have it, or none.
    pub extension: Option<CellExtension>,
}

/// The two-dimensional position of a cell (`llama_kv_cell_ext` in `src/llama-kv-cells.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellExtension {
    /// The column.
    pub x: i32,
    /// The row.
    pub y: i32,
    /// The token id.
    pub token: i32,
}

impl CellExtension {
    /// Its length in a file.
    pub(super) const BYTES: u64 = 12;
}

/// The slot that a file is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The slot's number, which is its `seq_id` and, where each slot has a stream, that stream's number.
    pub id: u32,
    /// How many streams the server's cache has: its number of slots, or 1 for a unified cache.
    pub n_stream: u32,
}

impl Default for Slot {
    /// The only slot of a server.
    fn default() -> Self {
        Self { id: 0, n_stream: 1 }
    }
}

/// Where the rows of one layer's K or V lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stream, from 0.
    pub stream: usize,
    /// The layer, from 0.
    pub layer: usize,
    /// K or V.
    pub half: Half,
    /// The offset of the first row, in bytes from the file's start.
    pub offset: u64,
    /// The bytes of all rows.
    pub length: u64,
}

impl StateFile {
    /// The file that `llama-server` writes for `slot` after a prompt of `tokens`: one cell a token, positions from 0.
    ///
    /// # Errors
    ///
    /// [`StateFileError::Slot`] where the slot has no stream, [`StateFileError::Count`] for too many streams.
    pub fn of_prompt(tokens: Vec<i32>, shape: StateShape, slot: Slot) -> Result<Self, StateFileError> {
        let Slot { id, n_stream } = slot;
        check_count("n_stream", n_stream.into(), 1, MAX_STREAMS)?;
        // All slots of a unified cache share its one stream.
        let occupied = if n_stream == 1 { 0 } else { id };
        if occupied >= n_stream || id >= MAX_STREAMS {
            return Err(StateFileError::Slot { id, n_stream });
        }
        let seq_id = id.cast_signed();
        let cells: Vec<_> =
            (0..).zip(&tokens).map(|(position, _)| Cell { position, seq_id, extension: None }).collect();
        let mut stream = (!cells.is_empty()).then_some(Stream { cells, shape });
        let streams = (0..n_stream).map(|index| if index == occupied { stream.take() } else { None }).collect();
        Ok(Self { tokens, packing: Packing::Packed(Vec::new()), streams })
    }

    /// The streams that have cells, each with its number.
    pub fn occupied(&self) -> impl Iterator<Item = (usize, &Stream)> {
        self.streams.iter().enumerate().filter_map(|(index, stream)| Some((index, stream.as_ref()?)))
    }

    /// Where all rows lie, in the order of the file.
    ///
    /// # Errors
    ///
    /// Where no file can hold what this says: no or too many layers or streams, rows of no whole number of blocks, a
    /// stream with no cell, cells of which only some have an extension, bare ids that begin with -1.
    pub fn records(&self) -> Result<Vec<Record>, StateFileError> {
        Ok(self.lay_out()?.0)
    }

    /// The file's length in bytes.
    ///
    /// # Errors
    ///
    /// Those of [`records`](Self::records).
    pub fn byte_length(&self) -> Result<u64, StateFileError> {
        Ok(self.lay_out()?.1)
    }

    /// The records, and where the last one ends.
    fn lay_out(&self) -> Result<(Vec<Record>, u64), StateFileError> {
        self.check()?;
        let mut records = Vec::new();
        // The magic number, the version, n_words and n_stream; then the words.
        let mut offset = 16 + 4 * u64::from(self.n_words()?);
        for (index, stream) in self.streams.iter().enumerate() {
            offset += 4;
            if let Some(stream) = stream {
                offset = stream.lay_out(index, offset, &mut records).ok_or(StateFileError::TooLong)?;
            }
        }
        Ok((records, offset))
    }

    /// How many words the token section takes.
    pub(super) fn n_words(&self) -> Result<u32, StateFileError> {
        let words = match &self.packing {
            Packing::Plain => self.tokens.len() as u64,
            Packing::Packed(media) => {
                let media_bytes: u64 = media.iter().map(|medium| 8 + medium.bytes.len() as u64).sum();
                // -1, the pack version, n_tokens and n_media stand around the ids.
                4 + self.tokens.len() as u64 + media_bytes.div_ceil(4)
            }
        };
        check_count("n_words", words, 0, MAX_WORDS)
    }

    /// Whether a file can say this.
    fn check(&self) -> Result<(), StateFileError> {
        check_count("n_stream", self.streams.len() as u64, 1, MAX_STREAMS)?;
        if self.packing == Packing::Plain && self.tokens.first() == Some(&-1) {
            return Err(StateFileError::PlainMarker);
        }
        for (index, stream) in self.occupied() {
            check_count("cell_count", stream.cells.len() as u64, 1, u32::MAX)?;
            let has_extensions = stream.has_extensions();
            if stream.cells.iter().any(|cell| cell.extension.is_some() != has_extensions) {
                return Err(StateFileError::MixedExtensions { stream: index });
            }
            stream.shape.check()?;
        }
        Ok(())
    }
}

impl Stream {
    /// Whether its cells have an M-RoPE extension.
    pub(super) fn has_extensions(&self) -> bool {
        self.cells.first().is_some_and(|cell| cell.extension.is_some())
    }

    /// Adds the stream's records, the first of its cells being at `offset`; returns where it ends, if that is a number.
    fn lay_out(&self, stream: usize, offset: u64, records: &mut Vec<Record>) -> Option<u64> {
        let n_cells = self.cells.len() as u64;
        let cell_bytes = 12 + if self.has_extensions() { CellExtension::BYTES } else { 0 };
        // v_trans, n_layer, n_rot_k and n_rot_v follow the cells.
        let mut offset = offset.checked_add(n_cells.checked_mul(cell_bytes)?)?.checked_add(16)?;
        for half in Half::BOTH {
            // The type and the row size, or the type, the element size and the width: 12 bytes both.
            for (layer, shape) in self.shape.layers.iter().enumerate() {
                offset = offset.checked_add(12)?;
                let length = shape.half(half).row_bytes()?.checked_mul(n_cells)?;
                records.push(Record { stream, layer, half, offset, length });
                offset = offset.checked_add(length)?;
            }
        }
        Some(offset)
    }
}

/// `count` as the file's 32-bit number, where it lies between `least` and `most`.
pub(super) fn check_count(field: &'static str, count: u64, least: u32, most: u32) -> Result<u32, StateFileError> {
    match u32::try_from(count) {
        Ok(fits) if (least..=most).contains(&fits) => Ok(fits),
        _ => Err(StateFileError::Count { field, count, least: least.into(), most: most.into() }),
    }
}
