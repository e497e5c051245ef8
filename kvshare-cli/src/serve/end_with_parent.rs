//! A program that ends when the one that started it does, however that ends.
//!
//! The kernel kills a process with its parent if it asks for that itself (prctl(2), `PR_SET_PDEATHSIG`), and keeps the
//! wish through execve(2). So the proxy starts itself as this command, which asks and then becomes the backend.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The command's name.
pub const COMMAND: &str = "end-with-parent";

/// The exit status of a shell that found no program.
const NOT_STARTED: u8 = 127;

/// Becomes a program that is killed when the process that started it ends
#[derive(Debug, clap::Args)]
pub struct EndWithParentArguments {
    /// The process that must still be the parent
    parent: i32,
    /// The program
    program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes the program. Returns only where that fails. The program's standard output goes where its standard error does:
/// the proxy's own output is for its users.
pub fn run(arguments: &EndWithParentArguments) -> ExitCode {
    let EndWithParentArguments { parent, program, arguments } = arguments;
    let asked = set_parent_process_death_signal(Some(Signal::KILL))
        .and_then(|()| rustix::stdio::dup2_stdout(rustix::stdio::stderr()));
    if let Err(errno) = asked {
        eprintln!("kvshare-cli: cannot prepare to start {}: {errno}", program.display());
        return ExitCode::from(NOT_STARTED);
    }
    // It may have ended before it could be asked for.
    if getppid().map(Pid::as_raw_pid) != Some(*parent) {
        return ExitCode::from(NOT_STARTED);
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("kvshare-cli: cannot start {}: {error}", program.display());
    ExitCode::from(NOT_STARTED)
}
