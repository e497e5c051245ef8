//! The program's command line: which command, and which exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fake_exporter::reference_provider::{self, ReferenceProviderArguments};
use fake_exporter::serve::{self, FakeExporterArguments};

use crate::demo::{self, DemoArguments};
use crate::layout_command::{self, LayoutArguments};

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
    Demo(DemoArguments),
    Layout(LayoutArguments),
    /// A decoder without a GPU that speaks llama-server's HTTP and both handoff routes
    #[command(after_help = "\
Example:
  kvshare-cli fake-exporter --slot-save-path \"$(mktemp -d)\" --port 8080")]
    FakeExporter(FakeExporterArguments),
    /// A provider: prefills a prompt on the CPU and hands its cache over
    ReferenceProvider(ReferenceProviderArguments),
}

/// Runs the command that `arguments`, the program's name first, ask for: 0 done, 1 failed, 2 misuse.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command_line = match CommandLine::try_parse_from(serve::long_names(arguments)) {
        Ok(command_line) => command_line,
        Err(error) => {
            // Help and version are asked for, and printed the same way.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let outcome = match command_line.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Layout(arguments) => layout_command::run(&arguments).map(|()| true),
        Command::FakeExporter(arguments) => return serve::run(arguments),
        Command::ReferenceProvider(arguments) => return reference_provider::run(arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("kvshare-cli: {failure}");
            ExitCode::FAILURE
        }
    }
}
