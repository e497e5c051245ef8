//! The program's command line: which command, and which exit code.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use fake_exporter::reference_provider::{self, ReferenceProviderArguments};
use fake_exporter::serve::{FakeExporterArguments, long_names};

use crate::demo::{self, DemoArguments};
use crate::doctor::{self, DoctorArguments};
use crate::gate::{self, GateArguments};
use crate::inspect::{self, InspectArguments};
use crate::layout_command::{self, LayoutArguments};
use crate::manual::{self, CompletionsArguments, ManArguments};
use crate::message_commands::{self, ReceiveArguments, SendArguments};
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

/// Runs the command that `arguments`, the program's name first, ask for: 0 done, 1 failed, 2 misuse, others as the
/// command's help says.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = ours_long(arguments).collect();
    let is_json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    let command_line = match CommandLine::try_parse_from(&arguments) {
        Ok(command_line) => command_line,
        Err(error) => {
            // Help and version are asked for, and printed the same way.
            let _ = error.print();
            if is_json && error.use_stderr() {
                report_object(&first_paragraph(&error.to_string()));
            }
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let outcome = match command_line.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Layout(arguments) => layout_command::run(&arguments).map(|()| true),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::State(arguments) => state_command::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::RunProvider(arguments) => match run_provider::run(&arguments) {
            Ok(exit_code) => return exit_code,
            Err(failure) => Err(failure),
        },
        Command::Send(arguments) => message_commands::send(&arguments).map(|()| true),
        Command::Recv(arguments) => message_commands::receive(&arguments).map(|()| true),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => manual::completions(CommandLine::command(), &arguments).map(|()| true),
        Command::Man(arguments) => manual::man(CommandLine::command(), &arguments).map(|()| true),
        Command::SplitCeiling(arguments) => split_ceiling::run(&arguments).map(|()| true),
        Command::Gate(arguments) => return gate::run(&arguments),
        Command::Serve(arguments) => return serve::run(*arguments),
        Command::EndWithParent(arguments) => return end_with_parent::run(&arguments),
        Command::FakeExporter(arguments) => return fake_exporter::serve::run(arguments),
        Command::ReferenceProvider(arguments) => return reference_provider::run(arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            report_error(&failure.to_string(), is_json);
            ExitCode::FAILURE
        }
    }
}

/// Says on standard error why a command failed, with `--json` also as an object on a line of its own.
fn report_error(message: &str, is_json: bool) {
    // Whoever started us may have closed it; nobody is left to tell then.
    let _ = writeln!(std::io::stderr(), "kvshare-cli: {message}");
    if is_json {
        report_object(message);
    }
}

fn report_object(message: &str) {
    let _ = writeln!(std::io::stderr(), "{}", serde_json::json!({"error": {"message": message}}));
}

/// What clap says before the usage, on one line.
fn first_paragraph(text: &str) -> String {
    let paragraph = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The arguments with llama-server's short names made long, but for those after `--` or for another program.
fn ours_long(arguments: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_ours = true;
    arguments.into_iter().flat_map(move |argument| {
        is_ours &= argument != "--" && argument != end_with_parent::COMMAND;
        if is_ours { long_names([argument]).collect::<Vec<_>>() } else { vec![argument] }
    })
}
