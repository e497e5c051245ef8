//! A program that we started, until it is gone.

use super::{FdError, group, ready};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long a dropped child may take to die of `SIGKILL` before it is left to itself: one that a driver holds in the
/// kernel may never do so.
const REAP_LIMIT: Duration = Duration::from_secs(5);

/// A running program, the leader of a process group of its own.
///
/// When it exits, whatever it left running in its group is killed, and [`try_wait`](Self::try_wait) and
/// [`wait`](Self::wait) give its status only once all of that is gone: a helper of a provider must not go on writing into
/// a cache that the decoder has adopted. A process that has left the group escapes this. Dropping a child that was not
/// waited for kills its group and reaps it.
///
/// This process must not ignore `SIGCHLD` or wait for children that it did not start, or the exit status is lost.
#[derive(Debug)]
pub struct Child {
    /// The read end of the program's standard output, if it was asked to go into a pipe.
    pub stdout: Option<OwnedFd>,
    /// The read end of the program's standard error, if it was asked to go into a pipe.
    pub stderr: Option<OwnedFd>,
    pid: Pid,
    pidfd: OwnedFd,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    /// It is reaped; its group has members yet.
    Leaderless(ExitStatus),
    Exited(ExitStatus),
    /// Somebody else reaped it, so that its process id may belong to another process by now.
    Lost,
}

impl Child {
    pub(super) fn new(pid: Pid, pidfd: OwnedFd, stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) -> Self {
        Self { stdout, stderr, pid, pidfd, state: State::Running }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// The exit status, if the program has exited and its group is gone.
    ///
    /// Returns at once while the program runs. When it has exited and left processes in its group, it takes until those
    /// have died of `SIGKILL`, two seconds at most.
    ///
    /// # Errors
    ///
    /// [`FdError::GroupRemains`] if they do not die, and [`FdError::System`] if this process has no such child any more:
    /// something else in it has waited for it.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, FdError> {
        if matches!(self.state, State::Running | State::Lost) {
            self.reap().map_err(FdError::system("waitid"))?;
        }
        match self.state {
            State::Running | State::Lost => Ok(None),
            State::Leaderless(status) if !group::ends(self.pid) => Err(FdError::GroupRemains { status }),
            State::Leaderless(status) | State::Exited(status) => {
                self.state = State::Exited(status);
                Ok(Some(status))
            }
        }
    }

    /// Waits until the program has exited and its group is gone, and returns its exit status; `None` if the program still
    /// runs at `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`try_wait`](Self::try_wait).
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<ExitStatus>, FdError> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            if !ready(self.pidfd.as_fd(), PollFlags::IN, deadline).map_err(FdError::system("poll"))? {
                return Ok(None);
            }
        }
    }

    /// Sends `signal` to the program and all others in its process group; does nothing once it was waited for.
    ///
    /// # Errors
    ///
    /// [`FdError::System`] if the kernel does not allow it.
    pub fn signal_group(&self, signal: Signal) -> Result<(), FdError> {
        match self.state {
            State::Running => kill_process_group(self.pid, signal).map_err(FdError::system("kill")),
            State::Leaderless(_) | State::Exited(_) | State::Lost => Ok(()),
        }
    }

    fn reap(&mut self) -> Result<(), Errno> {
        match reap(WaitId::PidFd(self.pidfd.as_fd()), self.pid) {
            Ok(None) => {}
            Ok(Some(status)) => self.state = State::Leaderless(status),
            Err(errno) => {
                if errno == Errno::CHILD {
                    self.state = State::Lost;
                }
                return Err(errno);
            }
        }
        Ok(())
    }
}

impl AsFd for Child {
    /// The pidfd, readable once the program has exited
    /// ([pidfd_open(2)](https://man7.org/linux/man-pages/man2/pidfd_open.2.html)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.state, State::Running) {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = self.wait(Instant::now() + REAP_LIMIT);
        }
    }
}

/// Ends a program of ours that has no pidfd, and says whether it and its group are gone.
pub(super) fn end_unwatched(pid: Pid) -> bool {
    // It is not reaped yet, so its process id and its group's are still its own.
    let _ = kill_process_group(pid, Signal::KILL);
    let deadline = Instant::now() + REAP_LIMIT;
    while Instant::now() < deadline {
        match reap(WaitId::Pid(pid), pid) {
            Ok(None) | Err(Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some(_)) => return group::ends(pid),
            Err(_) => return false,
        }
    }
    false
}

/// If the leader of `group` has exited, kills what is left of the group, reaps the leader and returns its exit status.
fn reap(leader: WaitId<'_>, group: Pid) -> Result<Option<ExitStatus>, Errno> {
    if waitid(leader.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?.is_none() {
        return Ok(None);
    }
    // Until it is reaped, its process id and so its group's cannot be anybody else's.
    let _ = kill_process_group(group, Signal::KILL);
    Ok(waitid(leader, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?.map(exit_status))
}

/// The status in the form of [wait(2)](https://man7.org/linux/man-pages/man2/wait.2.html), which std understands.
fn exit_status(status: WaitIdStatus) -> ExitStatus {
    const DUMPED_CORE: i32 = 0x80;
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::from_raw((code & 0xff) << 8),
        (None, Some(signal)) if status.dumped() => ExitStatus::from_raw(signal | DUMPED_CORE),
        (None, signal) => ExitStatus::from_raw(signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_program_that_cannot_be_watched_is_ended_with_its_group() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "sleep 100 & echo $!; wait"]).process_group(0).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let pid = Pid::from_raw(shell.id().try_into().unwrap()).unwrap();
        let mut helper = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut helper).unwrap();

        assert!(end_unwatched(pid));
        // Whoever should reap the helper may not have done so yet: a zombie is gone enough.
        let helper = std::fs::read_to_string(format!("/proc/{}/stat", helper.trim()));
        assert!(helper.map_or(true, |stat| stat.contains(") Z ")));
        assert!(shell.wait().is_err(), "it is reaped already");
        assert!(!end_unwatched(pid), "what somebody else has reaped is not known to be gone");
    }
}
