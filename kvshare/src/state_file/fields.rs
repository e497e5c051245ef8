//! Reads little-endian fields one after the other, never past the end, and never more than is there.

use std::io::{BufReader, Read, Seek, SeekFrom};

use super::StateFileError;

/// A reader that knows how much of its file is left.
pub(super) struct Fields<R> {
    reader: BufReader<R>,
    offset: u64,
    length: u64,
}

impl<R: Read + Seek> Fields<R> {
    /// Starts at the beginning of `reader`, whatever its position.
    pub(super) fn new(mut reader: R) -> Result<Self, StateFileError> {
        let length = reader.seek(SeekFrom::End(0)).map_err(cannot_seek)?;
        reader.rewind().map_err(cannot_seek)?;
        Ok(Self { reader: BufReader::new(reader), offset: 0, length })
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn left(&self) -> u64 {
        self.length - self.offset
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, StateFileError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, StateFileError> {
        self.array(field).map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, StateFileError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// So many bytes, held in memory as they come and not as they are announced.
    pub(super) fn bytes(&mut self, field: &'static str, count: u64) -> Result<Vec<u8>, StateFileError> {
        self.require(field, count)?;
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(count).read_to_end(&mut bytes).map_err(cannot_read)?;
        self.offset += read as u64;
        if (read as u64) < count {
            return Err(cannot_read(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }

    /// Refuses a field that is longer than what is left.
    pub(super) fn require(&self, field: &'static str, needed: u64) -> Result<(), StateFileError> {
        if needed > self.left() {
            return Err(StateFileError::Truncated { field, offset: self.offset, needed, left: self.left() });
        }
        Ok(())
    }

    /// Moves on by `count` bytes, which the caller knows to be there.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), StateFileError> {
        self.offset += count;
        match i64::try_from(count) {
            Ok(distance) => self.reader.seek_relative(distance),
            Err(_) => self.reader.seek(SeekFrom::Start(self.offset)).map(drop),
        }
        .map_err(cannot_seek)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], StateFileError> {
        self.require(field, N as u64)?;
        let mut array = [0; N];
        self.reader.read_exact(&mut array).map_err(cannot_read)?;
        self.offset += N as u64;
        Ok(array)
    }
}

pub(super) fn cannot_read(source: std::io::Error) -> StateFileError {
    StateFileError::Io { action: "read", source }
}

pub(super) fn cannot_seek(source: std::io::Error) -> StateFileError {
    StateFileError::Io { action: "seek in", source }
}

pub(super) fn cannot_write(source: std::io::Error) -> StateFileError {
    StateFileError::Io { action: "write", source }
}
