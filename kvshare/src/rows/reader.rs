//! Reading rows of one plane.

use super::RowsError;
use crate::layout::{LayoutError, Plane};
use crate::map::MappedRegion;
use crate::values::{decode_row, rotate};

/// Elements that are converted at once. A multiple of every block and of every rotation.
pub(super) const PIECE: usize = 1024;
/// Bytes that [`PIECE`] elements take at most.
pub(super) const PIECE_BYTES: usize = PIECE * 4;

/// The rows of one plane, in one stream, for reading.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    region: &'a MappedRegion,
    plane: Plane,
    rotation: u32,
    stream: u64,
}

impl<'a> Rows<'a> {
    pub(super) fn new(region: &'a MappedRegion, plane: Plane, rotation: u32) -> Self {
        Self { region, plane, rotation, stream: 0 }
    }

    /// The same plane in another stream.
    ///
    /// # Errors
    /// No such stream.
    pub fn stream(self, stream: u64) -> Result<Self, RowsError> {
        check_stream(&self.plane, stream)?;
        Ok(self.at_stream(stream))
    }

    /// The same plane in a stream that is known to exist.
    pub(super) fn at_stream(self, stream: u64) -> Self {
        Self { stream, ..self }
    }

    /// Where the plane lies and what it holds.
    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    /// Reads rows from position `first` on, as many as fit into `bytes` exactly, each contiguous whatever the plane is.
    ///
    /// # Errors
    /// A part of a row, or a position beyond the cache.
    #[inline]
    pub fn read_bytes(&self, first: u64, bytes: &mut [u8]) -> Result<(), RowsError> {
        let count = whole_rows("bytes", bytes.len(), self.plane.row_bytes())?;
        if self.plane.transposed {
            let element = self.plane.tensor_type.block_bytes() as usize;
            return self.read_transposed(first, count, |index, value| {
                bytes[index * element..][..element].copy_from_slice(value);
                Ok(())
            });
        }
        let (offset, len) = self.plane.rows(self.stream, first, count)?;
        Ok(self.region.view(offset, len)?.copy_to(bytes)?)
    }

    /// Reads rows from position `first` on, as many as fit into `values` exactly, as the model computed them: converted,
    /// and turned back where the cache is rotated.
    ///
    /// # Errors
    /// A part of a row, or a position beyond the cache.
    pub fn read_f32(&self, first: u64, values: &mut [f32]) -> Result<(), RowsError> {
        let count = whole_rows("values", values.len(), self.plane.width)?;
        let tensor_type = self.plane.tensor_type;
        if self.plane.transposed {
            self.read_transposed(first, count, |index, value| {
                Ok(decode_row(tensor_type, value, &mut values[index..=index])?)
            })?;
        } else {
            let (offset, len) = self.plane.rows(self.stream, first, count)?;
            let view = self.region.view(offset, len)?;
            let mut buffer = [0; PIECE_BYTES];
            let mut done = 0;
            for piece in values.chunks_mut(PIECE) {
                let bytes = &mut buffer[..bytes_of(&self.plane, piece.len())];
                view.sub(done, bytes.len())?.copy_to(bytes)?;
                decode_row(tensor_type, bytes, piece)?;
                done += bytes.len();
            }
        }
        Ok(rotate(values, self.rotation)?)
    }

    /// Hands over each element of `count` rows with its index among them, channel by channel, as they lie.
    fn read_transposed(
        &self,
        first: u64,
        count: u64,
        mut element: impl FnMut(usize, &[u8]) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let element_bytes = self.plane.tensor_type.block_bytes() as usize;
        let width = self.plane.width as usize;
        let mut buffer = [0; PIECE_BYTES];
        for channel in 0..self.plane.width {
            let (offset, len) = self.plane.channel(self.stream, channel, first, count)?;
            let view = self.region.view(offset, len)?;
            for start in (0..view.len()).step_by(PIECE_BYTES) {
                let bytes = &mut buffer[..(view.len() - start).min(PIECE_BYTES)];
                view.sub(start, bytes.len())?.copy_to(bytes)?;
                for (position, value) in (start / element_bytes..).zip(bytes.chunks_exact(element_bytes)) {
                    element(position * width + channel as usize, value)?;
                }
            }
        }
        Ok(())
    }

    /// Reads `channel` of a transposed plane from position `first` on, as many elements as fit into `bytes` exactly.
    pub(super) fn read_channel(&self, channel: u64, first: u64, bytes: &mut [u8]) -> Result<(), RowsError> {
        let count = whole_rows("bytes", bytes.len(), self.plane.tensor_type.block_bytes())?;
        let (offset, len) = self.plane.channel(self.stream, channel, first, count)?;
        Ok(self.region.view(offset, len)?.copy_to(bytes)?)
    }
}

/// How many rows of `width` make up `found`.
#[inline]
pub(super) fn whole_rows(what: &'static str, found: usize, width: u64) -> Result<u64, RowsError> {
    if found as u64 == width {
        // One row, the usual case, is spared the division.
        Ok(1)
    } else if (found as u64).is_multiple_of(width) {
        Ok(found as u64 / width)
    } else {
        Err(RowsError::Length { what, found, width })
    }
}

/// The bytes of `elements`, which are whole blocks, in the plane's type.
pub(super) fn bytes_of(plane: &Plane, elements: usize) -> usize {
    elements / plane.tensor_type.block_elements() as usize * plane.tensor_type.block_bytes() as usize
}

pub(super) fn check_stream(plane: &Plane, stream: u64) -> Result<(), LayoutError> {
    plane.check_positions(stream, 0, 0)
}
