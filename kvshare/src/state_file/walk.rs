//! Follows a file from its first byte to its last, skipping the rows.

use std::io::{Cursor, Read, Seek};

use super::contents::check_count;
use super::fields::Fields;
use super::shape::{check_half, check_layer_count};
use super::{
    Cell, CellExtension, Half, LayerShape, MAGIC, MAX_ROW_BYTES, MAX_STREAMS, MAX_WORDS, Medium, PACK_VERSION, Packing,
    RowShape, StateFile, StateFileError, StateShape, Stream, VERSION,
};
use crate::layout::TensorType;

/// What a reader must know, since the file does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether the model has several positions a token (M-RoPE, as Qwen2-VL has), so that each cell is 12 bytes longer.
    pub m_rope: bool,
}

impl StateFile {
    /// Reads everything but the rows, and makes sure that the file ends where it should.
    ///
    /// The file's own numbers are never believed before the bytes they announce are known to be there. What this
    /// accepts has the right form; [`validate`](Self::validate) tells whether it is the right file.
    ///
    /// # Errors
    ///
    /// The first group and the second of [`StateFileError`].
    pub fn walk(reader: impl Read + Seek, options: ReadOptions) -> Result<Self, StateFileError> {
        let mut fields = Fields::new(reader)?;
        read_start(&mut fields)?;
        let (tokens, packing) = read_token_section(&mut fields)?;
        let n_stream = fields.u32("n_stream")?;
        check_count("n_stream", n_stream.into(), 1, MAX_STREAMS)?;
        let mut streams = Vec::new();
        for stream in 0..n_stream as usize {
            streams.push(read_stream(&mut fields, stream, options)?);
        }
        match fields.left() {
            0 => Ok(Self { tokens, packing, streams }),
            extra => Err(StateFileError::TrailingBytes { end: fields.offset(), extra }),
        }
    }

    /// [`walk`](Self::walk) for a file that lies in memory.
    ///
    /// # Errors
    ///
    /// Those of [`walk`](Self::walk).
    pub fn parse(bytes: &[u8], options: ReadOptions) -> Result<Self, StateFileError> {
        Self::walk(Cursor::new(bytes), options)
    }
}

fn read_start(fields: &mut Fields<impl Read + Seek>) -> Result<(), StateFileError> {
    let magic = fields.u32("the magic number")?;
    if magic != MAGIC {
        return Err(StateFileError::Magic { found: magic });
    }
    let version = fields.u32("the version")?;
    if version != VERSION {
        return Err(StateFileError::Version { found: version });
    }
    Ok(())
}

fn read_token_section(fields: &mut Fields<impl Read + Seek>) -> Result<(Vec<i32>, Packing), StateFileError> {
    let n_words = fields.u32("n_words")?;
    check_count("n_words", n_words.into(), 0, MAX_WORDS)?;
    let section = fields.bytes("the token section", 4 * u64::from(n_words))?;
    let words = section.as_chunks().0;
    match words.first().copied().map(i32::from_le_bytes) {
        Some(-1) => Section { rest: &section[4..], n_words }.unpack(),
        _ => Ok((words.iter().copied().map(i32::from_le_bytes).collect(), Packing::Plain)),
    }
}

/// What is left of a packed token section.
struct Section<'a> {
    rest: &'a [u8],
    n_words: u32,
}

