//! `kvshare-cli` again: its subcommands are the decoder and the provider that the tests start. And a decoder that fails on
//! request.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    match &arguments[..] {
        [_, command, rest @ ..] if command == "meddler" => kvshare_tests::meddler::run(rest.to_vec()),
        _ => kvshare_cli::command_line::run(arguments),
    }
}
