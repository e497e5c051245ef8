//! A program that ends when the one that started it does, however that ends.
//!
//! The kernel kills a process with its parent if it asks for that itself (prctl(2), `PR_SET_PDEATHSIG`), and keeps the
//! wish through execve(2), but for a program with another user's rights. So the proxy starts itself as this command, which
//! asks and then becomes the backend or the provider. What that one starts itself is its own business.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::output::Failure;

/// The command's name.
pub const COMMAND: &str = "end-with-parent";

/// The exit status of a shell that found no program.
const NOT_STARTED: u8 = 127;

/// Becomes a program that is killed when the process that started it ends
#[derive(Debug, clap::Args)]
pub struct EndWithParentArguments {
    /// Send its standard output where its standard error goes
    #[arg(long)]
    quiet: bool,
    /// The process that must still be the parent
    parent: i32,
    /// The program
    program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// This program as the one that becomes another, which the words after these name.
///
/// It is killed when the thread that starts it ends, which must therefore live as long.
pub fn launcher() -> [OsString; 3] {
    // Not by its path: another program may lie there by now, after an update.
    ["/proc/self/exe".into(), COMMAND.into(), std::process::id().to_string().into()]
}

/// Becomes the program. Returns only where that fails.
///
/// # Errors
/// The program cannot be started, or nobody waits for it any more.
pub fn run(arguments: &EndWithParentArguments) -> Result<(), Failure> {
    let EndWithParentArguments { quiet, parent, program, arguments } = arguments;
    let failed = |words: String| Failure::new(words).with_status(NOT_STARTED);
    set_parent_process_death_signal(Some(Signal::KILL))
        .and_then(|()| if *quiet { rustix::stdio::dup2_stdout(rustix::stdio::stderr()) } else { Ok(()) })
        .map_err(|errno| failed(format!("cannot prepare to start {}: {errno}", program.display())))?;
    // It may have ended before it could be asked for.
    if getppid().map(Pid::as_raw_pid) != Some(*parent) {
        return Err(failed(format!("the process {parent} that asked for {} has ended", program.display())));
    }
    let error = Command::new(program).args(arguments).exec();
    Err(failed(format!("cannot start {}: {error}", program.display())))
}
