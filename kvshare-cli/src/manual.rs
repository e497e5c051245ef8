//! `kvshare-cli completions` and `kvshare-cli man`: made from the very arguments that `--help` shows.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::output::{Failure, print_bytes};

/// Prints a script that completes commands and flags in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli completions bash > ~/.local/share/bash-completion/completions/kvshare-cli
  kvshare-cli completions zsh > ~/.zfunc/_kvshare-cli
  kvshare-cli completions fish > ~/.config/fish/completions/kvshare-cli.fish")]
pub struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Prints a manual page, or writes all of them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli man inspect | man -l -
  kvshare-cli man --into ~/.local/share/man/man1")]
pub struct ManArguments {
    /// The command whose page is printed, such as inspect or state check [default: the program's own page]
    #[arg(value_name = "COMMAND", conflicts_with = "into")]
    command: Vec<String>,
    /// Write a page for each command into this directory instead
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
}

/// Prints the completions of `program`.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(mut program: Command, arguments: &CompletionsArguments) -> Result<(), Failure> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, name, &mut script);
    print_bytes(&script)
}

/// Prints a page of `program`, or writes all of them.
///
/// # Errors
/// There is no such command, or the pages cannot be written.
pub fn man(program: Command, arguments: &ManArguments) -> Result<(), Failure> {
    // `help` only repeats the others.
    let mut program = program.disable_help_subcommand(true);
    if let Some(directory) = &arguments.into {
        let failed = |error| Failure::new(format!("cannot write into {}: {error}", directory.display()));
        std::fs::create_dir_all(directory).map_err(failed)?;
        return clap_mangen::generate_to(program, directory).map_err(failed);
    }
    // Gives every command its full name.
    program.build();
    let mut command = &program;
    for name in &arguments.command {
        let found = command.find_subcommand(name);
        command = found.ok_or_else(|| Failure::new(format!("{} has no command {name:?}", command.get_name())))?;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).map_err(Failure::new)?;
    print_bytes(&page)
}
