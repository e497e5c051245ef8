//! `kvshare-cli demo`: the whole cycle, with a decoder and a provider as processes of their own.
//!
//! It shows two things: that a model which never saw a prompt answers it from the cache that another process filled, the
//! same by every route; and what a real model's cache costs to hand over, at three prompt lengths.

mod sizes;
mod story;
mod tables;

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvshare::handoff::ProviderProgram;
use serde_json::json;

use crate::cycle::{Cycle, DecoderClient};
use crate::decoder_process::DecoderProcess;
use crate::output::{Failure, print};

/// Shows a handoff: one process computes a prompt's KV cache, another decodes from it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli demo
  kvshare-cli demo --model SmolLM2.gguf --prompt 'Name three primary colours.'

Exit status: 0 every route gave the same right answer, 1 something failed, 2 misuse")]
pub struct DemoArguments {
    /// A GGUF of the llama or qwen3 architecture [default: the embedded kvshare-tiny]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// What to ask the model [default: a question about three stories]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A provider of your own, in the place of the reference provider; only the model's part runs then
    #[arg(long, value_name = "PROGRAM")]
    provider: Option<PathBuf>,
    /// How many tokens it may answer with
    #[arg(long, value_name = "N", default_value_t = 48)]
    tokens: u32,
    /// Only the model's part, without the table of a real model's sizes
    #[arg(long)]
    no_sizes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command; false if some route gave a wrong or another answer.
///
/// # Errors
/// A process does not start, or a handoff fails.
pub fn run(arguments: &DemoArguments) -> Result<bool, Failure> {
    let stage = Stage::prepare()?;
    let story = story::run(&stage, arguments)?;
    if !arguments.json {
        print(&tables::story(&story))?;
    }
    let without_sizes = arguments.no_sizes || arguments.provider.is_some();
    let sizes = if without_sizes { None } else { Some(sizes::run(&stage)?) };
    if arguments.json {
        print(&format!("{:#}", json!({"story": story, "sizes": sizes})))?;
    } else if let Some(sizes) = &sizes {
        print(&tables::sizes(sizes))?;
    }
    Ok(story.is_right() && sizes.is_none_or(|sizes| sizes.is_right()))
}

/// What both parts run on: a runtime, this program's own path, a private directory, and a place for progress.
struct Stage {
    runtime: tokio::runtime::Runtime,
    program: PathBuf,
    slot_directory: tempfile::TempDir,
    progress: ProgressBar,
}

impl Stage {
    fn prepare() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let progress = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
        progress.enable_steady_tick(Duration::from_millis(100));
        Ok(Self {
            runtime: runtime.map_err(Failure::new)?,
            program: std::env::current_exe().map_err(Failure::new)?,
            slot_directory: private_directory().map_err(Failure::new)?,
            progress,
        })
    }

    /// Says what is going on, where standard error is a terminal.
    fn say(&self, what: &str) {
        self.progress.set_message(what.to_owned());
    }

    /// Starts a decoder with `arguments` of its own.
    fn decoder(&self, arguments: &[&str]) -> Result<DecoderProcess, Failure> {
        let parent = std::process::id().to_string();
        let mut all: Vec<OsString> =
            ["fake-exporter", "--exit-with-parent", &parent, "--port", "0", "--slot-save-path"].map(Into::into).into();
        all.push(self.slot_directory.path().into());
        all.extend(arguments.iter().map(Into::into));
        DecoderProcess::start(&self.program, all).map_err(Failure::new)
    }

    /// This program's reference provider, with `arguments` of its own.
    fn reference_provider(&self, model: PathBuf, arguments: &[&str]) -> ProviderProgram {
        let leading_arguments = ["reference-provider"].iter().chain(arguments).map(Into::into).collect();
        ProviderProgram { leading_arguments, ..ProviderProgram::new(&self.program, model) }
    }

    /// The cycle between `decoder` and `provider`.
    fn cycle(&self, decoder: &DecoderProcess, provider: ProviderProgram) -> Result<Cycle, Failure> {
        let decoder = DecoderClient::new(decoder.address()).map_err(Failure::new)?;
        Ok(Cycle { decoder, provider, slot_directory: self.slot_directory.path().to_owned() })
    }

    /// Waits for `work`, or for Ctrl-C: then everything is torn down in order.
    fn wait<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.runtime.block_on(async {
            tokio::select! {
                outcome = work => outcome,
                _ = tokio::signal::ctrl_c() => Err(Failure::new("interrupted")),
            }
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// A directory that nobody else can reach, as the socket in it needs; gone at the end.
fn private_directory() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("kvshare-demo-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// What a provider says on standard error: its progress is shown by the spinner, an error by the failure that follows.
fn quiet(_line: &str) {}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
