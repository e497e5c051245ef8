//! A decoder without a GPU that shares its KV cache: the stand-in for a llama-server.

use std::process::ExitCode;

use clap::Parser;
use fake_exporter::serve::{FakeExporterArguments, long_names, run};

/// A decoder without a GPU: it speaks llama-server's HTTP and shares its KV cache.
///
/// It decodes with a small CPU implementation of the Llama family, greedily whatever the request says of sampling, or
/// runs a checker that says whether a provider wrote what it should. Its cache lies in memory that action=share hands to a
/// provider by descriptor, and that action=adopt takes back without moving a byte.
#[derive(Parser)]
#[command(
    version,
    after_help = "Example:\n  fake-exporter --slot-save-path \"$(mktemp -d)\" --port 8080\n  \
    curl -s localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why does it rain?\"}]}'"
)]
struct Command {
    #[command(flatten)]
    arguments: FakeExporterArguments,
}

fn main() -> ExitCode {
    run(Command::parse_from(long_names(std::env::args_os())).arguments)
}
