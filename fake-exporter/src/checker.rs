//! The known function that stands in for a model: what the cache must hold, element by element.
//!
//! A provider writes it, the decoder compares it. Every value is a whole number from -127 to 127, which f32, f16 and
//! bf16 hold exactly, and it depends on the token, the layer, the position, the channel and on K or V: a row that is
//! missing, shifted, swapped or transposed cannot pass.

use kvshare::layout::{LayerPlanes, Part, Plane};
use kvshare::rows::{MappedCache, Rows, RowsError};

/// Values that are written or compared at once, about: whole rows.
const PIECE: usize = 1 << 16;

/// Where a row stands, and for which token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey {
    /// K or V.
    pub part: Part,
    /// The layer's number.
    pub layer: u32,
    /// The position.
    pub position: u64,
    /// The token at the position.
    pub token: i32,
}

impl RowKey {
    /// Fills a row with its values.
    ///
    /// ```
    /// use fake_exporter::checker::RowKey;
    /// use kvshare::layout::Part;
    ///
    /// let key = RowKey { part: Part::K, layer: 3, position: 17, token: 42 };
    /// let (mut k, mut v) = ([0.0; 64], [0.0; 64]);
    /// key.fill(&mut k);
    /// RowKey { part: Part::V, ..key }.fill(&mut v);
    /// assert_ne!(k, v);
    /// assert!(k.iter().all(|value| value.abs() <= 127.0 && value.fract() == 0.0));
    /// ```
    pub fn fill(&self, row: &mut [f32]) {
        let seed = mixed(
            mixed(u64::from(self.token.cast_unsigned()) << 32 | u64::from(self.layer))
                ^ self.position << 1
                ^ u64::from(self.part == Part::V),
        );
        for (channel, value) in (1_u64..).zip(row) {
            // The top byte of a product depends on all bits below it.
            let byte = ((seed ^ channel).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            *value = f32::from(byte.cast_signed().max(-127));
        }
    }
}

/// Spreads every bit over all (the finalizer of MurmurHash3).
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ bits >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

/// Writes the rows of `tokens` for positions from `first` on, in every layer.
///
/// # Errors
/// More tokens than the cache has cells.
pub fn write(cache: &mut MappedCache, tokens: &[i32], first: u64) -> Result<(), RowsError> {
    for LayerPlanes { layer, k, v } in cache.layers().to_vec() {
        for (part, plane) in [(Part::K, k), (Part::V, v)] {
            for (position, tokens) in pieces(&plane, tokens, first) {
                let rows = expected(&plane, part, layer, position, tokens);
                let mut target = if part == Part::K { cache.k_mut(layer)? } else { cache.v_mut(layer)? };
                target.write_f32(position, &rows)?;
            }
        }
    }
    Ok(())
}

/// The first element that is not what the function says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mismatch {
    /// The row.
    pub row: RowKey,
    /// The channel.
    pub channel: usize,
    /// What should be there.
    pub expected: f32,
    /// What is.
    pub found: f32,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { row: RowKey { part, layer, position, token }, channel, expected, found } = self;
        let name = kvshare::layout::tensor_name(*part, *layer);
        write!(
            formatter,
            "{name}, position {position} (token {token}), channel {channel}: {found} instead of {expected}"
        )
    }
}

/// Compares the rows of `tokens` from position 0 on in every layer, and returns the first wrong element.
///
/// # Errors
/// More tokens than the cache has cells.
pub fn first_mismatch(cache: &MappedCache, tokens: &[i32]) -> Result<Option<Mismatch>, RowsError> {
    for LayerPlanes { layer, .. } in cache.layers() {
        for (part, rows) in [(Part::K, cache.k(*layer)?), (Part::V, cache.v(*layer)?)] {
            if let Some(mismatch) = first_mismatch_in(&rows, part, *layer, tokens)? {
                return Ok(Some(mismatch));
            }
        }
    }
    Ok(None)
}

fn first_mismatch_in(rows: &Rows<'_>, part: Part, layer: u32, tokens: &[i32]) -> Result<Option<Mismatch>, RowsError> {
    let plane = rows.plane();
    let width = plane.width as usize;
    for (position, tokens) in pieces(plane, tokens, 0) {
        let expected = expected(plane, part, layer, position, tokens);
        let mut found = vec![0.0; expected.len()];
        rows.read_f32(position, &mut found)?;
        // NaN equals nothing, itself included, and so is found.
        if let Some(index) = (0..found.len()).find(|index| found[*index] != expected[*index]) {
            let (row, channel) = (index / width, index % width);
            let row = RowKey { part, layer, position: position + row as u64, token: tokens[row] };
            return Ok(Some(Mismatch { row, channel, expected: expected[index], found: found[index] }));
        }
    }
    Ok(None)
}

/// `tokens` in runs of about [`PIECE`] values, each with its first position.
fn pieces<'a>(plane: &Plane, tokens: &'a [i32], first: u64) -> impl Iterator<Item = (u64, &'a [i32])> {
    let rows = (PIECE / plane.width.max(1) as usize).max(1);
    tokens.chunks(rows).enumerate().map(move |(index, tokens)| (first + (index * rows) as u64, tokens))
}

fn expected(plane: &Plane, part: Part, layer: u32, first: u64, tokens: &[i32]) -> Vec<f32> {
    let width = plane.width as usize;
    let mut rows = vec![0.0; tokens.len() * width];
    for ((position, token), row) in (first..).zip(tokens).zip(rows.chunks_exact_mut(width)) {
        RowKey { part, layer, position, token: *token }.fill(row);
    }
    rows
}
