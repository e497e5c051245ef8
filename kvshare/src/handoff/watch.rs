//! Watching a running provider: its output, its time limit, its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::lines::{Lines, Quote};
use super::{Cancel, Ending};
use crate::fd::{Child, FdError, Signal};

/// From SIGTERM to SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// From SIGKILL until the wait is given up.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// What may be left in a pipe when its writer is gone (the kernel's usual limit for a pipe's size).
const PIPE_BYTES: usize = 1 << 20;
/// How much is read from one pipe before the other and the clock have their turn.
const TURN_BYTES: usize = 64 << 10;

/// Why a program was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Timeout,
    Cancelled,
}

/// How it ended, and why it was stopped, if it was.
pub(super) struct Watched {
    pub(super) ending: Ending,
    pub(super) stopped: Option<Stop>,
}

/// What a program prints, and what is kept of it.
pub(super) struct Outputs {
    stdout: Lines,
    stderr: Lines,
    /// The last line of its standard output that is not blank.
    pub(super) last_stdout: Option<String>,
    quote: Quote,
}

impl Outputs {
    pub(super) fn of(child: &mut Child) -> Result<Self, FdError> {
        let (stdout, stderr) = (Lines::new(child.stdout.take())?, Lines::new(child.stderr.take())?);
        Ok(Self { stdout, stderr, last_stdout: None, quote: Quote::default() })
    }

    /// Takes what is there now, at most `limit` bytes of each pipe.
    fn take(&mut self, limit: usize, log: &mut dyn FnMut(&str)) {
        let Self { stdout, stderr, last_stdout, quote } = self;
        stdout.take(limit, &mut |line| keep_last(line, last_stdout));
        stderr.take(limit, &mut |line| {
            quote.take(line);
            log(line);
        });
    }

    /// The same, of a program that goes on.
    pub(super) fn take_turn(&mut self, log: &mut dyn FnMut(&str)) {
        self.take(TURN_BYTES, log);
    }

    fn finish(&mut self, log: &mut dyn FnMut(&str)) {
        let Self { stdout, stderr, last_stdout, quote } = self;
        stdout.finish(&mut |line| keep_last(line, last_stdout));
        stderr.finish(&mut |line| {
            quote.take(line);
            log(line);
        });
    }

    /// The pipes that are still open.
    pub(super) fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.stdout.pipe(), self.stderr.pipe()].into_iter().flatten()
    }

    /// What is worth quoting of its standard error. It is forgotten then.
    pub(super) fn said(&mut self) -> Option<String> {
        std::mem::take(&mut self.quote).text()
    }
}

/// What has been done to end the program.
enum Phase {
    Running,
    Asked { kill_at: Instant },
    Killed { give_up_at: Instant },
}

/// Waits for `child` to end, hands each line of its standard error to `log`, and stops its process group at `deadline`
/// or when `cancel` says so: SIGTERM, and SIGKILL after five seconds.
pub(super) fn watch(
    child: &mut Child,
    outputs: &mut Outputs,
    deadline: Instant,
    cancel: Option<&Cancel>,
    log: &mut dyn FnMut(&str),
) -> Result<Watched, FdError> {
    let mut phase = Phase::Running;
    let mut stopped = None;

    let ending = loop {
        let exited = match child.try_wait() {
            Ok(status) => status.map(Ending::from),
            Err(FdError::GroupRemains { .. }) => Some(Ending::HelpersRunning),
            Err(error) => return Err(error),
        };
        let limit = if exited.is_some() { PIPE_BYTES } else { TURN_BYTES };
        outputs.take(limit, log);
        if let Some(ending) = exited {
            break ending;
        }
        let now = Instant::now();
        let wake_at = match phase {
            Phase::Running => deadline,
            Phase::Asked { kill_at } => kill_at,
            Phase::Killed { give_up_at } => give_up_at,
        };
        let cancelled = stopped.is_none() && cancel.is_some_and(is_cancelled);
        if cancelled || now >= wake_at {
            phase = match phase {
                Phase::Running => {
                    stopped = Some(if cancelled { Stop::Cancelled } else { Stop::Timeout });
                    child.signal_group(Signal::TERM)?;
                    Phase::Asked { kill_at: now + GRACE }
                }
                Phase::Asked { .. } => {
                    child.signal_group(Signal::KILL)?;
                    Phase::Killed { give_up_at: now + KILL_LIMIT }
                }
                Phase::Killed { .. } => break Ending::StillRunning,
            };
            continue;
        }
        let mut sources: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(child.as_fd(), PollFlags::IN)];
        let cancel = cancel.filter(|_| stopped.is_none()).map(AsFd::as_fd);
        sources.extend(outputs.pipes().chain(cancel).map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
        wait_for_any(&mut sources, wake_at - now)?;
    };
    outputs.finish(log);
    Ok(Watched { ending, stopped })
}

fn keep_last(line: &str, last: &mut Option<String>) {
    if !line.trim().is_empty() {
        *last = Some(line.to_owned());
    }
}

pub(super) fn is_cancelled(cancel: &Cancel) -> bool {
    let mut source = [PollFd::from_borrowed_fd(cancel.as_fd(), PollFlags::IN)];
    matches!(poll(&mut source, Some(&Timespec::default())), Ok(1..))
}

pub(super) fn wait_for_any(sources: &mut [PollFd<'_>], at_most: Duration) -> Result<(), FdError> {
    // A limit that no timespec holds is no limit.
    let timeout = Timespec::try_from(at_most).ok();
    match poll(sources, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(FdError::system("poll")(errno)),
    }
}
