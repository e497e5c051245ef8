//! The result for people: a table that fits 100 columns, and a verdict.

use std::fmt::Write as _;

use kvshare::state_file::Half;

use super::{Agreement, Diagnosis, Element, Explanation, Mistake, Place, Plane, Verification};
use crate::output::{number, table};

/// How many layers with another layer's rows are listed one by one.
const MOST_LISTED: usize = 4;

pub(crate) fn verification(verification: &Verification) -> String {
    let Verification { against, positions, tolerance, diagnosis, .. } = verification;
    let layers = verification.planes.len() / Half::BOTH.len();
    let mut text = format!(
        "{} of {}, compared with {against}.\nA layer may be off by {} in K and {} in V, a single row by {} and {}.\n\n{}\n\n",
        counted(*positions, "position"),
        counted(layers as u64, "layer"),
        percent(tolerance.k),
        percent(tolerance.v),
        percent(tolerance.of_row(Half::K)),
        percent(tolerance.of_row(Half::V)),
        rows(verification),
    );
    let Some(diagnosis) = diagnosis else { return text + "RIGHT: every row is within the tolerance." };
    let wrong = verification.planes.iter().filter(|plane| !plane.holds).map(|plane| plane.place);
    // Writing to a String cannot fail.
    let _ = write!(text, "WRONG: {}.", scope(verification, wrong));
    if let Some(plane) = verification.worst() {
        let _ =
            write!(text, "\nThe worst element is in layer {}, {}", plane.layer, worst_in_words(verification, plane));
    }
    text + &of_diagnosis(verification, diagnosis)
}

fn rows(verification: &Verification) -> comfy_table::Table {
    let (place, numbers): (&[&str], &[usize]) = match verification.model.head_size {
        Some(_) => (&["head", "element"], &[0, 1, 2, 3, 4, 6, 7, 8, 9, 10]),
        None => (&["channel"], &[0, 1, 2, 3, 4, 6, 7, 8, 9]),
    };
    let before = ["layer", "K error", "K rows", "V error", "V rows", "worst", "position"];
    let mut table = table(&[&before, place, &["found", "expected"]].concat(), numbers);
    for planes in verification.planes.chunks(Half::BOTH.len()) {
        let mut row: Vec<String> = planes.first().map(|plane| plane.layer.to_string()).into_iter().collect();
        for plane in planes {
            let Agreement { relative, rows_off, .. } = &plane.agreement;
            let mark = if plane.holds { "" } else { " !" };
            row.extend([percent(*relative) + mark, if *rows_off == 0 { "-".to_owned() } else { rows_off.to_string() }]);
        }
        let worst = planes.iter().max_by(|a, b| a.agreement.worst_in_rms().total_cmp(&b.agreement.worst_in_rms()));
        if let Some((plane, Element { position, channel, found, expected })) =
            worst.and_then(|plane| Some((plane, plane.agreement.worst?)))
        {
            row.extend([plane.place.half.to_string(), position.to_string()]);
            match verification.model.head_size {
                Some(size) => row.extend([channel / size, channel % size].map(|number| number.to_string())),
                None => row.push(channel.to_string()),
            }
            row.extend([found, expected].map(|value| number(value.into())));
        }
        table.add_row(row);
    }
    table
}

fn worst_in_words(verification: &Verification, plane: &Plane) -> String {
    let Some(Element { position, channel, found, expected }) = plane.agreement.worst else { return String::new() };
    let element = match verification.model.head_size {
        Some(size) => format!("head {}, element {}", channel / size, channel % size),
        None => format!("channel {channel}"),
    };
    let [found, expected] = [found, expected].map(|value| number(value.into()));
    format!("{}, {element}, position {position}: {found} instead of {expected}.", plane.place.half)
}

fn of_diagnosis(verification: &Verification, diagnosis: &Diagnosis) -> String {
    let Diagnosis { explanations, empty, unexplained } = diagnosis;
    let mut text = String::new();
    for explanation in explanations {
        text += &explained(verification, explanation);
    }
    if !empty.is_empty() {
        let _ = write!(
            text,
            "\n\nNever written: rows of {} are all 0{}.\n  What to do: write every layer's K and V for every token.",
            scope(verification, empty.iter().copied()),
            missing(verification, empty),
        );
    }
    if let Some(first) = unexplained.first() {
        let all = scope(verification, unexplained.iter().copied());
        let follows = explanations.iter().flat_map(|explanation| &explanation.places);
        if follows.map(|explained| explained.place.index).any(|index| index < first.index) {
            let _ = write!(
                text,
                "\n\nThe rest ({all}) may follow from that, since each layer reads what those before it made: mend that, and \
                 verify again."
            );
        } else {
            let _ = write!(text, "\n\nNo mistake that is known here explains {all}.\n  {}", hint(verification, *first));
        }
        if let Some(why) = &verification.model.rope_unknown
            && unexplained.iter().any(|place| place.half == Half::K)
        {
            let _ = write!(text, "\n  RoPE's mistakes were not looked for: {why}.");
        }
    }
    text
}

