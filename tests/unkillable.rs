//! A process that outlives SIGKILL, as one that a driver holds in the kernel does.
//!
//! A traced process stops on its way out, killed or not, until whoever traces it lets it go (ptrace(2),
//! `PTRACE_O_TRACEEXIT`).

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sys::ptrace::{Options, seize};
use nix::unistd::Pid;

/// It is let go in the end, also where its test failed.
const LIMIT: Duration = Duration::from_secs(120);

/// The program: starts such a process in its own group and leaves that group. There is a file `held` then, and the process
/// is let go once there is a file `released`.
///
/// # Panics
/// Where a test cannot go on.
#[expect(clippy::zombie_processes, reason = "to wait for a process that is held on its way out could take for ever")]
pub fn run(held: &Path, released: &Path) -> ExitCode {
    let mut process = Command::new("sleep").arg("1000").spawn().expect("a process");
    let pid = Pid::from_raw(process.id().cast_signed());
    seize(pid, Options::PTRACE_O_TRACEEXIT).expect("a process of ours may be traced");
    rustix::process::setpgid(None, None).expect("a group of our own");
    std::fs::write(held, "").expect("a file");
    let deadline = Instant::now() + LIMIT;
    while !released.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = process.kill();
    ExitCode::SUCCESS
}
