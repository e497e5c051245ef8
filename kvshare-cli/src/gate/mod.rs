//! `kvshare-cli gate`: the three-way gate of a deployment, which is passed or not.
//!
//! One decoder answers the same prompts, greedily, after a handoff on the shared route, after one on the file route by the
//! same provider, and with none. It is passed if all texts are the same and the rows in the cache are, each handoff left
//! the decoder one token to evaluate, and the shared route moved no byte of the cache. What the handoff costs by prompt length is printed, and
//! judged where asked for: a time is a machine's as much as a program's.
//!
//! `subject` is what is tested, `prompts` what it is asked, `rounds` asks and measures, `rows` compares caches, `verdict`
//! judges, `page` prints.

mod page;
mod prompts;
mod rounds;
mod rows;
mod subject;
mod verdict;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::output::{Failure, MISUSE, print};
use crate::stage::Stage;
use rounds::{Length, Plan, Route};
use subject::{Names, Subject};
use verdict::{Finding, Times};

/// Tests that every route gives the same text, and that the shared one copies nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli gate
  kvshare-cli gate --prefill-provider ./provider -m model.gguf
  kvshare-cli gate --backend-url http://127.0.0.1:8081 --slot-dir /run/user/1000/slots \\
      --prefill-provider ./provider -m model.gguf --lengths 251,3189,12722

Slot 0 of a running decoder is erased and used; nobody else should use it meanwhile. Without --backend-url the stand-in \
decoder is tested, without --prefill-provider the reference provider, without -m the embedded model.

Exit status: 0 passed, 1 not passed, 2 misuse")]
pub struct GateArguments {
    /// The decoder that runs here, started with -np 1 and --slot-save-path
    #[arg(long, value_name = "URL", requires_all = ["slot_dir", "prefill_provider", "model"])]
    backend_url: Option<String>,
    /// The running decoder's slot directory, ours and of mode 0700
    #[arg(long, value_name = "DIR", requires = "backend_url")]
    slot_dir: Option<PathBuf>,
    /// The running decoder's process, to see how many bytes it reads during a handoff
    #[arg(long, value_name = "PID", requires = "backend_url")]
    backend_pid: Option<u32>,
    /// The provider
    #[arg(long, value_name = "PROGRAM")]
    prefill_provider: Option<PathBuf>,
    /// Where the provider's kernels are
    #[arg(long, value_name = "DIR", requires = "prefill_provider")]
    elfs: Option<PathBuf>,
    /// The model, a GGUF, that decoder and provider use
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Prompt lengths in tokens [default: a sixteenth, a quarter and three quarters of the context]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = length)]
    lengths: Vec<usize>,
    /// How many tokens of text are compared
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// How often each handoff is made; its times are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Not passed either if share plus adopt takes more than this many times as long at the longest prompt as at the shortest
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    flat: Option<f64>,
    /// Compare only texts, not the rows that each route leaves in the cache: they are saved to the slot directory, three
    /// times for each length
    #[arg(long)]
    text_only: bool,
    /// Let text and rows without a handoff differ, as it may where the provider computes in another precision than the decoder
    #[arg(long)]
    ignore_none: bool,
    /// Leave the shared route out, for a decoder that cannot share
    #[arg(long, conflicts_with_all = ["ignore_none", "flat"])]
    file_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn length(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|length| *length >= 2).ok_or_else(|| "it must be a number of tokens, 2 or more".to_owned())
}

fn factor(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 1.0);
    value.ok_or_else(|| "it must be a number of at least 1".to_owned())
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
enum GateError {
    /// A length that the context does not hold.
    #[error(
        "{longest} prompt tokens and {tokens} of text do not fit the decoder's context of {n_ctx}; give smaller --lengths"
    )]
    TooLong { longest: usize, tokens: u32, n_ctx: u64 },
    /// A context too small for three lengths.
    #[error("the decoder's context of {n_ctx} is too small to choose prompt lengths for; give --lengths")]
    SmallContext { n_ctx: u64 },
    /// A decoder with which a handoff is not safe.
    #[error("the decoder has {slots} slots, and a handoff needs a decoder with one; start it with -np 1")]
    SeveralSlots { slots: u64 },
    /// The slot directory is none.
    #[error("the slot directory {path} is not a directory; name the one of the decoder's --slot-save-path")]
    SlotDirectory { path: String },
    /// The test could not be made.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// All that was found.
#[derive(Debug, Serialize)]
struct Report {
    passed: bool,
    #[serde(flatten)]
    names: Names,
    plan: Plan,
    lengths: Vec<Length>,
    times: Option<Times>,
    findings: Vec<Finding>,
}

/// Runs the command. Returns whether it passed.
///
/// # Errors
/// Arguments that do not go with the decoder, or a test that could not be made.
pub fn run(arguments: &GateArguments) -> Result<bool, Failure> {
    gate(arguments).map_err(|error| match error {
        GateError::Failed(failure) => failure,
        misuse => Failure::new(misuse).with_status(MISUSE),
    })
}

fn gate(arguments: &GateArguments) -> Result<bool, GateError> {
    let stage = Stage::prepare()?;
    let subject = Subject::prepare(&stage, arguments)?;
    let props = stage.wait(async { subject.cycle.decoder.props().await.map_err(Failure::new) })?;
    if props.total_slots != 1 {
        return Err(GateError::SeveralSlots { slots: props.total_slots });
    }
    let plan = Plan {
        lengths: lengths(arguments, props.default_generation_settings.n_ctx)?,
        tokens: arguments.tokens,
        runs: arguments.runs,
        text_only: arguments.text_only,
        routes: if arguments.file_only { vec![Route::File] } else { vec![Route::Shared, Route::File] },
    };
    let lengths = stage.wait(rounds::run(&stage, &subject, &plan))?;
    drop(stage);
    let times = Times::of(&lengths);
    let findings = verdict::judge(&lengths, times.as_ref(), arguments.ignore_none, arguments.flat);
    let report = Report { passed: findings.is_empty(), names: subject.names, plan, lengths, times, findings };
    print(&if arguments.json { format!("{:#}", json!(report)) } else { page::page(&report) })?;
    Ok(report.passed)
}

/// The lengths asked for, from short to long, or ones that suit the context.
fn lengths(arguments: &GateArguments, n_ctx: u64) -> Result<Vec<usize>, GateError> {
    let mut lengths = arguments.lengths.clone();
    if lengths.is_empty() {
        let context = usize::try_from(n_ctx).unwrap_or(usize::MAX);
        lengths = vec![context / 16, context / 4, context / 4 * 3];
        if lengths[0] < 2 {
            return Err(GateError::SmallContext { n_ctx });
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    let longest = lengths.last().copied().unwrap_or_default();
    if (longest as u64).saturating_add(arguments.tokens.into()) > n_ctx {
        return Err(GateError::TooLong { longest, tokens: arguments.tokens, n_ctx });
    }
    Ok(lengths)
}
