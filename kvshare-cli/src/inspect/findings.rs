//! What is wrong, one sentence each.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Display};

use kvshare::layout::Part;
use kvshare::map::MapError;

use super::reader::{Odd, Padding, RowsSurvey, TensorSurvey};
use super::{CpuRefusal, Inspected, LayoutProblem, Surveyed};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing, for programs: `descriptor`, `cpu_access`, `header`, `unreadable`, `odd_row`, `gap`, `uneven`
    /// or `padding`.
    pub kind: &'static str,
    /// What it is about, such as `descriptor 3` or `cache_k_l0`.
    pub about: String,
    /// What is wrong with it, for people.
    pub message: String,
}

impl Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.about, self.message)
    }
}

impl Finding {
    fn new(kind: &'static str, about: impl Display, message: impl Display) -> Self {
        Self { kind, about: about.to_string(), message: message.to_string() }
    }

    /// A header that is refused.
    pub(super) fn layout(problem: &LayoutProblem) -> Self {
        Self::new("header", "header", problem)
    }
}

/// What is wrong with the descriptors by themselves.
pub(super) fn of_descriptors(descriptors: &[Inspected]) -> Vec<Finding> {
    let finding = |inspected: &Inspected| {
        let about = format!("descriptor {}", inspected.number);
        match &inspected.outcome {
            Err(error) => Some(Finding::new("descriptor", about, error)),
            // A device's own memory is as it should be.
            Ok(found) => match &found.cpu_write {
                Ok(()) | Err(CpuRefusal::Map(MapError::NotByCpu)) => None,
                Err(refusal) => Some(Finding::new("cpu_access", about, refusal)),
            },
        }
    };
    descriptors.iter().filter_map(finding).collect()
}

/// What is wrong with the cache.
pub(super) fn of_layout(surveyed: &Surveyed) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(problem) = &surveyed.fit {
        findings.push(Finding::new("header", "header", problem));
    }
    for survey in &surveyed.tensors {
        of_tensor(survey, &mut findings);
    }
    findings.extend(uneven(&surveyed.tensors));
    findings
}

fn of_tensor(survey: &TensorSurvey, findings: &mut Vec<Finding>) {
    let name = survey.tensor.name();
    match &survey.streams {
        Err(error) => findings.push(Finding::new("unreadable", name, error)),
        Ok(streams) => {
            for rows in streams {
                let about = in_stream(survey, rows.stream);
                if is_attention(survey)
                    && let Some(gap) = first_gap(rows)
                {
                    findings.push(Finding::new("gap", &about, gap));
                }
                if let Some(odd) = rows.first_odd {
                    findings.push(Finding::new("odd_row", &about, odd_in_words(odd, rows.odd_rows)));
                }
            }
        }
    }
    if let Ok(Padding::Damaged { offset }) = survey.padding {
        let message = format!("byte {offset} behind its end was overwritten: whoever filled it writes past its rows");
        findings.push(Finding::new("padding", name, message));
    }
}

/// The tensor's name, with the stream where it has several.
pub(super) fn in_stream(survey: &TensorSurvey, stream: u64) -> String {
    match survey.tensor.plane.streams {
        1 => survey.tensor.name().to_owned(),
        _ => format!("{} stream {stream}", survey.tensor.name()),
    }
}

fn is_attention(survey: &TensorSurvey) -> bool {
    matches!(survey.tensor.part_and_layer, Some((Part::K | Part::V, _)))
}

fn first_gap(rows: &RowsSurvey) -> Option<String> {
    let written = rows.written();
    let (first, last) = (written.first()?, written.last()?);
    let missing = match written.get(1) {
        _ if first.start > 0 => 0..first.start,
        Some(second) => first.end..second.start,
        None => return None,
    };
    let rows = if missing.end - missing.start == 1 { "row" } else { "rows" };
    Some(format!("{rows} {} not written, though row {} is", span(missing.start, missing.end), last.end - 1))
}

/// `5` or `5 to 7`, for the positions from `start` up to but without `end`.
pub(super) fn span(start: u64, end: u64) -> String {
    match end - start {
        1 => start.to_string(),
        _ => format!("{start} to {}", end - 1),
    }
}

fn odd_in_words(Odd { position, channel, value, oddity }: Odd, count: u64) -> String {
    let all = if count == 1 { String::new() } else { format!(" (the first of {count} odd rows)") };
    format!("row {position} is odd: {oddity}, {value} at channel {channel}{all}")
}

/// Tensors of which more or fewer rows were written than of most others in the same stream.
fn uneven(tensors: &[TensorSurvey]) -> Vec<Finding> {
    let all = tensors.iter().filter(|survey| is_attention(survey));
    let readable: Vec<_> = all.filter_map(|survey| Some((survey, survey.streams.as_ref().ok()?))).collect();
    let streams: BTreeSet<u64> =
        readable.iter().flat_map(|(_, streams)| streams.iter().map(|rows| rows.stream)).collect();
    let mut findings = Vec::new();
    for stream in streams {
        let end_of = |streams: &[RowsSurvey]| {
            let rows = streams.iter().find(|rows| rows.stream == stream);
            rows.and_then(|rows| rows.rows.last()).map_or(0, |row| row.position + 1)
        };
        let ends: Vec<_> = readable.iter().map(|(survey, streams)| (survey, end_of(streams))).collect();
        let usual = most_common(ends.iter().map(|(_, end)| *end));
        for (survey, end) in ends.iter().filter(|(_, end)| *end != usual) {
            let message = format!("its rows end before position {end}, those of most others before {usual}");
            findings.push(Finding::new("uneven", in_stream(survey, stream), message));
        }
    }
    findings
}

/// The value that comes most often; of several the largest.
fn most_common(values: impl Iterator<Item = u64>) -> u64 {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().max_by_key(|(value, count)| (*count, *value)).map_or(0, |(value, _)| value)
}
