//! The rows of a cache as a picture: layers down, positions across, for K and V each.

use kvshare::layout::Part;

use super::reader::TensorSurvey;

/// One stream of a cache as a picture.
#[derive(Clone, Debug)]
pub(super) struct Heatmap {
    /// The stream.
    pub stream: u64,
    /// How many positions are shown, from 0 on.
    pub positions: u64,
    /// How many the cache has.
    pub cells: u64,
    /// How many positions one column stands for.
    pub a_column: u64,
    /// K and V.
    pub halves: [HalfMap; 2],
}

/// K or V as a picture.
#[derive(Clone, Debug)]
pub(super) struct HalfMap {
    /// `K` or `V`.
    pub title: &'static str,
    /// The layers' numbers, each with its columns.
    pub layers: Vec<(u32, Vec<Square>)>,
    /// The smallest and the largest size (root mean square) of a column, if any was written.
    pub sizes: Option<(f32, f32)>,
}

/// What one column of one layer shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Square {
    /// No row was written.
    Unwritten,
    /// Some rows were written.
    Partly,
    /// All rows were written; their mean size.
    Written(f32),
    /// There is an odd row.
    Odd,
}

impl Heatmap {
    /// A picture of at most `columns` columns for each stream that was written.
    pub fn of(tensors: &[TensorSurvey], columns: usize) -> Vec<Self> {
        let streams = tensors.iter().flat_map(|survey| survey.streams.iter().flatten().map(|rows| rows.stream));
        let streams: std::collections::BTreeSet<u64> = streams.collect();
        streams.into_iter().filter_map(|stream| Self::of_stream(tensors, stream, columns as u64)).collect()
    }

    fn of_stream(tensors: &[TensorSurvey], stream: u64, columns: u64) -> Option<Self> {
        let of_part = |part| {
            let of = move |survey: &&TensorSurvey| survey.tensor.part_and_layer.is_some_and(|(found, _)| found == part);
            tensors.iter().filter(of)
        };
        let attention = || of_part(Part::K).chain(of_part(Part::V));
        let cells = attention().map(|survey| survey.tensor.plane.cells).max()?;
        let last = attention().filter_map(|survey| rows(survey, stream)?.last().map(|row| row.position)).max()?;
        // A little of what was not written shows that the rest was.
        let positions = cells.min(last + 2 + last / 8);
        let a_column = positions.div_ceil(columns.max(1));
        let half = |title, part| {
            let of = |survey: &TensorSurvey| squares(survey, stream, positions, a_column);
            let mut layers: Vec<(u32, Vec<Square>)> =
                of_part(part).filter_map(|survey| Some((survey.tensor.part_and_layer?.1, of(survey)))).collect();
            layers.sort_by_key(|(layer, _)| *layer);
            let sizes = layers.iter().flat_map(|(_, squares)| squares).filter_map(|square| match square {
                Square::Written(size) => Some(*size),
                _ => None,
            });
            let sizes = sizes.fold(None, |sizes: Option<(f32, f32)>, size| {
                Some(sizes.map_or((size, size), |(least, most)| (least.min(size), most.max(size))))
            });
            HalfMap { title, layers, sizes }
        };
        Some(Self { stream, positions, cells, a_column, halves: [half("K", Part::K), half("V", Part::V)] })
    }
}

impl HalfMap {
    /// Where `size` lies between the smallest and the largest, from 0 to 1, by its logarithm.
    pub fn level(&self, size: f32) -> f32 {
        let Some((least, most)) = self.sizes else { return 0.5 };
        let (least, most, size) =
            (least.max(f32::MIN_POSITIVE).ln(), most.max(f32::MIN_POSITIVE).ln(), size.max(f32::MIN_POSITIVE).ln());
        // What hardly differs shows as one.
        if most - least < 0.02 { 0.5 } else { ((size - least) / (most - least)).clamp(0.0, 1.0) }
    }
}

fn rows(survey: &TensorSurvey, stream: u64) -> Option<&[super::reader::RowFacts]> {
    let streams = survey.streams.as_ref().ok()?;
    streams.iter().find(|rows| rows.stream == stream).map(|rows| &rows.rows[..])
}

fn squares(survey: &TensorSurvey, stream: u64, positions: u64, a_column: u64) -> Vec<Square> {
    #[derive(Clone, Default)]
    struct Column {
        written: u64,
        sizes: f64,
        is_odd: bool,
    }
    let mut columns = vec![Column::default(); positions.div_ceil(a_column) as usize];
    for row in rows(survey, stream).unwrap_or_default() {
        if let Some(column) = columns.get_mut((row.position / a_column) as usize) {
            column.written += 1;
            column.sizes += f64::from(row.rms);
            column.is_odd |= row.oddity.is_some();
        }
    }
    let square = |(index, column): (u64, Column)| {
        let whole = a_column.min(positions - index * a_column);
        match column {
            Column { is_odd: true, .. } => Square::Odd,
            Column { written: 0, .. } => Square::Unwritten,
            Column { written, .. } if written < whole => Square::Partly,
            Column { written, sizes, .. } => Square::Written((sizes / written as f64) as f32),
        }
    };
    (0..).zip(columns).map(square).collect()
}
