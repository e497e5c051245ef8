//! `kvshare-cli` again: its subcommands are the decoder and the provider that the tests start.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvshare_cli::command_line::run(std::env::args_os())
}
