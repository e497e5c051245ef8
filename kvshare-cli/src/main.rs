//! The program: which command, and which exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fake_exporter::reference_provider::{self, ReferenceProviderArguments};
use fake_exporter::serve::{self, FakeExporterArguments};
use kvshare_cli::demo::{self, DemoArguments};
use kvshare_cli::layout_command::{self, LayoutArguments};
use kvshare_cli::output::Failure;

/// Hands a language model's KV cache from one process to another without copying it
#[derive(Parser)]
#[command(name = "kvshare-cli", version, arg_required_else_help = true)]
#[command(after_help = "\
Example:
  kvshare-cli demo

Exit status: 0 done, 1 failed, 2 misuse")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(DemoArguments),
    Layout(LayoutArguments),
    /// A decoder without a GPU that speaks llama-server's HTTP and both handoff routes
    FakeExporter(FakeExporterArguments),
    /// A provider: prefills a prompt on the CPU and hands its cache over
    ReferenceProvider(ReferenceProviderArguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse_from(serve::long_names(std::env::args_os())).command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Layout(arguments) => layout_command::run(&arguments).map(|()| true),
        Command::FakeExporter(arguments) => return serve::run(arguments),
        Command::ReferenceProvider(arguments) => return reference_provider::run(arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    eprintln!("kvshare-cli: {failure}");
    ExitCode::FAILURE
}
