//! How far found rows are from expected ones.

use std::ops::Range;

use kvshare::state_file::Half;

use super::side::{Place, Reading, Side};
use super::tolerance::Tolerance;
use crate::inspect::reader::ReadError;

/// Elements that are compared at once, about: whole rows.
const PIECE: u64 = 1 << 18;

/// How far one layer's K or V is from what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// The positions that were compared.
    pub positions: Range<u64>,
    /// The norm of the difference over the norm of the expected rows. Not a number where a found one is none.
    pub relative: f64,
    /// How many rows are off by themselves.
    pub rows_off: u64,
    /// The position of the first of them.
    pub first_off: Option<u64>,
    /// How many of them are all 0, and so were most likely never written.
    pub rows_empty: u64,
    /// Where the two numbers differ most; none where all are equal.
    pub worst: Option<Element>,
    /// The root mean square of the expected numbers, against which `worst` is small or large.
    pub rms: f64,
}

/// One number where another was expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// Its position.
    pub position: u64,
    /// Its channel.
    pub channel: u64,
    /// What is there.
    pub found: f32,
    /// What should be.
    pub expected: f32,
}

impl Element {
    /// The distance; the largest of all where what was found is no number.
    fn distance(&self) -> f64 {
        let distance = (f64::from(self.found) - f64::from(self.expected)).abs();
        if distance.is_nan() { f64::INFINITY } else { distance }
    }
}

impl Agreement {
    /// Whether the rows are right: all together, and each by itself.
    pub fn holds(&self, tolerance: Tolerance, half: Half) -> bool {
        self.relative <= tolerance.of(half) && self.rows_off == 0
    }

    /// How far the worst element is off, in root mean squares of its plane.
    pub fn worst_in_rms(&self) -> f64 {
        self.worst.map_or(0.0, |worst| worst.distance() / self.rms)
    }
}

/// Compares the rows of `positions` that `reading` gives of `found` with those that `expected` has at `place`.
///
/// # Errors
/// Memory that cannot be read.
pub fn compare(
    found: &Side,
    reading: &Reading<'_>,
    expected: &Side,
    place: Place,
    positions: Range<u64>,
    tolerance: Tolerance,
) -> Result<Agreement, ReadError> {
    let right = Reading::right(expected.tensor(place).clone());
    let width = right.tensor.plane.width;
    let at_once = (PIECE / width).max(1);
    let mut rows = Vec::new();
    let mut worst: Option<Element> = None;
    let mut first = positions.start;
    while first < positions.end {
        let piece = first..positions.end.min(first + at_once);
        first = piece.end;
        let (ours, theirs) = (found.rows(reading, piece.clone())?, expected.rows(&right, piece.clone())?);
        let both = ours.chunks_exact(width as usize).zip(theirs.chunks_exact(width as usize));
        for (position, (ours, theirs)) in piece.zip(both) {
            rows.push(Row::of(ours, theirs));
            for (channel, (found, expected)) in (0..).zip(ours.iter().zip(theirs)) {
                let element = Element { position, channel, found: *found, expected: *expected };
                if element.distance() > worst.map_or(0.0, |worst| worst.distance()) {
                    worst = Some(element);
                }
            }
        }
    }
    Ok(judge(positions, width, &rows, worst, tolerance.of_row(place.half)))
}

/// The squares of one row.
struct Row {
    difference: f64,
    expected: f64,
    is_empty: bool,
}

impl Row {
    fn of(found: &[f32], expected: &[f32]) -> Self {
        let square = |value: f64| value * value;
        let differences = found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b)));
        Self {
            difference: differences.sum(),
            expected: expected.iter().map(|value| square((*value).into())).sum(),
            is_empty: found.iter().all(|value| *value == 0.0),
        }
    }
}

fn judge(positions: Range<u64>, width: u64, rows: &[Row], worst: Option<Element>, of_row: f64) -> Agreement {
    let (difference, size) =
        rows.iter().fold((0.0, 0.0), |(apart, size), row| (apart + row.difference, size + row.expected));
    // A row that is small among its like may be off by as much as they.
    let usual = size / rows.len().max(1) as f64;
    let is_missing = |row: &Row| row.is_empty && row.expected > 0.0;
    // Not `>`: a row with something that is no number is off.
    let is_near = |row: &Row| row.difference <= of_row * of_row * row.expected.max(usual);
    let is_off = |row: &Row| is_missing(row) || !is_near(row);
    let off = |(position, row): (u64, &Row)| is_off(row).then_some(position);
    Agreement {
        relative: if difference == 0.0 { 0.0 } else { (difference / size).sqrt() },
        rows_off: rows.iter().filter(|row| is_off(row)).count() as u64,
        first_off: positions.clone().zip(rows).find_map(off),
        rows_empty: rows.iter().filter(|row| is_missing(row)).count() as u64,
        worst,
        rms: (usual / width as f64).sqrt(),
        positions,
    }
}
