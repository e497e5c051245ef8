//! `kvshare-cli doctor`: what this machine can do for a handoff, a line each, and what to do about what it cannot.
//!
//! Nothing is changed and nothing installed. Only the default route, sealed memfds over a unix socket, decides the exit
//! status: everything else is a choice.

mod check;
mod devices;
mod kernel;
mod limits;
mod memory;
mod programs;

pub use check::{Check, State};

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::output::{Failure, print};

/// Says what this machine can do for a handoff, and what to do about what it cannot
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli doctor
  kvshare-cli doctor --llama-server build/bin/llama-server --json

Exit status: 0 the default route (memfd) works, 1 it does not, 2 misuse")]
pub struct DoctorArguments {
    /// The llama-server to ask [default: the one in PATH]
    #[arg(long, value_name = "PROGRAM", default_value = "llama-server")]
    llama_server: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. Returns whether the default route works.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(arguments: &DoctorArguments) -> Result<bool, Failure> {
    let route = memory::default_route();
    let works = route.state == State::Good;
    let mut checks = vec![kernel::version(), route];
    checks.extend(memory::checks());
    checks.extend(limits::checks());
    checks.extend(devices::checks());
    checks.extend(programs::checks(&arguments.llama_server));
    if arguments.json {
        print(&format!("{:#}", as_json(&checks, works)))?;
    } else {
        print(&as_text(&checks, works))?;
    }
    Ok(works)
}

fn as_json(checks: &[Check], works: bool) -> Value {
    let check = |check: &Check| json!({"name": check.name, "state": check.state.name(), "found": check.found, "remedy": check.remedy});
    json!({"default_route_works": works, "checks": checks.iter().map(check).collect::<Vec<_>>()})
}

fn as_text(checks: &[Check], works: bool) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let line = |check: &Check| {
        let Check { name, state, found, remedy } = check;
        let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!("\n{:>1$}-> {remedy}", "", width + 9));
        format!("{:<9}{name:<width$}  {found}{remedy}", state.name())
    };
    let lines: Vec<String> = checks.iter().map(line).collect();
    let verdict = match works {
        true => "The default route works here: a cache can be handed over in shared memory.",
        false => "THE DEFAULT ROUTE DOES NOT WORK HERE: see the line that says broken.",
    };
    format!("{}\n\n{verdict}", lines.join("\n"))
}
