//! The program. Everything is in the library, so that tests can start it under another name.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvshare_cli::command_line::run(std::env::args_os())
}
