//! `kvshare-cli state`: llama.cpp's sequence-state files in words, checked, compared, converted, and moved to and from
//! regions.

mod arguments;
mod check;
mod convert;
mod diff;
mod loaded;
mod regions;
mod show;

pub use arguments::StateArguments;
pub use check::{ServerReaction, StateFinding, findings, server_reaction};
pub use convert::{CopyRowsError, copy_rows};
pub use diff::{Difference, difference};
pub use loaded::{LoadError, Loaded};

use crate::output::Failure;
use arguments::StateCommand;

/// Runs the command. Returns whether nothing is wrong and nothing differs.
///
/// # Errors
/// A file that cannot be read or written, or that the request does not fit.
pub fn run(arguments: &StateArguments) -> Result<bool, Failure> {
    match &arguments.command {
        StateCommand::Show(arguments) => show::run(arguments).map(|()| true),
        StateCommand::Check(arguments) => check::run(arguments),
        StateCommand::Diff(arguments) => diff::run(arguments),
        StateCommand::Convert(arguments) => convert::run(arguments).map(|()| true),
        StateCommand::IntoRegions(arguments) => regions::write(arguments).map(|()| true),
        StateCommand::FromRegions(arguments) => regions::read(arguments).map(|()| true),
    }
}
