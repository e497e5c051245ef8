//! The result on one page.

use std::fmt::Write as _;

use super::Report;
use super::rounds::{Handoff, Length, Plan, Route};
use super::verdict::{Finding, Times, median};
use crate::output::{bytes_in_words, table};

/// How much of a text a row shows.
const SHOWN: usize = 36;

const TITLES: [&str; 11] = [
    "prompt",
    "route",
    "evaluated",
    "share",
    "adopt",
    "provider",
    "restore",
    "rows off",
    "crossed",
    "decoder read",
    "text",
];

const LEGEND: &str = "\
prompt        its tokens
evaluated     prompt tokens that the decoder evaluated itself; 1 is a handoff that worked
share         ms from asking the decoder for its memory to holding its descriptors; medians, as all times
adopt         ms in which the decoder took the cells where they lie
provider      ms of the provider's whole run: it starts, computes every row, ends
restore       ms in which the file was checked and the decoder read it
rows off      by how much the rows in the cache differ from the decoder's own, in the layer where that is most
crossed       bytes that crossed as data: the message, or the file
decoder read  bytes that the decoder read by system calls, sockets apart";

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let Report { names, plan, lengths, times, findings, .. } = report;
    let Plan { tokens, runs, routes, .. } = plan;
    let shares = routes.contains(&Route::Shared);
    let gate = if shares { "The three-way gate" } else { "The gate of the file route" };
    let mut page = format!(
        "{gate}: one provider, one decoder, greedy; {tokens} tokens of text, each handoff made {runs} times.\n\n\
         decoder   {}\nprovider  {}\nmodel     {}\n\n{}\n\n{LEGEND}\n\n",
        names.decoder,
        names.provider,
        names.model,
        rows(lengths),
    );
    if let Some(times) = times {
        page += &format!("{}\n\n", growth(times, lengths));
    }
    if findings.is_empty() {
        return page + &passed(plan, shares, lengths);
    }
    page += "NOT PASSED";
    for Finding { prompt_tokens, route, what, probably } in findings {
        let place = prompt_tokens.map_or_else(String::new, |tokens| format!(", {tokens} prompt tokens"));
        // Writing to a String cannot fail.
        let _ = write!(page, "\n\n{} route{place}: {what}.\n  Probably: {probably}.", route.name());
    }
    page
}

/// What has been shown, and no more than that.
fn passed(plan: &Plan, shares: bool, lengths: &[Length]) -> String {
    let rows = if plan.text_only { "" } else { " and the same rows in the cache" };
    let mut words =
        format!("PASSED: every route gave the same text{rows}, and each handoff spared the decoder the prompt.");
    if shares {
        let handoffs = lengths.iter().filter_map(|length| length.handoff(Route::Shared));
        let is_known = handoffs.flat_map(|handoff| &handoff.runs).all(|run| run.decoder_read_bytes.is_some());
        words += match is_known {
            true => " On the shared route no byte of the cache crossed as data.",
            false => {
                " The shared route's messages held no byte of the cache; what the decoder read besides is not known \
                 (--backend-pid tells)."
            }
        };
    }
    words
}

fn rows(lengths: &[Length]) -> comfy_table::Table {
    let mut table = table(&TITLES, &[0, 2, 3, 4, 5, 6, 7, 8, 9]);
    for length in lengths {
        for handoff in &length.handoffs {
            table.add_row(row(length, handoff));
        }
        let none = &length.none;
        let mut cells = vec![length.prompt_tokens.to_string(), "none".to_owned(), none.evaluated.to_string()];
        cells.resize(TITLES.len() - 1, "-".to_owned());
        cells.push(shown(&none.text));
        table.add_row(cells);
    }
    table
}

fn row(length: &Length, handoff: &Handoff) -> Vec<String> {
    let Some(last) = handoff.runs.last() else {
        let mut cells = vec![length.prompt_tokens.to_string(), handoff.route.name().to_owned()];
        cells.resize(TITLES.len() - 1, "-".to_owned());
        cells.push("failed, see below".to_owned());
        return cells;
    };
    let absent = || "-".to_owned();
    let time = |time: Option<f64>| time.map_or_else(absent, |time| format!("{time:.2}"));
    let own = length.rows.iter().find(|pair| pair.route == handoff.route && pair.other == Route::None);
    vec![
        length.prompt_tokens.to_string(),
        handoff.route.name().to_owned(),
        last.answer.evaluated.to_string(),
        time(median(handoff, |run| run.share_ms)),
        time(median(handoff, |run| run.adopt_ms)),
        time(median(handoff, |run| Some(run.provider_ms))),
        time(median(handoff, |run| run.restore_ms)),
        own.map_or_else(absent, |pair| percent(pair.farthest.error)),
        bytes_in_words(last.crossed_bytes),
        last.decoder_read_bytes.map_or_else(absent, bytes_in_words),
        shown(&last.answer.text),
    ]
}

/// `0` is exactly nothing.
fn percent(error: f64) -> String {
    if error == 0.0 { "0".to_owned() } else { format!("{:.2} %", 100.0 * error) }
}

/// The beginning of a text, on one line.
fn shown(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    let line = line.join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn growth(times: &Times, lengths: &[Length]) -> String {
    let restore = |length: Option<&Length>| median(length?.handoff(Route::File)?, |run| run.restore_ms);
    let file = match (restore(lengths.first()), restore(lengths.last())) {
        (Some(shortest), Some(longest)) => format!("; restore {:.1} times", longest / shortest),
        _ => String::new(),
    };
    format!(
        "Share plus adopt: {:.2} ms at the shortest prompt, {:.2} ms at the longest, {:.1} times as much for {:.1} times \
         the tokens{file}.",
        times.shortest_ms, times.longest_ms, times.ratio, times.prompt_ratio,
    )
}
