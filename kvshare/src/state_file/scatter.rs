//! Moves the rows of a file into a cache, in bounded pieces.

use std::io::{Read, Seek, SeekFrom};

use super::fields::{cannot_read, cannot_seek};
use super::pieces;
use super::{CacheSink, CopyError, Record, StateFile};

impl StateFile {
    /// Reads the rows of `reader`, the file that this was walked from, and hands them to `sink`.
    ///
    /// Never holds more than 1 MiB of them. [`validate`](Self::validate) first: this compares the shapes, and not what
    /// the file restores to.
    ///
    /// # Errors
    ///
    /// [`CopyError::File`] where the file's rows are not such as the sink's, with nothing written; or where `reader`
    /// fails, also because the file has become shorter; [`CopyError::Cache`] where `sink` fails. The sink then has some
    /// of the rows.
    pub fn scatter<S: CacheSink>(&self, mut reader: impl Read + Seek, sink: &mut S) -> Result<(), CopyError<S::Error>> {
        self.check_shape(&sink.shape())?;
        let mut buffer = pieces::buffer();
        for Record { stream: index, layer, half, offset, .. } in self.records()? {
            let Some(stream) = &self.streams[index] else { continue };
            reader.seek(SeekFrom::Start(offset)).map_err(cannot_seek)?;
            for piece in stream.pieces(index, layer, half) {
                let bytes = &mut buffer[..piece.length];
                reader.read_exact(bytes).map_err(cannot_read)?;
                match piece.channel {
                    None => sink.write_rows(&piece.run, bytes),
                    Some(channel) => sink.write_channel(&piece.run, channel, bytes),
                }
                .map_err(|source| CopyError::Cache { run: piece.run, source })?;
            }
        }
        Ok(())
    }
}
