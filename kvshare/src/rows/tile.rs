//! Rows turned into channels, a tile at a time.
//!
//! A transposed plane keeps the positions of one channel together, so a row's elements lie `kv_size` elements apart, each on
//! a page of its own. Written row by row, every element costs a cache line and a page's translation. A tile of many rows
//! gathers each channel's positions in the processor's cache first, and they go out as runs.

/// Positions of a tile: a run of so many elements fills whole cache lines.
pub(super) const POSITIONS: usize = 128;
/// Channels of a tile. A rotation is longer, so planes that have one are not tiled.
pub(super) const CHANNELS: usize = 64;
/// Fewer rows than this make no runs worth having.
pub(super) const LEAST_ROWS: u64 = 4;

const MOST_ELEMENT_BYTES: usize = 4;

/// Elements of some positions and channels, channel by channel.
pub(super) struct Tile {
    bytes: [u8; POSITIONS * CHANNELS * MOST_ELEMENT_BYTES],
    element_bytes: usize,
}

impl Tile {
    /// For elements of `element_bytes`, 2 or 4.
    pub(super) fn new(element_bytes: usize) -> Self {
        debug_assert!(matches!(element_bytes, 2 | 4), "the types that a transposed plane can have");
        Self { bytes: [0; POSITIONS * CHANNELS * MOST_ELEMENT_BYTES], element_bytes }
    }

    /// Puts a part of the row of `position`, counted from the tile's first, into its channels.
    pub(super) fn put(&mut self, position: usize, elements: &[u8]) {
        if self.element_bytes == 2 {
            put::<2>(&mut self.bytes, position, elements);
        } else {
            put::<4>(&mut self.bytes, position, elements);
        }
    }

    /// The first `positions` elements of `channel`, counted from the tile's first.
    pub(super) fn channel(&self, channel: usize, positions: usize) -> &[u8] {
        &self.bytes[channel * POSITIONS * self.element_bytes..][..positions * self.element_bytes]
    }
}

fn put<const N: usize>(tile: &mut [u8], position: usize, elements: &[u8]) {
    let (places, _) = tile.as_chunks_mut::<N>();
    for (place, element) in places[position..].iter_mut().step_by(POSITIONS).zip(elements.as_chunks::<N>().0) {
        *place = *element;
    }
}
