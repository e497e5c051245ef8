//! A look at every row of every tensor.

use std::fmt;
use std::ops::Range;

use kvshare::layout::Plane;
use kvshare::values::{decode_row, rotate};

use super::cache::PIECE;
use super::region::RegionBytes;
use super::{CacheReader, CacheTensor, Padding, ReadError};

/// A number over this is no K and no V of a model that we know of; bytes that are no numbers at all soon have one.
const HUGE: f32 = 10_000.0;

/// What one tensor holds.
#[derive(Clone, Debug)]
pub struct TensorSurvey {
    /// The tensor.
    pub tensor: CacheTensor,
    /// The streams in which rows were written, or why they cannot be read.
    pub streams: Result<Vec<RowsSurvey>, ReadError>,
    /// What its padding holds, or why it cannot be read.
    pub padding: Result<Padding, ReadError>,
}

/// The rows of one tensor in one stream.
#[derive(Clone, Debug, Default)]
pub struct RowsSurvey {
    /// The stream.
    pub stream: u64,
    /// The rows that were written, by ascending position. A row of which all bytes are 0 is not.
    pub rows: Vec<RowFacts>,
    /// The smallest number in them; 0 where there is none.
    pub least: f32,
    /// The largest.
    pub most: f32,
    /// Their mean.
    pub mean: f64,
    /// How many rows are odd.
    pub odd_rows: u64,
    /// The first odd row.
    pub first_odd: Option<Odd>,
}

/// One row that was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowFacts {
    /// Its position.
    pub position: u64,
    /// Its root mean square, of the numbers that are finite.
    pub rms: f32,
    /// What is odd about it.
    pub oddity: Option<Oddity>,
}

/// A row that no model computes, and where it shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odd {
    /// The row's position.
    pub position: u64,
    /// The first channel that shows it.
    pub channel: u64,
    /// What is there.
    pub value: f32,
    /// What is odd about it.
    pub oddity: Oddity,
}

/// What is odd about a row, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// An element is not a number.
    NotANumber,
    /// An element is infinite.
    Infinite,
    /// An element is larger than any that models compute.
    Huge,
    /// All elements are the same.
    AllEqual,
}

impl fmt::Display for Oddity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::NotANumber => "not a number",
            Self::Infinite => "infinite",
            Self::Huge => "huge",
            Self::AllEqual => "all equal",
        })
    }
}

impl RowsSurvey {
    /// The positions that were written, as ranges.
    pub fn written(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for RowFacts { position, .. } in &self.rows {
            match ranges.last_mut() {
                Some(last) if last.end == *position => last.end += 1,
                _ => ranges.push(*position..position + 1),
            }
        }
        ranges
    }
}

/// Looks at every row of every tensor, in the header's order.
///
/// It takes time and memory by the rows that were written, not by the size of the cache.
pub fn survey(cache: &CacheReader) -> Vec<TensorSurvey> {
    let of = |tensor: &CacheTensor| TensorSurvey {
        tensor: tensor.clone(),
        streams: streams(cache, tensor),
        padding: cache.padding(tensor),
    };
    cache.tensors().iter().map(of).collect()
}

fn streams(cache: &CacheReader, tensor: &CacheTensor) -> Result<Vec<RowsSurvey>, ReadError> {
    let (plane, region) = (&tensor.plane, cache.region(tensor)?);
    let end = tensor.placed.end();
    let mut surveys = Vec::new();
    let mut stream = 0;
    while stream < plane.streams {
        let data = region.next_data(plane.offset + stream * plane.stream_bytes(), end);
        if data == end {
            break;
        }
        stream = stream.max((data - plane.offset) / plane.stream_bytes());
        let survey = rows(cache, tensor, stream)?;
        if !survey.rows.is_empty() {
            surveys.push(survey);
        }
        stream += 1;
    }
    Ok(surveys)
}

fn rows(cache: &CacheReader, tensor: &CacheTensor, stream: u64) -> Result<RowsSurvey, ReadError> {
    let plane = &tensor.plane;
    let region = cache.region(tensor)?;
    // As many rows at once as make a good piece; more where each channel of them is a read of its own.
    let most = if plane.transposed { 16 * PIECE } else { PIECE };
    let at_once = (most / plane.width).clamp(1, plane.cells);
    let mut summary = Summary::default();
    let mut bytes = Vec::new();
    let mut position = 0;
    while let Some(first) = next_position(region, plane, stream, position) {
        let positions = first..plane.cells.min(first + at_once);
        position = positions.end;
        if plane.width > PIECE {
            summary.add(first, &long_row(cache, tensor, stream, first)?);
            continue;
        }
        cache.read_part(tensor, stream, positions.clone(), 0..plane.width, &mut bytes)?;
        for (position, row) in positions.zip(bytes.chunks_exact(plane.row_bytes() as usize)) {
            let mut facts = RowSummary::default();
            facts.add(tensor, 0, row)?;
            summary.add(position, &facts);
        }
    }
    Ok(summary.finish(stream))
}

