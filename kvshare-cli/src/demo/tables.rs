//! The demo's tables, for a reader who sees them for the first time.

use super::sizes::Sizes;
use super::story::Story;
use crate::output::{bytes_in_words, table};

/// The first part in words and a table.
pub(super) fn story(story: &Story) -> String {
    let mut table =
        table(&["route", "answer", "prompt tokens\nthe decoder evaluated", "handing over", "bytes copied"], &[4]);
    for answer in &story.answers {
        let handing_over = match (answer.share_ms, answer.adopt_ms, answer.restore_ms) {
            (Some(share), Some(adopt), _) => format!("share {} + adopt {}", ms(share), ms(adopt)),
            (_, _, Some(restore)) => format!("restore {}", ms(restore)),
            _ => "-".to_owned(),
        };
        table.add_row([
            answer.route.to_owned(),
            answer.text.clone(),
            format!("{} of {}", answer.evaluated, story.prompt_tokens),
            handing_over,
            copied(answer.copied_bytes),
        ]);
    }
    let verdict = match story.is_right() {
        true => "All routes gave the same answer.",
        false => "THE ROUTES DIFFER, or the decoder evaluated a prompt that it was handed: see the table.",
    };
    format!(
        "A provider process reads a prompt, a decoder process answers it.\n\n\
         model   {}\n\
         prompt  {} tokens, which end with:\n        {}\n\n\
         {table}\n\n\
         shared  the decoder's own memory ({}), passed by descriptor; the provider wrote K and V in place\n\
         file    a llama.cpp state file: written by the provider, read by the decoder\n\
         none    no handoff; the decoder computed the prompt itself\n\n\
         {verdict}\n",
        story.model,
        story.prompt_tokens,
        last_line(&story.question),
        bytes_in_words(story.cache_bytes),
    )
}

/// The second part in words and a table.
pub(super) fn sizes(sizes: &Sizes) -> String {
    let titles = [
        "prompt tokens",
        "route",
        "crossed as data",
        "bytes copied",
        "share",
        "provider",
        "adopt",
        "restore",
        "verdict",
    ];
    let mut table = table(&titles, &[0, 2, 3, 4, 5, 6, 7]);
    let time = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), ms);
    for row in &sizes.rows {
        table.add_row([
            row.prompt_tokens.to_string(),
            row.route.to_owned(),
            bytes_in_words(row.crossed_bytes),
            copied(row.copied_bytes),
            time(row.share_ms),
            ms(row.provider_ms),
            time(row.adopt_ms),
            time(row.restore_ms),
            if row.is_right() { "right".to_owned() } else { row.verdict.clone() },
        ]);
    }
    let memory = sizes.decoder_peak_bytes.map_or_else(String::new, |bytes| {
        format!("\nThe decoder held at most {} in memory: one copy of the cells in use.", bytes_in_words(bytes))
    });
    format!(
        "The cache of a real model: {}, {} in {} regions.\n\
         The provider writes a known value into every element of the prompt's rows; the decoder compares all of them.\n\n\
         {table}\n\n\
         share     the decoder exports its memory and the descriptors arrive (shared route)\n\
         provider  the provider's whole run: it starts, writes every row, ends\n\
         adopt     the decoder takes the cells where they lie (shared route)\n\
         restore   the file is checked and read into the cache (file route)\n{memory}",
        sizes.geometry,
        bytes_in_words(sizes.region_bytes),
        sizes.regions,
    )
}

fn copied(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { bytes_in_words(bytes) }
}

fn ms(time: f64) -> String {
    if time < 10.0 { format!("{time:.2} ms") } else { format!("{time:.0} ms") }
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default()
}
