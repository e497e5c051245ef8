//! The two caches that are compared, and the ways in which their rows can be read.

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;

use kvshare::header::Header;
use kvshare::layout::{Part, Plane, TensorType, tensor_name};
use kvshare::state_file::Half;
use kvshare::values::{decode_row, rotate};

use super::VerifyError;
use super::rope::{Pairing, Rope};
use crate::inspect::reader::{CacheReader, CacheTensor, ReadError};

/// One layer's K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the layers that have a cache, counted from 0.
    pub index: usize,
    /// K or V.
    pub half: Half,
}

/// The K and V rows of one stream of a cache.
#[derive(Debug)]
pub struct Side {
    reader: CacheReader,
    layers: Vec<Layer>,
    cells: u64,
    stream: u64,
    streams: u64,
}

#[derive(Debug)]
struct Layer {
    number: u32,
    k: CacheTensor,
    v: CacheTensor,
}

/// One way to read a plane: where its elements are, of which type, and what is undone as they are read.
#[derive(Clone, Debug)]
pub struct Reading<'a> {
    /// Where the rows lie, of which type, and by how much they are rotated.
    pub tensor: CacheTensor,
    /// The type of the elements, of which a row's first bytes are read: where it is not the tensor's, a narrower one.
    pub elements: TensorType,
    /// The row of position p is taken from place p + `shift`.
    pub shift: i64,
    /// Whether the bytes of each element are turned round.
    pub bytes_reversed: bool,
    /// How K is turned once it is read.
    pub turn: Option<Turn<'a>>,
}

/// What RoPE has yet to do to a row, or has done wrongly.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// How the model turns its rows.
    pub rope: &'a Rope,
    /// What is done to a row.
    pub kind: TurnKind,
}

/// What is done to the row of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnKind {
    /// It is turned as RoPE should have.
    Apply,
    /// It is turned back with the wrong pairing, and then as it should have been.
    Repair,
    /// It is turned on by so many positions.
    Advance(i8),
}

impl Turn<'_> {
    fn apply(&self, position: u64, row: &mut [f32]) {
        let (rope, position) = (self.rope, position as f64);
        match self.kind {
            TurnKind::Apply => rope.turn(rope.pairing, position, row),
            TurnKind::Repair => {
                rope.turn(rope.pairing.other(), -position, row);
                rope.turn(rope.pairing, position, row);
            }
            TurnKind::Advance(positions) => rope.turn(rope.pairing, positions.into(), row),
        }
    }
}

impl<'a> Reading<'a> {
    /// The way in which `tensor` should be read.
    pub fn right(tensor: CacheTensor) -> Self {
        Self { elements: tensor.plane.tensor_type, tensor, shift: 0, bytes_reversed: false, turn: None }
    }

    /// The same, with K turned.
    pub fn turned(self, rope: &'a Rope, kind: TurnKind) -> Self {
        Self { turn: Some(Turn { rope, kind }), ..self }
    }

    /// Which of `positions` can be read so, of a prompt of `count`: what lies beyond that is not the provider's.
    pub fn available(&self, positions: Range<u64>, count: u64) -> Range<u64> {
        let cells = self.tensor.plane.cells.min(count);
        let first = positions.start.max(0_u64.saturating_add_signed(-self.shift));
        first..positions.end.min(cells.saturating_add_signed(-self.shift)).max(first)
    }
}

impl Side {
    /// One stream of the cache that `header` describes in `descriptors`.
    ///
    /// # Errors
    /// Tensors that do not pair up by layer, none, or no such stream.
    pub fn open(header: &Header, descriptors: &[impl AsFd], stream: u64) -> Result<Self, VerifyError> {
        let planes = header.planes()?;
        let reader = CacheReader::open(header, descriptors)?;
        let layer = |number| {
            let tensor = |part| reader.tensor(&tensor_name(part, number)).map(|tensor| only_stream(tensor, stream));
            Ok(Layer { number, k: tensor(Part::K)?, v: tensor(Part::V)? })
        };
        let layers = planes.layers().iter().map(|planes| layer(planes.layer)).collect::<Result<Vec<_>, ReadError>>()?;
        if layers.is_empty() {
            return Err(VerifyError::NoLayers);
        }
        let streams = planes.streams();
        if stream >= streams {
            return Err(VerifyError::NoStream { stream, streams });
        }
        Ok(Self { reader, layers, cells: planes.cells(), stream, streams })
    }

    /// Every K and V, layer by layer.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.layers.len()).flat_map(|index| Half::BOTH.map(|half| Place { index, half }))
    }

    /// How many layers it has.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Positions that it has room for.
    pub fn cells(&self) -> u64 {
        self.cells
    }

    /// Which of its streams this is.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// How many streams the cache has.
    pub fn streams(&self) -> u64 {
        self.streams
    }

    /// The rows, by tensor.
    pub fn reader(&self) -> &CacheReader {
        &self.reader
    }

    /// The tensor at a place that [`places`](Self::places) has given.
    pub fn tensor(&self, place: Place) -> &CacheTensor {
        let layer = &self.layers[place.index];
        if place.half == Half::K { &layer.k } else { &layer.v }
    }

    /// The model's number of a layer.
    pub fn layer_number(&self, index: usize) -> u32 {
        self.layers[index].number
    }

    /// The rows of `positions` by a `reading` of one of these tensors.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn rows(&self, reading: &Reading<'_>, positions: Range<u64>) -> Result<Vec<f32>, ReadError> {
        let Reading { tensor, elements, shift, bytes_reversed, turn } = reading;
        let places = positions.start.saturating_add_signed(*shift)..positions.end.saturating_add_signed(*shift);
        let plane = &tensor.plane;
        let mut bytes = self.reader.rows_bytes(tensor, 0, places)?;
        if *bytes_reversed {
            bytes.chunks_exact_mut(plane.tensor_type.block_bytes() as usize).for_each(<[u8]>::reverse);
        }
        let width = plane.width as usize;
        let row_bytes = width / elements.block_elements() as usize * elements.block_bytes() as usize;
        let mut values = vec![0.0; bytes.len() / plane.row_bytes() as usize * width];
        let rows = bytes.chunks_exact(plane.row_bytes() as usize).zip(values.chunks_exact_mut(width));
        for (position, (bytes, row)) in positions.zip(rows) {
            decode_row(*elements, bytes.get(..row_bytes).unwrap_or_default(), row)?;
            rotate(row, tensor.rotation)?;
            if let Some(turn) = turn {
                turn.apply(position, row);
            }
        }
        Ok(values)
    }
}

/// `tensor` as if `stream`, which may not be there, were the only one.
fn only_stream(tensor: &CacheTensor, stream: u64) -> CacheTensor {
    let plane = tensor.plane;
    let offset = plane.offset.saturating_add(stream.saturating_mul(plane.stream_bytes()));
    CacheTensor { plane: Plane { offset, streams: 1, ..plane }, ..tensor.clone() }
}

impl fmt::Display for Pairing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Neighbours => "neighbours (2i, 2i + 1)",
            Self::Halves => "halves of a head (i, i + n/2)",
        })
    }
}
