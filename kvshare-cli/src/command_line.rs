//! The program's command line: which command, and which exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use fake_exporter::reference_provider::{self, ReferenceProviderArguments};
use fake_exporter::serve::{FakeExporterArguments, long_names};

use crate::demo::{self, DemoArguments};
use crate::doctor::{self, DoctorArguments};
use crate::gate::{self, GateArguments};
use crate::inspect::{self, InspectArguments};
use crate::layout_command::{self, LayoutArguments};
use crate::manual::{self, CompletionsArguments, ManArguments};
use crate::message_commands::{self, ReceiveArguments, SendArguments};
use crate::output::{FAILED, Failure, MISUSE};
use crate::run_provider::{self, RunProviderArguments};
use crate::serve::end_with_parent::{self, EndWithParentArguments};
use crate::serve::{self, ServeArguments};
use crate::split_ceiling::{self, SplitCeilingArguments};
use crate::state_command::{self, StateArguments};
use crate::verify::{self, VerifyArguments};

/// Hands a language model's KV cache from one process to another without copying it
#[derive(Parser)]
#[command(name = "kvshare-cli", version, arg_required_else_help = true)]
#[command(after_help = "\
Example:
  kvshare-cli demo

Exit status: 0 done, 1 failed, 2 misuse")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<ServeArguments>),
    Demo(DemoArguments),
    Gate(GateArguments),
    Layout(LayoutArguments),
    Inspect(InspectArguments),
    State(StateArguments),
    Verify(Box<VerifyArguments>),
    RunProvider(Box<RunProviderArguments>),
    Send(SendArguments),
    Recv(ReceiveArguments),
    /// A decoder without a GPU that speaks llama-server's HTTP and both handoff routes
    #[command(after_help = "\
Example:
  kvshare-cli fake-exporter --slot-save-path \"$(mktemp -d)\" --port 8080")]
    FakeExporter(FakeExporterArguments),
    /// A provider: prefills a prompt on the CPU and hands its cache over
    ReferenceProvider(ReferenceProviderArguments),
    Doctor(DoctorArguments),
    SplitCeiling(SplitCeilingArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
    #[command(name = end_with_parent::COMMAND, hide = true)]
    EndWithParent(EndWithParentArguments),
}

/// The program's commands with their arguments. All take `--json`: those that print nothing as JSON say their errors so.
pub fn command() -> clap::Command {
    let flag = clap::Arg::new("json").long("json").action(ArgAction::SetTrue).help("Say an error as JSON, too");
    CommandLine::command().mut_subcommands(|command| {
        // What stands behind the hidden one's arguments is another program's.
        let has_one = command.is_hide_set() || command.has_subcommands();
        if has_one || command.get_arguments().any(|argument| argument.get_id() == "json") {
            command
        } else {
            command.arg(flag.clone())
        }
    })
}

/// Runs the command that `arguments`, the program's name first, ask for: 0 done, 1 failed, 2 misuse, others as the
/// command's help says.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = ours_long(arguments);
    let is_json = ours(&arguments).any(|argument| argument == "--json");
    let mut command = command();
    let command_line = command
        .try_get_matches_from_mut(&arguments)
        .and_then(|matches| CommandLine::from_arg_matches(&matches).map_err(|error| error.format(&mut command)));
    let outcome = match command_line {
        Ok(command_line) => execute(command_line.command),
        // Help and version are asked for, and printed the same way.
        Err(error) if !error.use_stderr() => return error.print().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Err(error) => Err(misuse(&error)),
    };
    ExitCode::from(outcome.unwrap_or_else(|failure| failure.report(is_json)))
}

/// Runs a command. Returns its exit status.
fn execute(command: Command) -> Result<u8, Failure> {
    let done = |outcome: Result<(), Failure>| outcome.map(|()| 0);
    let judged = |outcome: Result<bool, Failure>| outcome.map(|is_good| if is_good { 0 } else { FAILED });
    match command {
        Command::Demo(arguments) => judged(demo::run(&arguments)),
        Command::Layout(arguments) => done(layout_command::run(&arguments)),
        Command::Inspect(arguments) => judged(inspect::run(&arguments)),
        Command::State(arguments) => judged(state_command::run(&arguments)),
        Command::Verify(arguments) => judged(verify::run(&arguments)),
        Command::RunProvider(arguments) => run_provider::run(&arguments),
        Command::Send(arguments) => done(message_commands::send(&arguments)),
        Command::Recv(arguments) => done(message_commands::receive(&arguments)),
        Command::Doctor(arguments) => judged(doctor::run(&arguments)),
        Command::Completions(arguments) => done(manual::completions(self::command(), &arguments)),
        Command::Man(arguments) => done(manual::man(self::command(), &arguments)),
        Command::SplitCeiling(arguments) => done(split_ceiling::run(&arguments)),
        Command::Gate(arguments) => judged(gate::run(&arguments)),
        Command::Serve(arguments) => done(serve::run(*arguments)),
        Command::EndWithParent(arguments) => done(end_with_parent::run(&arguments)),
        Command::FakeExporter(arguments) => done(fake_exporter::serve::serve(arguments).map_err(|error| {
            let status = if error.is_misuse() { MISUSE } else { FAILED };
            Failure::new(&error).with_status(status).said_as(format!("fake-exporter: {error}"))
        })),
        Command::ReferenceProvider(arguments) => {
            done(reference_provider::provide_and_print(arguments).map_err(|error| {
                let status = if error.is_misuse() { MISUSE } else { FAILED };
                Failure::new(&error).with_status(status).said_as(format!("reference-provider: {error}"))
            }))
        }
    }
}

/// Arguments that clap refuses, in its own words.
fn misuse(error: &clap::Error) -> Failure {
    let (plain, coloured) = (error.render().to_string(), error.render().ansi().to_string());
    let is_colourful = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let line = if is_colourful { coloured } else { plain.clone() };
    Failure::new(first_paragraph(&plain)).with_status(MISUSE).said_as(line.trim_end().to_owned())
}

/// What clap says before the usage, on one line.
fn first_paragraph(text: &str) -> String {
    let paragraph = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The arguments but for those after `--` or for another program.
fn ours(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    arguments.iter().take_while(|argument| *argument != "--" && *argument != end_with_parent::COMMAND)
}

/// The arguments with llama-server's short names made long where they are ours.
fn ours_long(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let count = ours(&arguments).count();
    let (own, others) = arguments.split_at(count);
    long_names(own.iter().cloned()).chain(others.iter().cloned()).collect()
}
