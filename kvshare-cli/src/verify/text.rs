//! The result for people: a table that fits 100 columns, and a verdict.

use kvshare::state_file::Half;

use super::{Agreement, Diagnosis, Element, Explanation, Mistake, Place, Plane, Verification};
use crate::output::{counted, number, table};

/// How many layers with another layer's rows are listed one by one.
const MOST_LISTED: usize = 4;

/// Columns of a line, at most.
const COLUMNS: usize = 100;

pub(crate) fn verification(verification: &Verification) -> String {
    let Verification { against, positions, tolerance, diagnosis, .. } = verification;
    let layers = verification.planes.len() / Half::BOTH.len();
    let stream = match verification.stream {
        (_, 1) => String::new(),
        (stream, streams) => format!(" in stream {stream} of 0 to {} (--stream)", streams - 1),
    };
    let mut text = format!(
        "{} of {}{stream}, compared with {against}.\nA layer may be off by {} in K and {} in V, a single row by {} and {}.\n\n{}\n\n",
        counted(*positions, "position"),
        counted(layers as u64, "layer"),
        percent(tolerance.k),
        percent(tolerance.v),
        percent(tolerance.of_row(Half::K)),
        percent(tolerance.of_row(Half::V)),
        rows(verification),
    );
    let Some(diagnosis) = diagnosis else { return text + "RIGHT: every row is within the tolerance." };
    let wrong: Vec<&Plane> = verification.planes.iter().filter(|plane| !plane.holds).collect();
    text += &wrapped(&format!("WRONG: {}.", scope(verification, wrong.iter().map(|plane| plane.place))), "");
    text += "\n";
    text += &wrapped(&[first_in_words(&wrong), worst_in_words(verification)].concat(), "  ");
    for paragraph in of_diagnosis(verification, diagnosis) {
        text += "\n\n";
        text += &paragraph;
    }
    text
}

/// `text` in lines that fit, each behind `indent`.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n")
}

fn rows(verification: &Verification) -> comfy_table::Table {
    let (place, numbers): (&[&str], &[usize]) = match verification.model.head_size {
        Some(_) => (&["head", "element"], &[0, 1, 2, 3, 4, 6, 7, 8, 9, 10]),
        None => (&["channel"], &[0, 1, 2, 3, 4, 6, 7, 8, 9]),
    };
    let before = ["layer", "K error", "K rows", "V error", "V rows", "worst", "position"];
    let titles = [&before, place, &["found", "expected"]].concat();
    let mut table = table(&titles, numbers);
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
        } else {
            row.resize(titles.len(), "-".to_owned());
        }
        table.add_row(row);
    }
    table
}

/// The first row that is wrong by itself, in whichever layer.
fn first_in_words(wrong: &[&Plane]) -> String {
    let first = wrong.iter().filter_map(|plane| Some((plane.agreement.first_off?, plane))).min_by_key(|first| first.0);
    first.map_or_else(String::new, |(position, plane)| {
        format!(
            "The first wrong row is that of position {position}, in {} of layer {}. ",
            plane.place.half, plane.layer
        )
    })
}

fn worst_in_words(verification: &Verification) -> String {
    let worst = verification.worst().and_then(|plane| Some((plane, plane.agreement.worst?)));
    let Some((plane, Element { position, channel, found, expected })) = worst else { return String::new() };
    let element = match verification.model.head_size {
        Some(size) => format!("head {}, element {}", channel / size, channel % size),
        None => format!("channel {channel}"),
    };
    let [found, expected] = [found, expected].map(|value| number(value.into()));
    format!(
        "The worst element is in layer {}, {}, {element}, position {position}: {found} instead of {expected}.",
        plane.layer, plane.place.half
    )
}

/// A paragraph for each thing that is known.
fn of_diagnosis(verification: &Verification, diagnosis: &Diagnosis) -> Vec<String> {
    let Diagnosis { explanations, empty, unexplained } = diagnosis;
    let mut paragraphs: Vec<String> =
        explanations.iter().map(|explanation| explained(verification, explanation)).collect();
    if !empty.is_empty() {
        let (all, count) = (scope(verification, empty.iter().copied()), missing(verification, empty));
        let advice = "write every layer's K and V for every token";
        paragraphs.push(known(&format!("Never written: rows of {all} are all 0{count}."), "", advice));
    }
    if let Some(first) = unexplained.first() {
        let all = scope(verification, unexplained.iter().copied());
        let mut causes = explanations.iter().flat_map(|explanation| &explanation.places);
        paragraphs.push(if causes.any(|cause| cause.place.index < first.index) {
            let words =
                "may follow from that, since each layer reads what those before it made: mend that, and verify again.";
            wrapped(&format!("The rest ({all}) {words}"), "")
        } else {
            let first_line = wrapped(&format!("No mistake that is known here explains {all}."), "");
            format!("{first_line}\n{}", wrapped(&hint(verification, *first), "  "))
        });
        if let Some(why) = &verification.model.rope_unknown
            && unexplained.iter().any(|place| place.half == Half::K)
        {
            paragraphs.push(wrapped(&format!("RoPE's mistakes were not looked for: {why}."), ""));
        }
    }
    paragraphs
}

fn explained(verification: &Verification, explanation: &Explanation) -> String {
    let words = match explanation.mistake {
        Mistake::LayersExchanged => exchanged(verification, explanation),
        mistake => mistake.words(),
    };
    let all = scope(verification, explanation.places.iter().map(|explained| explained.place));
    let left = explanation.places.iter().map(|explained| explained.relative).fold(0.0, f64::max);
    let first = explanation.places.iter().map(|explained| explained.positions.start).min().unwrap_or_default();
    let from = if first > 1 { format!(" from position {first} on") } else { String::new() };
    let evidence = match left {
        0.0 => format!("That explains {all}{from}: read so, it is exactly right."),
        left => format!("That explains {all}{from}: read so, it is off by {} at most.", percent(left)),
    };
    known(&format!("Probably: {words}."), &evidence, explanation.mistake.advice())
}

/// What was done, what shows it, and what to do about it.
fn known(words: &str, evidence: &str, advice: &str) -> String {
    let advice = format!("What to do: {advice}.");
    let below = [evidence, &advice].into_iter().filter(|line| !line.is_empty()).map(|line| wrapped(line, "  "));
    [wrapped(words, "")].into_iter().chain(below).collect::<Vec<_>>().join("\n")
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