/// The first position from `position` on of which there may be a byte that is not 0.
fn next_position(region: &RegionBytes, plane: &Plane, stream: u64, position: u64) -> Option<u64> {
    if position >= plane.cells {
        return None;
    }
    let start = plane.offset + stream * plane.stream_bytes();
    if !plane.transposed {
        let end = start + plane.stream_bytes();
        let data = region.next_data(start + position * plane.row_bytes(), end);
        return (data < end).then(|| (data - start) / plane.row_bytes());
    }
    if plane.width > PIECE {
        return Some(position);
    }
    let element = plane.tensor_type.block_bytes();
    let next_in_channel = |channel| {
        let start = start + channel * plane.cells * element;
        let end = start + plane.cells * element;
        let data = region.next_data(start + position * element, end);
        (data < end).then(|| (data - start) / element)
    };
    (0..plane.width).filter_map(next_in_channel).min()
}

/// A row that is longer than a piece.
fn long_row(cache: &CacheReader, tensor: &CacheTensor, stream: u64, position: u64) -> Result<RowSummary, ReadError> {
    let (plane, region) = (&tensor.plane, cache.region(tensor)?);
    let mut facts = RowSummary::default();
    let mut bytes = Vec::new();
    let mut first = 0;
    while first < plane.width {
        if !plane.transposed {
            let (start, length) = plane.rows(stream, position, 1)?;
            let offset = plane.element(stream, position, first)?;
            let empty = region.next_data(offset, start + length) - offset;
            // Whole pieces that nobody has written.
            let elements = empty / plane.tensor_type.block_bytes() * plane.tensor_type.block_elements();
            let skipped = (elements / PIECE * PIECE).min(plane.width - first);
            facts.add_zeros(skipped);
            first += skipped;
        }
        let end = plane.width.min(first + PIECE);
        if first < end {
            cache.read_part(tensor, stream, position..position + 1, first..end, &mut bytes)?;
            facts.add(tensor, first, &bytes)?;
        }
        first = end;
    }
    Ok(facts)
}

/// A row as far as it was read.
#[derive(Default)]
struct RowSummary {
    is_written: bool,
    count: u64,
    first: f32,
    least: f32,
    most: f32,
    sum: f64,
    squares: f64,
    finite: u64,
    worst: Option<(Oddity, u64, f32)>,
}

impl RowSummary {
    /// Adds the elements from channel `first` on, which `bytes` hold.
    fn add(&mut self, tensor: &CacheTensor, first: u64, bytes: &[u8]) -> Result<(), ReadError> {
        let tensor_type = tensor.plane.tensor_type;
        if !self.is_written && bytes.iter().all(|byte| *byte == 0) {
            self.add_zeros(bytes.len() as u64 / tensor_type.block_bytes() * tensor_type.block_elements());
            return Ok(());
        }
        self.is_written = true;
        let elements = bytes.len() / tensor_type.block_bytes() as usize * tensor_type.block_elements() as usize;
        let mut values = vec![0.0; elements];
        decode_row(tensor_type, bytes, &mut values)?;
        rotate(&mut values, tensor.rotation)?;
        for (channel, value) in (first..).zip(values) {
            self.add_value(channel, value);
        }
        Ok(())
    }

    /// Zeros of a row that may turn out to be written elsewhere.
    fn add_zeros(&mut self, count: u64) {
        if count > 0 {
            (self.least, self.most) = (self.least.min(0.0), self.most.max(0.0));
        }
        self.count += count;
        self.finite += count;
    }

    fn add_value(&mut self, channel: u64, value: f32) {
        if self.count == 0 {
            (self.first, self.least, self.most) = (value, value, value);
        }
        self.count += 1;
        // Comparisons with a NaN are false, and min and max pass over it.
        (self.least, self.most) = (self.least.min(value), self.most.max(value));
        let oddity = match value.abs() {
            size if size <= HUGE => None,
            size if size.is_nan() => Some(Oddity::NotANumber),
            f32::INFINITY => Some(Oddity::Infinite),
            _ => Some(Oddity::Huge),
        };
        if let Some(oddity) = oddity
            && self.worst.is_none_or(|(worst, ..)| oddity < worst)
        {
            self.worst = Some((oddity, channel, value));
        }
        if value.is_finite() {
            self.finite += 1;
            self.sum += f64::from(value);
            self.squares += f64::from(value) * f64::from(value);
        }
    }

    fn oddity(&self) -> Option<(Oddity, u64, f32)> {
        let equal = self.count > 1 && self.least == self.most && self.finite == self.count;
        self.worst.or(equal.then_some((Oddity::AllEqual, 0, self.first)))
    }
}

/// The rows of a stream as far as they were read.
#[derive(Default)]
struct Summary {
    survey: RowsSurvey,
    sum: f64,
    finite: u64,
}

impl Summary {
    fn add(&mut self, position: u64, row: &RowSummary) {
        if !row.is_written {
            return;
        }
        let survey = &mut self.survey;
        if survey.rows.is_empty() {
            (survey.least, survey.most) = (row.least, row.most);
        }
        (survey.least, survey.most) = (survey.least.min(row.least), survey.most.max(row.most));
        self.sum += row.sum;
        self.finite += row.finite;
        let odd = row.oddity();
        if let Some((oddity, channel, value)) = odd {
            survey.odd_rows += 1;
            survey.first_odd.get_or_insert(Odd { position, channel, value, oddity });
        }
        let rms = (row.squares / row.finite.max(1) as f64).sqrt() as f32;
        survey.rows.push(RowFacts { position, rms, oddity: odd.map(|(oddity, ..)| oddity) });
    }

    fn finish(self, stream: u64) -> RowsSurvey {
        RowsSurvey { stream, mean: self.sum / self.finite.max(1) as f64, ..self.survey }
    }
}
