//! `state diff`: two files, layer by layer.

use kvshare::rows::{MappedCache, RowsError};
use kvshare::state_file::Half;
use serde_json::{Value, json};

use super::arguments::DiffArguments;
use super::loaded::Loaded;
use crate::output::{Failure, number, print, table};

/// How far the rows of one layer's K or V lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The root of the squared differences' sum, as a part of that of the right rows' squares. 0 where all are equal.
    pub relative: f64,
    /// The largest difference of two numbers.
    pub largest: f64,
    /// Where the first two numbers differ: (position, channel).
    pub first: Option<(u64, u64)>,
}

/// Compares the first `cells` rows of the `layer`th layer's K or V.
///
/// Numbers are compared as the model computed them, whatever type they are stored in and whichever way they lie.
/// Two that are no numbers, or equally infinite, are equal.
///
/// # Errors
/// Rows that one of them does not have.
pub fn difference(
    right: &MappedCache,
    other: &MappedCache,
    layer: usize,
    half: Half,
    cells: u64,
) -> Result<Difference, RowsError> {
    let rows = |cache: &MappedCache, position| {
        let planes =
            cache.layers().get(layer).ok_or(RowsError::LayerIndex { index: layer, count: cache.layers().len() })?;
        let rows = if half == Half::K { cache.k(planes.layer)? } else { cache.v(planes.layer)? };
        let mut values = vec![0.0_f32; rows.plane().width as usize];
        rows.read_f32(position, &mut values)?;
        Ok::<_, RowsError>(values)
    };
    let (mut apart, mut size, mut difference) = (0.0, 0.0, Difference::default());
    for position in 0..cells {
        for (channel, (a, b)) in (0..).zip(rows(right, position)?.into_iter().zip(rows(other, position)?)) {
            size += f64::from(a) * f64::from(a);
            if a == b || (a.is_nan() && b.is_nan()) {
                continue;
            }
            let distance = f64::from(a) - f64::from(b);
            apart += distance * distance;
            // Not `max`, which would pass over a NaN: that is the largest difference of all, and stays.
            if distance.is_nan() || distance.abs() > difference.largest {
                difference.largest = distance.abs();
            }
            difference.first.get_or_insert((position, channel));
        }
    }
    difference.relative = if difference.first.is_none() { 0.0 } else { (apart / size).sqrt() };
    Ok(difference)
}

/// Both files.
struct Compared {
    /// What differs besides the rows.
    words: Vec<String>,
    /// Each layer's K and V, where the rows can be compared.
    layers: Vec<[Difference; 2]>,
}

pub(super) fn run(arguments: &DiffArguments) -> Result<bool, Failure> {
    let read = |path| Loaded::read(path, arguments.form.m_rope).map_err(Failure::new);
    let compared = compare(&read(&arguments.right)?, &read(&arguments.other)?).map_err(Failure::new)?;
    let is_near = |difference: &Difference| difference.relative <= arguments.tolerance;
    let is_equal = compared.words.is_empty() && compared.layers.iter().flatten().all(is_near);
    if arguments.json {
        print(&format!("{:#}", as_json(&compared, is_equal)))?;
    } else {
        print(&as_text(&compared, is_equal))?;
    }
    Ok(is_equal)
}

fn compare(right: &Loaded, other: &Loaded) -> Result<Compared, RowsError> {
    let mut words = Vec::new();
    let (a, b) = (&right.file.tokens, &other.file.tokens);
    if a.len() != b.len() {
        words.push(format!("{} tokens against {}", a.len(), b.len()));
    }
    if let Some((index, (a, b))) = a.iter().zip(b).enumerate().find(|(_, (a, b))| a != b) {
        words.push(format!("token {index} is {a} against {b}"));
    }
    if right.cells() != other.cells() {
        words.push(format!("{} cells against {}", right.cells(), other.cells()));
    }
    let positions = |loaded: &Loaded| -> Vec<i32> {
        loaded.file.occupied().flat_map(|(_, stream)| stream.cells.iter().map(|cell| cell.position)).collect()
    };
    let both = positions(right).into_iter().zip(positions(other)).enumerate();
    if let Some((cell, (a, b))) = both.into_iter().find(|(_, (a, b))| a != b) {
        words.push(format!("cell {cell} has position {a} against {b}"));
    }
    let (ours, theirs) = (right.cache.0.layers(), other.cache.0.layers());
    let widths = |layers: &[kvshare::layout::LayerPlanes]| -> Vec<(u64, u64)> {
        layers.iter().map(|layer| (layer.k.width, layer.v.width)).collect()
    };
    if widths(ours) != widths(theirs) {
        words.push(format!(
            "rows of another model: {} layers of {} channels (first K) against {} of {}",
            ours.len(),
            ours.first().map_or(0, |layer| layer.k.width),
            theirs.len(),
            theirs.first().map_or(0, |layer| layer.k.width)
        ));
        return Ok(Compared { words, layers: Vec::new() });
    }
    let cells = right.cells().min(other.cells());
    let layers = (0..ours.len()).map(|layer| {
        let of = |half| difference(&right.cache.0, &other.cache.0, layer, half, cells);
        Ok([of(Half::K)?, of(Half::V)?])
    });
    Ok(Compared { words, layers: layers.collect::<Result<_, RowsError>>()? })
}

fn as_text(compared: &Compared, is_equal: bool) -> String {
    let titles = ["layer", "K rel. error", "K largest", "K first", "V rel. error", "V largest", "V first"];
    let mut layers = table(&titles, &[0, 1, 2, 4, 5]);
    for (layer, halves) in compared.layers.iter().enumerate() {
        let of = |difference: &Difference| {
            let first =
                difference.first.map_or_else(String::new, |(row, channel)| format!("row {row}, channel {channel}"));
            [number(difference.relative), number(difference.largest), first]
        };
        layers.add_row([vec![layer.to_string()], of(&halves[0]).to_vec(), of(&halves[1]).to_vec()].concat());
    }
    let is_same = compared.layers.iter().flatten().all(|difference| difference.first.is_none());
    let mut parts = compared.words.clone();
    if !is_same {
        parts.push(format!("{layers}\n"));
    }
    parts.push(match (is_equal, is_same) {
        (true, true) => "Both hold the same tokens, cells and numbers.".to_owned(),
        (true, false) => "The rows differ by no more than the tolerance.".to_owned(),
        (false, _) => "THE FILES DIFFER.".to_owned(),
    });
    parts.join("\n")
}

fn as_json(compared: &Compared, is_equal: bool) -> Value {
    let of = |difference: &Difference| json!({"relative_error": difference.relative, "largest": difference.largest, "first": difference.first});
    let layers: Vec<Value> =
        compared.layers.iter().map(|halves| json!({"k": of(&halves[0]), "v": of(&halves[1])})).collect();
    json!({"equal": is_equal, "differences": compared.words, "layers": layers})
}
