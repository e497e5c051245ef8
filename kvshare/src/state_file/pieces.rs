//! Cuts the rows of a layer into pieces that are moved at once, in the order in which a file holds them.

use super::{Half, MAX_ROW_BYTES, Run, Stream};

/// Some rows, or some elements of one channel.
pub(super) struct Piece {
    pub run: Run,
    /// The channel of a transposed V.
    pub channel: Option<u32>,
    /// Its length in bytes, at most [`MAX_ROW_BYTES`].
    pub length: usize,
}

/// Room for any piece.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; MAX_ROW_BYTES as usize]
}

impl Stream {
    /// The pieces of one layer's K or V, which was checked to fit in a file.
    pub(super) fn pieces(&self, stream: usize, layer: usize, half: Half) -> impl Iterator<Item = Piece> {
        let shape = self.shape.layers[layer].half(half);
        let is_transposed = self.shape.is_transposed(half);
        let (channels, bytes_per_cell) = match is_transposed {
            true => (shape.width, shape.tensor_type.block_bytes()),
            false => (1, shape.row_bytes().unwrap_or(MAX_ROW_BYTES)),
        };
        let n_cells = self.cells.len() as u64;
        let step = MAX_ROW_BYTES / bytes_per_cell;
        (0..channels).flat_map(move |channel| {
            (0..n_cells.div_ceil(step)).map(move |index| {
                let cells = index * step..n_cells.min((index + 1) * step);
                let length = ((cells.end - cells.start) * bytes_per_cell) as usize;
                Piece { run: Run { stream, layer, half, cells }, channel: is_transposed.then_some(channel), length }
            })
        })
    }
}