fn explained(verification: &Verification, explanation: &Explanation) -> String {
    let places = || explanation.places.iter().map(|explained| explained.place);
    let words = match explanation.mistake {
        Mistake::LayersExchanged => exchanged(verification, explanation),
        mistake => mistake.words(),
    };
    let left = explanation.places.iter().map(|explained| explained.relative).fold(0.0, f64::max);
    let first = explanation.places.iter().map(|explained| explained.positions.start).min().unwrap_or_default();
    let from = if first > 1 { format!(" from position {first} on") } else { String::new() };
    format!(
        "\n\nProbably: {words}.\n  That explains {}{from}: read so, it is off by {} at most.\n  What to do: {}.",
        scope(verification, places()),
        percent(left),
        explanation.mistake.advice(),
    )
}

/// Whose rows lie where.
fn exchanged(verification: &Verification, explanation: &Explanation) -> String {
    let name = |place: Place| {
        verification.plane(place).map_or_else(String::new, |plane| format!("{} of layer {}", place.half, plane.layer))
    };
    let places = &explanation.places;
    let mut listed: Vec<String> = places
        .iter()
        .take(MOST_LISTED)
        .map(|explained| format!("{} is in {}", name(explained.place), explained.found_in))
        .collect();
    if places.len() > MOST_LISTED {
        listed.push(format!("and {} more", places.len() - MOST_LISTED));
    }
    format!("{}: {}", explanation.mistake.words(), listed.join(", "))
}

/// How many rows, where it is not all of them.
fn missing(verification: &Verification, places: &[Place]) -> String {
    let planes = places.iter().filter_map(|place| verification.plane(*place));
    let first = planes
        .filter(|plane| plane.agreement.rows_empty < verification.positions)
        .find_map(|plane| Some((plane.agreement.rows_empty, plane.agreement.first_off?)));
    first.map_or_else(String::new, |(count, first)| {
        format!(" ({}, the first at position {first})", counted(count, "row"))
    })
}

/// Where to look for what is not known.
fn hint(verification: &Verification, first: Place) -> String {
    let right = |half| verification.plane(Place { half, ..first }).is_none_or(|plane| plane.holds);
    let layer = verification.plane(first).map_or(0, |plane| plane.layer);
    if right(Half::V) {
        return format!(
            "V of layer {layer} is right, and so is what that layer reads. Look at its K: the projection, a norm before RoPE, \
             RoPE's base and scaling."
        );
    }
    if first.index > 0 {
        return format!(
            "All before layer {layer} is right. Look at what makes its input: attention and feed-forward of the layer before."
        );
    }
    let rows = verification.plane(Place { half: Half::V, ..first }).map_or(0, |plane| plane.agreement.rows_off);
    let where_wrong = if rows < verification.positions && rows > 0 {
        format!("It is off in {} of {} rows.", rows, verification.positions)
    } else {
        "It is off everywhere.".to_owned()
    };
    format!(
        "V of the first layer depends on nothing but each position's token and the weights. {where_wrong} Look whether both \
         sides have the same tokens and the same model file, then at the embedding, the first norm and V's projection."
    )
}

/// `K of layers 0 to 3 and V of layer 5`, `K and V of all 8 layers`.
fn scope(verification: &Verification, places: impl IntoIterator<Item = Place>) -> String {
    let mut halves: [Vec<&Plane>; 2] = [Vec::new(), Vec::new()];
    for plane in places.into_iter().filter_map(|place| verification.plane(place)) {
        halves[usize::from(plane.place.half == Half::V)].push(plane);
    }
    let all = verification.planes.len() / Half::BOTH.len();
    let [k, v] = halves.map(|planes| layers(&planes, all));
    match (k, v) {
        (Some(k), Some(v)) if k == v => format!("K and V of {k}"),
        (Some(k), Some(v)) => format!("K of {k} and V of {v}"),
        (Some(k), None) => format!("K of {k}"),
        (None, Some(v)) => format!("V of {v}"),
        (None, None) => "nothing".to_owned(),
    }
}

/// `all 8 layers`, `layers 0 to 3 and 5`.
fn layers(planes: &[&Plane], all: usize) -> Option<String> {
    let mut runs: Vec<(&Plane, &Plane)> = Vec::new();
    for plane in planes {
        match runs.last_mut() {
            Some((_, last)) if last.place.index + 1 == plane.place.index => *last = plane,
            _ => runs.push((plane, plane)),
        }
    }
    let words: Vec<String> = runs
        .iter()
        .map(|(first, last)| match first.layer == last.layer {
            true => first.layer.to_string(),
            false => format!("{} to {}", first.layer, last.layer),
        })
        .collect();
    match (planes.len(), &words[..]) {
        (0, _) => None,
        (1, [only]) => Some(format!("layer {only}")),
        (count, _) if count == all => Some(format!("all {all} layers")),
        (_, [before @ .., last]) if !before.is_empty() => Some(format!("layers {} and {last}", before.join(", "))),
        (_, words) => Some(format!("layers {}", words.concat())),
    }
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `0` is exactly nothing.
fn percent(error: f64) -> String {
    match error {
        0.0 => "0".to_owned(),
        error if error < 0.0001 => format!("{:.0e} %", 100.0 * error),
        error if error < 10.0 => format!("{} %", trimmed(100.0 * error)),
        error if error.is_finite() => format!("{:.1e} %", 100.0 * error),
        error => error.to_string(),
    }
}

/// Two digits behind the point, at most.
fn trimmed(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}
