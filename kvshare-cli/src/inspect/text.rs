//! The report for people.

use std::fmt::Write as _;

use super::descriptor::exporter_in_words;
use super::findings::{in_stream, span};
use super::reader::{Padding, RowsSurvey, TensorSurvey};
use super::{CpuRefusal, Descriptor, Holders, Inspected, Report, Surveyed, terminal_map};
use crate::output::{bytes_in_words, counted, number, table};

/// Findings that are printed, at most: the first ones tell what went wrong. `--json` has all.
const MOST_FINDINGS: usize = 20;

pub(super) fn report(report: &Report) -> String {
    format!("{}\n\n{}", facts(report), findings(report))
}

/// What was found, without what is wrong with it.
pub(super) fn facts(report: &Report) -> String {
    let mut parts: Vec<String> = report.descriptors.iter().map(inspected).collect();
    if report.descriptors.is_empty() {
        parts.push("The process holds no memory that could be a region: no memfd, dma-buf or GPU memory.".to_owned());
    }
    if let Some(surveyed) = &report.layout {
        parts.push(layout(surveyed));
        parts.extend(terminal_map::of(&surveyed.tensors));
    }
    parts.join("\n\n")
}

fn inspected(inspected: &Inspected) -> String {
    match &inspected.outcome {
        Ok(found) => descriptor(inspected.number, found),
        Err(error) => format!("descriptor {}: cannot be looked at\n  {error}", inspected.number),
    }
}

fn descriptor(number: i32, found: &Descriptor) -> String {
    let facts = &found.facts;
    let name = facts.name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
    let mut text = format!("descriptor {number}: {}{name}", facts.kind);
    // Writing to a String cannot fail.
    let mut line = |title: &str, words: String| _ = write!(text, "\n  {title:<15}{words}");
    if let Some(exporter) = &facts.exporter {
        let words = exporter_in_words(exporter).map_or_else(String::new, |words| format!(" ({words})"));
        line("exporter", format!("{exporter}{words}"));
    }
    line("size", facts.size.map_or_else(|| "it does not tell".to_owned(), bytes_twice));
    if let Some(pages) = found.pages {
        let allocated = bytes_in_words(pages.allocated);
        line("pages", format!("of {}; {allocated} allocated", bytes_in_words(pages.page_bytes)));
    }
    line("access", facts.access.to_string());
    if let Some(seals) = facts.seals {
        line("seals", seals.to_string());
    }
    line("close-on-exec", if facts.close_on_exec { "yes" } else { "no" }.to_owned());
    line("the CPU may", cpu_access(&found.cpu_read, &found.cpu_write));
    line("also open in", found.holders.as_ref().map_or_else(|| "cannot be told".to_owned(), holders));
    text
}

fn cpu_access(read: &Result<(), CpuRefusal>, write: &Result<(), CpuRefusal>) -> String {
    match (read, write) {
        (Ok(()), Ok(())) => "map it for reading and writing".to_owned(),
        (Ok(()), Err(refusal)) => format!("map it for reading only: {refusal}"),
        (Err(refusal), _) => format!("not map it: {refusal}"),
    }
}

fn holders(holders: &Holders) -> String {
    let one = |holder: &super::Holder| {
        let numbers: Vec<String> = holder.descriptors.iter().map(ToString::to_string).collect();
        let mut how = Vec::new();
        if !numbers.is_empty() {
            how.push(format!("at {}", numbers.join(", ")));
        }
        if holder.is_mapped {
            how.push("mapped".to_owned());
        }
        format!("{} ({}) {}", holder.pid, holder.name, how.join(", "))
    };
    let mut words: Vec<String> = holders.found.iter().map(one).collect();
    if words.is_empty() {
        words.push("no other process".to_owned());
    }
    if holders.hidden > 0 {
        words.push(format!("({} processes of others could not be looked into)", holders.hidden));
    }
    words.join("; ")
}

/// `1048576000 bytes (1000 MiB)`
fn bytes_twice(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        _ => format!("{bytes} bytes ({})", bytes_in_words(bytes)),
    }
}

