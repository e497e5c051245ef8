//! The address of any row or element of one K or V tensor.

use super::{LayoutError, PlacedTensor, TensorType};

/// The K or the V of one layer: `width` channels for each of `cells` positions of each of `streams` streams.
///
/// Rows are contiguous, one position after the other, unless the plane is `transposed` (V without flash attention):
/// then each channel is contiguous, and element (channel c, position p) lies at `c * cells + p`
/// (`llama_kv_cache::get_v` in llama.cpp's `src/llama-kv-cache.cpp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// The index of the region it lies in.
    pub region: usize,
    /// Where in the region it starts, in bytes.
    pub offset: u64,
    /// The type of its elements.
    pub tensor_type: TensorType,
    /// Channels of one position (`n_embd_k_gqa` or `n_embd_v_gqa`).
    pub width: u64,
    /// Positions of one stream (`kv_size`).
    pub cells: u64,
    /// Streams (`n_stream`).
    pub streams: u64,
    /// Whether a channel, not a row, is contiguous.
    pub transposed: bool,
}

/// Where one position's elements lie, in bytes from the region's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// All together.
    Contiguous {
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// One element every `stride` bytes.
    Strided {
        /// The first element's first byte.
        offset: u64,
        /// Bytes an element.
        element: u64,
        /// From one element's first byte to the next one's.
        stride: u64,
        /// How many elements.
        count: u64,
    },
}

impl Plane {
    /// The plane that `placed` holds, read as `[width, cells, streams]`.
    ///
    /// # Errors
    /// A transposed plane of a type whose elements share a block.
    pub fn new(placed: &PlacedTensor, transposed: bool) -> Result<Self, LayoutError> {
        let tensor_type = placed.tensor.tensor_type();
        if transposed && tensor_type.is_quantized() {
            return Err(LayoutError::TransposedBlocks { name: placed.tensor.name().to_owned(), tensor_type });
        }
        let [width, cells, streams, more] = placed.tensor.ne();
        if more != 1 {
            return Err(LayoutError::Shape { name: placed.tensor.name().to_owned(), ne: placed.tensor.ne().to_vec() });
        }
        Ok(Self { region: placed.region, offset: placed.offset, tensor_type, width, cells, streams, transposed })
    }

    /// The bytes of one position's elements.
    #[inline]
    pub fn row_bytes(&self) -> u64 {
        self.tensor_type.blocks_in(self.width) * self.tensor_type.block_bytes()
    }

    /// The bytes of one stream. Fits, since the whole tensor does.
    #[inline]
    pub fn stream_bytes(&self) -> u64 {
        self.row_bytes() * self.cells
    }

    /// Where the elements of `position` in `stream` lie.
    ///
    /// # Errors
    /// A position or stream beyond the cache.
    pub fn row(&self, stream: u64, position: u64) -> Result<Row, LayoutError> {
        within("stream", stream, self.streams)?;
        within("position", position, self.cells)?;
        let start = self.stream_start(stream);
        Ok(if self.transposed {
            let element = self.tensor_type.block_bytes();
            Row::Strided {
                offset: start + position * element,
                element,
                stride: self.cells * element,
                count: self.width,
            }
        } else {
            Row::Contiguous { offset: start + position * self.row_bytes(), bytes: self.row_bytes() }
        })
    }

    /// Where `count` positions from `first` lie together, as (offset, bytes): whole rows if the plane is not transposed.
    ///
    /// # Errors
    /// A transposed plane, or a position or stream beyond the cache.
    #[inline]
    pub fn rows(&self, stream: u64, first: u64, count: u64) -> Result<(u64, u64), LayoutError> {
        if self.transposed {
            return Err(LayoutError::Transposed);
        }
        self.check_positions(stream, first, count)?;
        Ok((self.stream_start(stream) + first * self.row_bytes(), count * self.row_bytes()))
    }

    /// Where `channel` of `count` positions from `first` lies, as (offset, bytes), in a transposed plane.
    ///
    /// # Errors
    /// A plane that is not transposed, or a position, channel or stream beyond the cache.
    pub fn channel(&self, stream: u64, channel: u64, first: u64, count: u64) -> Result<(u64, u64), LayoutError> {
        if !self.transposed {
            return Err(LayoutError::NotTransposed);
        }
        within("channel", channel, self.width)?;
        self.check_positions(stream, first, count)?;
        let element = self.tensor_type.block_bytes();
        Ok((self.stream_start(stream) + (channel * self.cells + first) * element, count * element))
    }

    /// Where the element of `channel` at `position` in `stream` lies: for a quantized type, where its block does.
    ///
    /// # Errors
    /// A position, channel or stream beyond the cache.
    pub fn element(&self, stream: u64, position: u64, channel: u64) -> Result<u64, LayoutError> {
        within("channel", channel, self.width)?;
        Ok(match self.row(stream, position)? {
            Row::Contiguous { offset, .. } => {
                offset + channel / self.tensor_type.block_elements() * self.tensor_type.block_bytes()
            }
            Row::Strided { offset, stride, .. } => offset + channel * stride,
        })
    }

    /// Whether the cache has `count` positions from `first` on in `stream`, whichever way they lie.
    ///
    /// # Errors
    /// A position or stream beyond the cache.
    #[inline]
    pub fn check_positions(&self, stream: u64, first: u64, count: u64) -> Result<(), LayoutError> {
        within("stream", stream, self.streams)?;
        match first.checked_add(count) {
            Some(end) if end <= self.cells => Ok(()),
            end => {
                let value = end.map_or(u64::MAX, |end| end - 1);
                Err(LayoutError::Outside { what: "position", value, limit: self.cells })
            }
        }
    }

    /// Where a stream starts that is known to exist.
    #[inline]
    fn stream_start(&self, stream: u64) -> u64 {
        self.offset + stream * self.stream_bytes()
    }
}

#[inline]
fn within(what: &'static str, value: u64, limit: u64) -> Result<(), LayoutError> {
    if value < limit { Ok(()) } else { Err(LayoutError::Outside { what, value, limit }) }
}
