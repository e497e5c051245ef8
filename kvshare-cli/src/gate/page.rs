//! The result on one page.

use std::fmt::Write as _;

use super::Report;
use super::rounds::{Handoff, Length, Plan, Route};
use super::verdict::{Finding, Times, median};
use crate::output::{bytes_in_words, table};

/// How much of a text a row shows.
const SHOWN: usize = 36;

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let Report { names, plan, lengths, times, findings, .. } = report;
    let Plan { tokens, runs, routes, .. } = plan;
    let mut page = format!(
        "{}: one provider, one decoder, greedy; {tokens} tokens of text, each handoff made {runs} times.\n\n\
         decoder   {}\nprovider  {}\nmodel     {}\n\n{}\n\n\
         evaluated     prompt tokens that the decoder evaluated itself; 1 is a handoff that worked\n\
         share         ms from asking the decoder for its memory to holding its descriptors; medians, as all times\n\
         adopt         ms in which the decoder took the cells where they lie\n\
         provider      ms of the provider's whole run: it starts, computes every row, ends\n\
         restore       ms in which the file was checked and the decoder read it\n\
         crossed       bytes that crossed as data: the message, or the file\n\
         decoder read  bytes that the decoder read by system calls, sockets apart\n\n",
        if routes.contains(&Route::Shared) { "The three-way gate" } else { "The gate of the file route" },
        names.decoder,
        names.provider,
        names.model,
        rows(lengths),
    );
    if let Some(times) = times {
        page += &format!("{}\n\n", growth(times, lengths));
    }
    if findings.is_empty() {
        return page + &passed(routes.contains(&Route::Shared), lengths);
    }
    page += "NOT PASSED";
    for Finding { prompt_tokens, route, what, probably } in findings {
        let place = prompt_tokens.map_or_else(String::new, |tokens| format!(", {tokens} prompt tokens"));
        // Writing to a String cannot fail.
        let _ = write!(page, "\n\n{} route{place}: {what}.\n  Probably: {probably}.", route.name());
    }
    page
}

fn passed(shares: bool, lengths: &[Length]) -> String {
    if !shares {
        return "PASSED: both routes gave the same text, and each handoff spared the decoder the prompt.".to_owned();
    }
    let mut shared =
        lengths.iter().filter_map(|length| length.handoff(Route::Shared)).flat_map(|handoff| &handoff.runs);
    let is_known = shared.all(|run| run.decoder_read_bytes.is_some());
    let copies = match is_known {
        true => "no byte of the cache crossed as data on the shared route",
        false => {
            "the shared route's messages held no byte of the cache (what the decoder read besides is not known: \
             --backend-pid tells)"
        }
    };
    format!("PASSED: every route gave the same text, each handoff spared the decoder the prompt, and {copies}.")
}

fn rows(lengths: &[Length]) -> comfy_table::Table {
    let titles = [
        "prompt tokens",
        "route",
        "evaluated",
        "share",
        "adopt",
        "provider",
        "restore",
        "crossed",
        "decoder read",
        "text",
    ];
    let mut table = table(&titles, &[0, 2, 3, 4, 5, 6, 7, 8]);
    for length in lengths {
        for handoff in &length.handoffs {
            table.add_row(row(length, handoff));
        }
        let none = &length.none;
        let mut cells = vec![length.prompt_tokens.to_string(), "none".to_owned(), none.evaluated.to_string()];
        cells.resize(titles.len() - 1, "-".to_owned());
        cells.push(shown(&none.text));
        table.add_row(cells);
    }
    table
}

fn row(length: &Length, handoff: &Handoff) -> Vec<String> {
    let last = handoff.runs.last();
    let none = || "-".to_owned();
    let time = |time: Option<f64>| time.map_or_else(none, |time| format!("{time:.2}"));
    vec![
        length.prompt_tokens.to_string(),
        handoff.route.name().to_owned(),
        last.map_or_else(none, |run| run.answer.evaluated.to_string()),
        time(median(handoff, |run| run.share_ms)),
        time(median(handoff, |run| run.adopt_ms)),
        time(median(handoff, |run| Some(run.provider_ms))),
        time(median(handoff, |run| run.restore_ms)),
        last.map_or_else(none, |run| bytes_in_words(run.crossed_bytes)),
        last.and_then(|run| run.decoder_read_bytes).map_or_else(none, bytes_in_words),
        handoff
            .failure
            .as_ref()
            .map_or_else(|| last.map_or_else(none, |run| shown(&run.answer.text)), |_| "failed".to_owned()),
    ]
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
