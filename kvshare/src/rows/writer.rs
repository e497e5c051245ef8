//! Writing rows of one plane.

use std::ops::Range;

use half::f16;

use super::reader::{PIECE, PIECE_BYTES, bytes_of, check_stream, whole_rows};
use super::tile::{self, Tile};
use super::{Rows, RowsError};
use crate::layout::{Plane, Row, TensorType};
use crate::map::MappedRegion;
use crate::values::{ValuesError, encode_row, encode_row_f16, rotate};

/// The rows of one plane, in one stream, for writing.
#[derive(Debug)]
pub struct RowsMut<'a> {
    region: &'a mut MappedRegion,
    plane: Plane,
    rotation: u32,
    stream: u64,
}

impl<'a> RowsMut<'a> {
    pub(super) fn new(region: &'a mut MappedRegion, plane: Plane, rotation: u32) -> Self {
        Self { region, plane, rotation, stream: 0 }
    }

    /// The same plane in another stream.
    ///
    /// # Errors
    /// No such stream.
    pub fn stream(self, stream: u64) -> Result<Self, RowsError> {
        check_stream(&self.plane, stream)?;
        Ok(Self { stream, ..self })
    }

    /// Where the plane lies and what it holds.
    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    /// The same rows for reading.
    pub fn as_rows(&self) -> Rows<'_> {
        Rows::new(self.region, self.plane, self.rotation).at_stream(self.stream)
    }

    /// Writes rows from position `first` on, each as its bytes lie in a plane that is not transposed; where the cache is
    /// rotated, the bytes must be.
    ///
    /// # Errors
    /// A part of a row, or a position beyond the cache; nothing is written then.
    #[inline]
    pub fn write_bytes(&mut self, first: u64, bytes: &[u8]) -> Result<(), RowsError> {
        let count = whole_rows("bytes", bytes.len(), self.plane.row_bytes())?;
        if !self.plane.transposed {
            let (offset, len) = self.plane.rows(self.stream, first, count)?;
            return Ok(self.region.view_mut(offset, len)?.copy_from(bytes)?);
        }
        let (width, element_bytes) = (self.plane.width as usize, self.plane.tensor_type.block_bytes() as usize);
        self.write_transposed(first, count, |row, channels, elements| {
            let start = row * width + channels.start;
            elements.copy_from_slice(&bytes[start * element_bytes..][..elements.len()]);
            Ok(())
        })
    }

    /// Writes rows of f32 from position `first` on, converted to the cache's type and rotated if the cache is.
    ///
    /// K rows are keys after RoPE; a row has [`Plane::width`] values.
    ///
    /// # Errors
    /// A part of a row, or a position beyond the cache; nothing is written then.
    pub fn write_f32(&mut self, first: u64, values: &[f32]) -> Result<(), RowsError> {
        let (tensor_type, rotation) = (self.plane.tensor_type, self.rotation);
        self.write_converted(first, values, |piece, bytes| {
            if rotation == 0 {
                return encode_row(tensor_type, piece, bytes);
            }
            let mut turned = [0.0; PIECE];
            let turned = &mut turned[..piece.len()];
            turned.copy_from_slice(piece);
            rotate(turned, rotation)?;
            encode_row(tensor_type, turned, bytes)
        })
    }

    /// Writes rows of f16 from position `first` on, as [`write_f32`](Self::write_f32) does.
    ///
    /// # Errors
    /// A part of a row, or a position beyond the cache; nothing is written then.
    pub fn write_f16(&mut self, first: u64, values: &[f16]) -> Result<(), RowsError> {
        let (tensor_type, rotation) = (self.plane.tensor_type, self.rotation);
        if tensor_type == TensorType::F16 && rotation == 0 && cfg!(target_endian = "little") {
            return self.write_bytes(first, bytemuck::must_cast_slice(values));
        }
        self.write_converted(first, values, |piece, bytes| {
            if rotation == 0 {
                return encode_row_f16(tensor_type, piece, bytes);
            }
            let mut turned = [0.0; PIECE];
            let turned = &mut turned[..piece.len()];
            for (wide, narrow) in turned.iter_mut().zip(piece) {
                *wide = narrow.to_f32();
            }
            rotate(turned, rotation)?;
            encode_row(tensor_type, turned, bytes)
        })
    }

    fn write_converted<T>(
        &mut self,
        first: u64,
        values: &[T],
        encode: impl Fn(&[T], &mut [u8]) -> Result<(), ValuesError>,
    ) -> Result<(), RowsError> {
        let count = whole_rows("values", values.len(), self.plane.width)?;
        if self.plane.transposed {
            let width = self.plane.width as usize;
            return self.write_transposed(first, count, |row, channels, bytes| {
                Ok(encode(&values[row * width..][channels], bytes)?)
            });
        }
        let (offset, len) = self.plane.rows(self.stream, first, count)?;
        let mut view = self.region.view_mut(offset, len)?;
        let mut buffer = Buffer::new();
        let mut done = 0;
        for piece in values.chunks(PIECE) {
            let bytes = buffer.first(bytes_of(&self.plane, piece.len()));
            encode(piece, bytes)?;
            view.sub(done, bytes.len())?.copy_from(bytes)?;
            done += bytes.len();
        }
        Ok(())
    }

    /// Writes `count` rows of a transposed plane from position `first` on. `encode` fills the bytes of some channels of a
    /// row, of which it is told the number from 0.
    fn write_transposed(
        &mut self,
        first: u64,
        count: u64,
        encode: impl Fn(usize, Range<usize>, &mut [u8]) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        self.plane.check_positions(self.stream, first, count)?;
        let width = self.plane.width as usize;
        let mut buffer = Buffer::new();
        if count < tile::LEAST_ROWS || self.rotation != 0 {
            for (row, position) in (first..first + count).enumerate() {
                for start in (0..width).step_by(PIECE) {
                    let channels = start..width.min(start + PIECE);
                    let bytes = buffer.first(bytes_of(&self.plane, channels.len()));
                    encode(row, channels, bytes)?;
                    self.write_strided(position, start as u64, bytes)?;
                }
            }
            return Ok(());
        }
        let mut tile = Tile::new(self.plane.tensor_type.block_bytes() as usize);
        for start in (0..count as usize).step_by(tile::POSITIONS) {
            let positions = (count as usize - start).min(tile::POSITIONS);
            for channel in (0..width).step_by(tile::CHANNELS) {
                let channels = channel..width.min(channel + tile::CHANNELS);
                let bytes = buffer.first(bytes_of(&self.plane, channels.len()));
                for position in 0..positions {
                    encode(start + position, channels.clone(), bytes)?;
                    tile.put(position, bytes);
                }
                for (index, channel) in channels.enumerate() {
                    self.write_channel(channel as u64, first + start as u64, tile.channel(index, positions))?;
                }
            }
        }
        Ok(())
    }

    /// Writes elements of `position` from `channel` on into a transposed plane.
    fn write_strided(&mut self, position: u64, channel: u64, elements: &[u8]) -> Result<(), RowsError> {
        if let Row::Strided { offset, element, stride, .. } = self.plane.row(self.stream, position)? {
            let count = elements.len() as u64 / element;
            let span = count.saturating_sub(1) * stride + element;
            let mut view = self.region.view_mut(offset + channel * stride, span)?;
            view.copy_strided_from(element as usize, stride as usize, elements)?;
        }
        Ok(())
    }

    /// Writes `channel` of a transposed plane from position `first` on.
    pub(super) fn write_channel(&mut self, channel: u64, first: u64, bytes: &[u8]) -> Result<(), RowsError> {
        let count = whole_rows("bytes", bytes.len(), self.plane.tensor_type.block_bytes())?;
        let (offset, len) = self.plane.channel(self.stream, channel, first, count)?;
        Ok(self.region.view_mut(offset, len)?.copy_from(bytes)?)
    }
}

/// Room for [`PIECE`] elements of any type, aligned for each of them, so that they can be converted in place.
struct Buffer([u32; PIECE_BYTES / 4]);

impl Buffer {
    const fn new() -> Self {
        Self([0; PIECE_BYTES / 4])
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut bytemuck::must_cast_slice_mut(&mut self.0)[..bytes]
    }
}