impl<'a> Section<'a> {
    fn unpack(mut self) -> Result<(Vec<i32>, Packing), StateFileError> {
        let version = self.u32("the pack version")?;
        if version != PACK_VERSION {
            return Err(StateFileError::PackVersion { found: version });
        }
        let n_tokens = self.u32("n_tokens")?;
        let ids = self.take("the token ids", 4 * u64::from(n_tokens))?;
        let tokens = ids.as_chunks().0.iter().copied().map(i32::from_le_bytes).collect();
        let n_media = self.u32("n_media")?;
        let starts = self.take("the media starts", 4 * u64::from(n_media))?;
        let mut media = Vec::new();
        for start in starts.as_chunks().0 {
            let length = self.u32("a medium's length")?;
            let bytes = self.take("a medium", length.into())?.to_vec();
            media.push(Medium { start: u32::from_le_bytes(*start), bytes });
        }
        self.finish()?;
        Ok((tokens, Packing::Packed(media)))
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, StateFileError> {
        let bytes = self.take(field, 4)?;
        Ok(bytes.first_chunk().copied().map_or(0, u32::from_le_bytes))
    }

    fn take(&mut self, field: &'static str, count: u64) -> Result<&'a [u8], StateFileError> {
        let taken = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        let (taken, rest) = taken.ok_or_else(|| self.wrong_length(field, count))?;
        self.rest = rest;
        Ok(taken)
    }

    /// At most three zeros may be left, which fill the last word.
    fn finish(self) -> Result<(), StateFileError> {
        match self.rest {
            rest if rest.len() > 3 => Err(self.wrong_length("the last part", 0)),
            rest if rest.iter().any(|byte| *byte != 0) => Err(StateFileError::Padding),
            _ => Ok(()),
        }
    }

    fn wrong_length(&self, field: &'static str, count: u64) -> StateFileError {
        let consumed = 4 * u64::from(self.n_words) - self.rest.len() as u64;
        StateFileError::SectionLength { field, end: (consumed + count).div_ceil(4), n_words: self.n_words }
    }
}

fn read_stream(
    fields: &mut Fields<impl Read + Seek>,
    stream: usize,
    options: ReadOptions,
) -> Result<Option<Stream>, StateFileError> {
    let n_cells = fields.u32("cell_count")?;
    if n_cells == 0 {
        return Ok(None);
    }
    let cells = read_cells(fields, stream, n_cells, options)?;
    let v_trans = match fields.u32("v_trans")? {
        0 => false,
        1 => true,
        found => return Err(StateFileError::ValueLayout { stream, found }),
    };
    let n_layer = fields.u32("n_layer")? as usize;
    check_layer_count(n_layer)?;
    let n_rot_k = fields.u32("n_rot_k")?;
    let n_rot_v = fields.u32("n_rot_v")?;

    let mut rows = Rows { fields, stream, n_cells, v_trans };
    let k = (0..n_layer).map(|layer| rows.skip(layer, Half::K)).collect::<Result<Vec<_>, _>>()?;
    let v = (0..n_layer).map(|layer| rows.skip(layer, Half::V)).collect::<Result<Vec<_>, _>>()?;
    let layers = k.into_iter().zip(v).map(|(k, v)| LayerShape { k, v }).collect();
    Ok(Some(Stream { cells, shape: StateShape { layers, v_trans, n_rot_k, n_rot_v } }))
}

fn read_cells(
    fields: &mut Fields<impl Read + Seek>,
    stream: usize,
    n_cells: u32,
    options: ReadOptions,
) -> Result<Vec<Cell>, StateFileError> {
    let cell_bytes = 12 + if options.m_rope { CellExtension::BYTES } else { 0 };
    fields.require("the cells", u64::from(n_cells) * cell_bytes)?;
    let mut cells = Vec::new();
    for cell in 0..n_cells {
        let position = fields.i32("a cell's position")?;
        let count = fields.u32("a cell's n_seq_id")?;
        if count != 1 {
            return Err(StateFileError::CellSequences { stream, cell, count });
        }
        let extension = if options.m_rope { Some(read_extension(fields)?) } else { None };
        let seq_id = fields.i32("a cell's seq_id")?;
        cells.push(Cell { position, seq_id, extension });
    }
    Ok(cells)
}

fn read_extension(fields: &mut Fields<impl Read + Seek>) -> Result<CellExtension, StateFileError> {
    Ok(CellExtension {
        x: fields.i32("a cell's x")?,
        y: fields.i32("a cell's y")?,
        token: fields.i32("a cell's token")?,
    })
}

/// The rows of a stream, as they are stepped over.
struct Rows<'a, R> {
    fields: &'a mut Fields<R>,
    stream: usize,
    n_cells: u32,
    v_trans: bool,
}

impl<R: Read + Seek> Rows<'_, R> {
    /// Reads what stands before the rows of one layer's K or V, and steps over them.
    fn skip(&mut self, layer: usize, half: Half) -> Result<RowShape, StateFileError> {
        let number = self.fields.i32("a layer's type")?;
        let tensor_type = u32::try_from(number)
            .ok()
            .and_then(TensorType::from_ggml_number)
            .ok_or(StateFileError::UnknownType { layer, half, number })?;
        let is_transposed = self.v_trans && half == Half::V;
        let width = match is_transposed {
            true => self.transposed_width(layer, tensor_type)?,
            false => self.row_width(layer, half, tensor_type)?,
        };
        let shape = RowShape { tensor_type, width };
        check_half(layer, half, shape, is_transposed)?;

        let row_bytes = shape.row_bytes().unwrap_or(0);
        let (needed, left) = (row_bytes * u64::from(self.n_cells), self.fields.left());
        if needed > left {
            return Err(StateFileError::TruncatedRows { stream: self.stream, layer, half, needed, left });
        }
        self.fields.skip(needed)?;
        Ok(shape)
    }

    fn row_width(&mut self, layer: usize, half: Half, tensor_type: TensorType) -> Result<u32, StateFileError> {
        let found = self.fields.u64("a layer's row size")?;
        let block_bytes = tensor_type.block_bytes();
        let is_possible = (1..=MAX_ROW_BYTES).contains(&found) && found.is_multiple_of(block_bytes);
        if !is_possible {
            return Err(StateFileError::RowSize { layer, half, tensor_type, found });
        }
        Ok((found / block_bytes * tensor_type.block_elements()) as u32)
    }

    fn transposed_width(&mut self, layer: usize, tensor_type: TensorType) -> Result<u32, StateFileError> {
        let found = self.fields.u32("a layer's element size")?;
        if u64::from(found) != tensor_type.block_bytes() {
            return Err(StateFileError::ElementSize { layer, tensor_type, found });
        }
        self.fields.u32("n_embd_v_gqa")
    }
}
