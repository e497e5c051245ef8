//! Rows of any tensor of a header.

use std::ops::Range;
use std::os::fd::AsFd;

use kvshare::header::Header;
use kvshare::layout::{Part, PlacedTensor, Plane};
use kvshare::map::Extent;
use kvshare::values::{decode_row, rotate};

use super::ReadError;
use super::padding::Padding;
use super::region::RegionBytes;

/// Elements that are read at once, at most: what a header announces is never allocated. A multiple of every block and
/// every rotation.
pub(super) const PIECE: u64 = 1 << 16;

/// Elements of a row that is given as a whole, at most. Those of real models, recurrent states included, are shorter.
const LONGEST_ROW: u64 = 1 << 24;

/// The regions of a header, for reading.
#[derive(Debug)]
pub struct CacheReader {
    regions: Vec<Result<RegionBytes, ReadError>>,
    tensors: Vec<CacheTensor>,
}

/// One tensor, seen as rows of one position each.
#[derive(Clone, Debug)]
pub struct CacheTensor {
    /// Its name, type and place.
    pub placed: PlacedTensor,
    /// What part of which layer it is, if its name says so.
    pub part_and_layer: Option<(Part, u32)>,
    /// Where its rows lie.
    pub plane: Plane,
    /// By how much its rows are rotated, 0 for not at all.
    pub rotation: u32,
}

impl CacheTensor {
    /// Its name.
    pub fn name(&self) -> &str {
        self.placed.tensor.name()
    }
}

impl CacheReader {
    /// Takes up the regions of `header`, whose descriptors are `descriptors` in the header's order.
    ///
    /// A region that cannot be read is no error here: the others can.
    ///
    /// # Errors
    /// A tensor that is not made of rows.
    pub fn open(header: &Header, descriptors: &[impl AsFd]) -> Result<Self, ReadError> {
        let regions = header.regions.iter().enumerate().map(|(region, described)| {
            let (index, count) = (described.fd, descriptors.len());
            let descriptor = descriptors.get(index).ok_or(ReadError::NoDescriptor { region, index, count })?;
            RegionBytes::open(descriptor.as_fd(), Extent { offset: described.offset, size: described.size })
        });
        let tensors = header.tensors.iter().map(|placed| tensor(header, placed)).collect::<Result<_, _>>()?;
        Ok(Self { regions: regions.collect(), tensors })
    }

    /// The tensors, in the header's order.
    pub fn tensors(&self) -> &[CacheTensor] {
        &self.tensors
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`ReadError::NoSuchTensor`].
    pub fn tensor(&self, name: &str) -> Result<&CacheTensor, ReadError> {
        self.tensors.iter().find(|tensor| tensor.name() == name).ok_or_else(|| ReadError::NoSuchTensor {
            name: name.chars().take(64).collect(),
            available: match &self.tensors[..] {
                [] => "none".to_owned(),
                [only] => only.name().to_owned(),
                [first, .., last] => format!("{} to {}", first.name(), last.name()),
            },
        })
    }

    /// The row of `position` as the model computed it: converted, and turned back where the cache is rotated.
    ///
    /// # Errors
    /// A position or stream that there is not, or memory that cannot be read.
    pub fn row(&self, tensor: &CacheTensor, stream: u64, position: u64) -> Result<Vec<f32>, ReadError> {
        let mut row = Vec::new();
        self.each_piece(tensor, stream, position, |bytes, elements| {
            let start = row.len();
            row.resize(start + elements, 0.0);
            decode_row(tensor.plane.tensor_type, bytes, &mut row[start..])?;
            Ok(rotate(&mut row[start..], tensor.rotation)?)
        })?;
        Ok(row)
    }

