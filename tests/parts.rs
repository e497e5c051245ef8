//! `kvshare-cli` again: its subcommands are the decoder and the provider that the tests start. And a decoder that fails on
//! request, a provider that writes when it should not, a client, and a process that cannot be killed.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    match &arguments[..] {
        [_, command, rest @ ..] if command == "meddler" => kvshare_tests::meddler::run(rest.to_vec()),
        [_, command, address] if command == "client" => kvshare_tests::client::run(address),
        [_, command, manner, directory, rest @ ..] if command == "writer" => {
            kvshare_tests::writer::run(manner, directory.as_ref(), rest)
        }
        [_, command, role, rest @ ..] if command == "peer" => kvshare_tests::our_peer::run(role, rest),
        [_, command, held, released] if command == "unkillable" => {
            kvshare_tests::unkillable::run(held.as_ref(), released.as_ref())
        }
        _ => kvshare_cli::command_line::run(arguments),
    }
}
