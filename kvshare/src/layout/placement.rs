//! Placing tensors, in order, into chunks; each chunk becomes one region.

use std::ops::Range;

use super::{ALIGNMENT, Tensor, layout_hash};

/// A chunk that holds something takes no further tensor that would bring it over this many bytes.
pub const CHUNK_LIMIT: u64 = 1 << 30;

/// One run of tensors that are exported together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes, a multiple of 4096 and at least that.
    pub size: u64,
    /// The layout hash of its tensors.
    pub hash: u64,
    /// Which memory it belongs to, counted from 0: a sliding-window cache or a recurrent state is a group of its own.
    pub group: u32,
    /// Which of the layout's tensors lie in it.
    pub tensors: Range<usize>,
}

/// A tensor and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTensor {
    /// The tensor.
    pub tensor: Tensor,
    /// The index of its region.
    pub region: usize,
    /// Where in the region it starts, in bytes; a multiple of 4096.
    pub offset: u64,
}

impl PlacedTensor {
    /// The offset just past the tensor's last element.
    ///
    /// Saturates, so that a hostile offset compares as too large.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.tensor.bytes())
    }

    /// How many bytes lie between its end and the next multiple of [`ALIGNMENT`], where the next tensor may start.
    pub fn padding(&self) -> u64 {
        let end = self.end();
        // There is no such multiple only after an offset that no region has.
        end.checked_next_multiple_of(ALIGNMENT).map_or(0, |next| next - end)
    }
}

/// Every tensor of a cache in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    chunks: Vec<Chunk>,
    tensors: Vec<PlacedTensor>,
}

impl Layout {
    /// Places the tensors of each group in order. A group starts a new chunk; a cache of nothing is one empty chunk.
    pub fn place(groups: impl IntoIterator<Item = Vec<Tensor>>) -> Self {
        let mut layout = Self { chunks: Vec::new(), tensors: Vec::new() };
        for (group, tensors) in (0..).zip(groups) {
            let mut open = false;
            for tensor in tensors {
                layout.add(tensor, group, open);
                open = true;
            }
        }
        if layout.chunks.is_empty() {
            layout.chunks.push(Chunk { size: ALIGNMENT, hash: 0, group: 0, tensors: 0..0 });
        }
        for chunk in &mut layout.chunks {
            chunk.hash = layout_hash(layout.tensors[chunk.tensors.clone()].iter().map(|placed| &placed.tensor));
        }
        layout
    }

    /// Puts `tensor` behind the last one: in the last chunk if that is `open` and has room, else in a new one.
    fn add(&mut self, tensor: Tensor, group: u32, open: bool) {
        let index = self.tensors.len();
        let room = self.chunks.last().is_some_and(|chunk| CHUNK_LIMIT.saturating_sub(chunk.size) >= tensor.reserved());
        if !(open && room) {
            self.chunks.push(Chunk { size: 0, hash: 0, group, tensors: index..index });
        }
        let region = self.chunks.len() - 1;
        let chunk = &mut self.chunks[region];
        let offset = chunk.size;
        // No overflow: either the chunk was empty, or the sum is at most CHUNK_LIMIT.
        chunk.size += tensor.reserved();
        chunk.tensors.end = index + 1;
        self.tensors.push(PlacedTensor { tensor, region, offset });
    }

    /// The chunks, in order; there is at least one.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[PlacedTensor] {
        &self.tensors
    }

    /// The bytes of all chunks together.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.size))
    }
}
