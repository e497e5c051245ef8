//! `kvshare-cli demo`: the whole cycle, with a decoder and a provider as processes of their own.
//!
//! It shows two things: that a model which never saw a prompt answers it from the cache that another process filled, the
//! same by every route; and what a real model's cache costs to hand over, at three prompt lengths.

mod sizes;
mod story;
mod tables;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::output::{Failure, print};
use crate::stage::Stage;

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
