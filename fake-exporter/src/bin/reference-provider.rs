//! The reference provider as a program of its own.

use std::process::ExitCode;

use clap::Parser;
use fake_exporter::reference_provider::{ReferenceProviderArguments, run};

/// Prefills a prompt on the CPU and hands its KV cache over by either route
#[derive(Parser)]
#[command(name = "reference-provider", version)]
struct Cli {
    #[command(flatten)]
    arguments: ReferenceProviderArguments,
}

fn main() -> ExitCode {
    run(Cli::parse().arguments)
}