fn layout(surveyed: &Surveyed) -> String {
    let header = &surveyed.header;
    let mut regions = table(&["region", "descriptor", "offset", "size", "group", "layout hash"], &[1, 2, 3, 4, 5]);
    for (index, region) in header.regions.iter().enumerate() {
        let columns = [index as u64, region.fd as u64, region.offset, region.size, region.group.into(), region.layout];
        regions.add_row(columns.map(|column| column.to_string()));
    }
    let titles = ["tensor", "type", "region", "offset", "bytes", "rows written", "min", "mean", "max", "padding"];
    let mut tensors = table(&titles, &[2, 3, 4, 6, 7, 8]);
    for survey in &surveyed.tensors {
        for row in tensor_rows(survey) {
            tensors.add_row(row);
        }
    }
    let digest = if surveyed.has_digest { "digest right" } else { "no digest" };
    let model = header.model.as_ref().map_or_else(|| "no model named".to_owned(), |model| model.name.clone());
    format!(
        "header: {model}; {} in {}, {}; layout hashes right, {digest}\n\n{regions}\n\n{tensors}",
        bytes_in_words(header.bytes()),
        counted(header.regions.len() as u64, "region"),
        counted(header.tensors.len() as u64, "tensor"),
    )
}

/// One row of the table for each stream that was written, and at least one.
fn tensor_rows(survey: &TensorSurvey) -> Vec<[String; 10]> {
    let row = |name: String, written: String, [min, mean, max]: [String; 3]| {
        let (placed, padding) = (&survey.tensor.placed, padding(survey));
        let [region, offset] = [placed.region as u64, placed.offset].map(|number| number.to_string());
        let bytes = placed.tensor.bytes().to_string();
        [name, placed.tensor.tensor_type().to_string(), region, offset, bytes, written, min, mean, max, padding]
    };
    let dashes = || ["-".to_owned(), "-".to_owned(), "-".to_owned()];
    match &survey.streams {
        Err(_) => vec![row(survey.tensor.name().to_owned(), "unreadable".to_owned(), dashes())],
        Ok(streams) if streams.is_empty() => {
            vec![row(survey.tensor.name().to_owned(), "none".to_owned(), dashes())]
        }
        Ok(streams) => {
            let of = |rows: &RowsSurvey| {
                let numbers = [f64::from(rows.least), rows.mean, f64::from(rows.most)].map(number);
                row(in_stream(survey, rows.stream), written(rows), numbers)
            };
            streams.iter().map(of).collect()
        }
    }
}

/// `0 to 16`, or `16 of 0 to 16` where there are gaps.
fn written(rows: &RowsSurvey) -> String {
    let (Some(first), Some(last)) = (rows.rows.first(), rows.rows.last()) else { return "none".to_owned() };
    let end = last.position + 1;
    let span = span(first.position, end);
    let count = rows.rows.len() as u64;
    if count == end - first.position { span } else { format!("{count} of {span}") }
}

fn padding(survey: &TensorSurvey) -> String {
    match &survey.padding {
        Ok(Padding::None) => "none".to_owned(),
        Ok(Padding::Zeros) => "zeros".to_owned(),
        Ok(Padding::Intact) => "intact".to_owned(),
        Ok(Padding::Damaged { .. }) => "DAMAGED".to_owned(),
        Err(_) => "unreadable".to_owned(),
    }
}

fn findings(report: &Report) -> String {
    let all = &report.findings;
    if all.is_empty() {
        return match report.layout {
            Some(_) => "Nothing is wrong with the descriptors, the header or the rows.".to_owned(),
            None => "Nothing is wrong with the descriptors.".to_owned(),
        };
    }
    let mut text = "What is wrong:".to_owned();
    for finding in all.iter().take(MOST_FINDINGS) {
        let _ = write!(text, "\n  {finding}");
    }
    if all.len() > MOST_FINDINGS {
        let _ = write!(text, "\n  and {} more (--json lists all)", all.len() - MOST_FINDINGS);
    }
    text
}