    /// The row of `position` as it lies in memory, its elements one after the other.
    ///
    /// # Errors
    /// Those of [`row`](Self::row).
    pub fn row_bytes(&self, tensor: &CacheTensor, stream: u64, position: u64) -> Result<Vec<u8>, ReadError> {
        let mut row = Vec::new();
        self.each_piece(tensor, stream, position, |bytes, _| {
            row.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(row)
    }

    /// The rows of `positions` one after the other, each as [`row_bytes`](Self::row_bytes) gives it.
    ///
    /// All of them are in memory at once: ask for as many as that bears.
    ///
    /// # Errors
    /// Those of [`row`](Self::row).
    pub fn rows_bytes(&self, tensor: &CacheTensor, stream: u64, positions: Range<u64>) -> Result<Vec<u8>, ReadError> {
        let mut rows = Vec::new();
        if tensor.plane.width <= PIECE {
            self.read_part(tensor, stream, positions, 0..tensor.plane.width, &mut rows)?;
            return Ok(rows);
        }
        for position in positions {
            rows.extend(self.row_bytes(tensor, stream, position)?);
        }
        Ok(rows)
    }

    /// What the padding behind a tensor holds.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn padding(&self, tensor: &CacheTensor) -> Result<Padding, ReadError> {
        let mut bytes = vec![0; tensor.placed.padding() as usize];
        self.region(tensor)?.read(tensor.placed.end(), &mut bytes)?;
        Ok(Padding::of(&bytes))
    }

    pub(super) fn region(&self, tensor: &CacheTensor) -> Result<&RegionBytes, ReadError> {
        // A header is checked: its tensors' regions are there.
        let region = self.regions.get(tensor.plane.region);
        region
            .ok_or(ReadError::NoDescriptor { region: tensor.plane.region, index: 0, count: 0 })?
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Hands over one row in pieces, with the number of elements of each.
    fn each_piece(
        &self,
        tensor: &CacheTensor,
        stream: u64,
        position: u64,
        mut piece: impl FnMut(&[u8], usize) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let width = tensor.plane.width;
        if width > LONGEST_ROW {
            return Err(ReadError::LongRow { width, limit: LONGEST_ROW });
        }
        let mut bytes = Vec::new();
        for first in (0..width).step_by(PIECE as usize) {
            let elements = PIECE.min(width - first);
            self.read_part(tensor, stream, position..position + 1, first..first + elements, &mut bytes)?;
            piece(&bytes, elements as usize)?;
        }
        Ok(())
    }

    /// Reads the elements `channels` of the rows `positions` into `bytes`, row after row whichever way they lie.
    ///
    /// `channels` are whole blocks. Several rows are only asked for with all their channels.
    pub(super) fn read_part(
        &self,
        tensor: &CacheTensor,
        stream: u64,
        positions: Range<u64>,
        channels: Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let (plane, region) = (&tensor.plane, self.region(tensor)?);
        let count = positions.end - positions.start;
        plane.check_positions(stream, positions.start, count)?;
        let row_bytes =
            (channels.end - channels.start) / plane.tensor_type.block_elements() * plane.tensor_type.block_bytes();
        bytes.clear();
        bytes.resize((row_bytes * count) as usize, 0);
        if !plane.transposed {
            return region.read(plane.element(stream, positions.start, channels.start)?, bytes);
        }
        let element = plane.tensor_type.block_bytes() as usize;
        let mut column = vec![0; element * count as usize];
        for (index, channel) in channels.enumerate() {
            let (offset, _) = plane.channel(stream, channel, positions.start, count)?;
            region.read(offset, &mut column)?;
            for (row, value) in bytes.chunks_exact_mut(row_bytes as usize).zip(column.chunks_exact(element)) {
                row[index * element..][..element].copy_from_slice(value);
            }
        }
        Ok(())
    }
}

fn tensor(header: &Header, placed: &PlacedTensor) -> Result<CacheTensor, ReadError> {
    let part_and_layer = placed.tensor.part_and_layer();
    let part = part_and_layer.map(|(part, _)| part);
    let rotation = header.params.as_ref().map_or(0, |params| match part {
        Some(Part::K) => params.n_rot_k,
        Some(Part::V) => params.n_rot_v,
        _ => 0,
    });
    let plane = Plane::new(placed, part == Some(Part::V) && header.v_trans())?;
    Ok(CacheTensor { placed: placed.clone(), part_and_layer, plane, rotation })
}
