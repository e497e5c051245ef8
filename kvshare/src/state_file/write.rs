//! Writes a file: its description from memory, its rows from a cache, in bounded pieces.

use std::io::{BufWriter, Write};

use super::fields::cannot_write;
use super::pieces;
use super::{CacheSource, CopyError, Half, MAGIC, PACK_VERSION, Packing, StateFile, StateFileError, Stream, VERSION};

impl StateFile {
    /// Writes the file to `out`, byte for byte as `llama-server` would, with the rows of `source`.
    ///
    /// Returns its length. Rows are asked for in the file's order, all K of a stream before its V, and never more than
    /// 1 MiB at once. To replace a file that a server may be reading, go through [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`CopyError::File`] where `out` fails or, with nothing written, where no file can hold what this says or its rows
    /// are not such as the source's; [`CopyError::Cache`] where `source` fails. What was written by then is no state file.
    pub fn write<S: CacheSource>(&self, source: &S, out: impl Write) -> Result<u64, CopyError<S::Error>> {
        let length = self.byte_length()?;
        self.check_shape(&source.shape())?;
        let mut out = BufWriter::with_capacity(1 << 16, out);
        out.write_all(&self.start_bytes()?).map_err(cannot_write)?;
        let mut buffer = pieces::buffer();
        for (index, stream) in self.streams.iter().enumerate() {
            match stream {
                Some(stream) => stream.write(index, source, &mut buffer, &mut out)?,
                None => out.write_all(&0_u32.to_le_bytes()).map_err(cannot_write)?,
            }
        }
        out.flush().map_err(cannot_write)?;
        Ok(length)
    }

    /// Everything before the first stream.
    fn start_bytes(&self) -> Result<Vec<u8>, StateFileError> {
        let n_words = self.n_words()?;
        let mut bytes = words([MAGIC, VERSION, n_words]);
        let ids = self.tokens.iter().flat_map(|id| id.to_le_bytes());
        match &self.packing {
            Packing::Plain => bytes.extend(ids),
            Packing::Packed(media) => {
                bytes.extend(words([u32::MAX, PACK_VERSION, self.tokens.len() as u32]));
                bytes.extend(ids);
                bytes.extend(words([media.len() as u32]));
                bytes.extend(media.iter().flat_map(|medium| medium.start.to_le_bytes()));
                for medium in media {
                    bytes.extend(words([medium.bytes.len() as u32]));
                    bytes.extend(&medium.bytes);
                }
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        bytes.extend(words([self.streams.len() as u32]));
        Ok(bytes)
    }
}

impl Stream {
    fn write<S: CacheSource>(
        &self,
        index: usize,
        source: &S,
        buffer: &mut [u8],
        out: &mut impl Write,
    ) -> Result<(), CopyError<S::Error>> {
        out.write_all(&self.head_bytes()).map_err(cannot_write)?;
        for half in Half::BOTH {
            for layer in 0..self.shape.layers.len() {
                out.write_all(&self.record_head(layer, half)).map_err(cannot_write)?;
                for piece in self.pieces(index, layer, half) {
                    let bytes = &mut buffer[..piece.length];
                    match piece.channel {
                        None => source.read_rows(&piece.run, bytes),
                        Some(channel) => source.read_channel(&piece.run, channel, bytes),
                    }
                    .map_err(|source| CopyError::Cache { run: piece.run, source })?;
                    out.write_all(bytes).map_err(cannot_write)?;
                }
            }
        }
        Ok(())
    }

    /// The cells, and what stands between them and the first record.
    fn head_bytes(&self) -> Vec<u8> {
        let mut bytes = words([self.cells.len() as u32]);
        for cell in &self.cells {
            bytes.extend(words([cell.position.cast_unsigned(), 1]));
            if let Some(extension) = cell.extension {
                bytes.extend(words([extension.x, extension.y, extension.token].map(i32::cast_unsigned)));
            }
            bytes.extend(cell.seq_id.to_le_bytes());
        }
        let shape = &self.shape;
        let n_layer = shape.layers.len() as u32;
        bytes.extend(words([shape.v_trans.into(), n_layer, shape.n_rot_k, shape.n_rot_v]));
        bytes
    }

    /// What stands before the rows of one layer's K or V.
    fn record_head(&self, layer: usize, half: Half) -> Vec<u8> {
        let shape = self.shape.layers[layer].half(half);
        let number = shape.tensor_type.ggml_number();
        if self.shape.is_transposed(half) {
            return words([number, shape.tensor_type.block_bytes() as u32, shape.width]);
        }
        let mut bytes = words([number]);
        bytes.extend(shape.row_bytes().unwrap_or(0).to_le_bytes());
        bytes
    }
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}
