//! The result on one page, or as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Trial, Verdict};
use crate::inspect::Finding;
use crate::stage::ms;
use crate::verify::{self, wrapped};

pub(super) fn as_text(trial: &Trial) -> String {
    let mut text = format!("THE PROVIDER\n\n{}\n\nITS MEMORY\n\n{}", provider(trial), trial.memory.facts_in_words());
    // Writing to a String cannot fail.
    for finding in findings(trial) {
        let _ = write!(text, "\n\n{}", wrapped(&format!("Odd: {finding}"), ""));
    }
    for outside in &trial.outside {
        let _ = write!(text, "\n\n{}", wrapped(&format!("WRONG: {outside}."), ""));
    }
    let verdict = match trial.verdict() {
        Verdict::Right => "PASSED: the provider did as the contract says, and every row is right.",
        Verdict::ProviderFailed => "NOT PASSED: the provider failed.",
        Verdict::WroteOutside => "NOT PASSED: the provider wrote outside the prompt's rows.",
        Verdict::RowsWrong => "NOT PASSED: rows are wrong.",
    };
    format!("{text}\n\nITS ROWS\n\n{}\n\n{verdict}", verify::as_text(&trial.rows))
}

fn provider(trial: &Trial) -> String {
    let (program, tokens) = (trial.program.display(), trial.tokens);
    match &trial.provider {
        Err(failure) => format!("{program}, {tokens} tokens\n{}", wrapped(&format!("WRONG: {failure}."), "")),
        Ok(report) => {
            let argmax = match trial.argmax {
                Some(argmax) if report.result.argmax == i64::from(argmax) => " (the model's own, too)".to_owned(),
                Some(argmax) => format!(" (the model's own is {argmax})"),
                None => String::new(),
            };
            format!(
                "{program}, {tokens} tokens: exit status 0 after {:.0} ms, of which the prefill took {:.0} ms\n\
                 likeliest next token: {}{argmax}",
                ms(report.wall),
                ms(report.prefill()),
                report.result.argmax,
            )
        }
    }
}

/// What is odd about the memory, but for what was written outside of the rows, which has its own place.
fn findings(trial: &Trial) -> impl Iterator<Item = &Finding> {
    trial.memory.findings.iter().filter(|finding| finding.kind != "padding")
}

pub(super) fn as_json(trial: &Trial) -> Value {
    let verdict = trial.verdict();
    let name = match verdict {
        Verdict::Right => "right",
        Verdict::ProviderFailed => "provider_failed",
        Verdict::WroteOutside => "wrote_outside",
        Verdict::RowsWrong => "rows_wrong",
    };
    json!({
        "verdict": name,
        "exit_status": verdict.exit_status(),
        "provider": {
            "program": trial.program.display().to_string(),
            "tokens": trial.tokens,
            "failure": trial.provider.as_ref().err().map(ToString::to_string),
            "result": trial.provider.as_ref().ok().map(|report| &report.result),
            "wall_ms": trial.provider.as_ref().ok().map(|report| ms(report.wall)),
            "argmax_expected": trial.argmax,
        },
        "inspect": trial.memory.as_json(),
        "outside": trial.outside.iter().map(|outside| {
            json!({"tensor": outside.tensor, "message": outside.to_string()})
        }).collect::<Vec<_>>(),
        "verify": verify::as_json(&trial.rows),
    })
}
