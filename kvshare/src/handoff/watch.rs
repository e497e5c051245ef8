//! Watching a running provider: its output, its time limit, its end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::lines::{Lines, Quote};
use super::{Cancel, Ending};
use crate::fd::{Child, FdError, Signal};

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
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

/// How it ended, why it was stopped (if it was), and what it printed.
pub(super) struct Watched {
    pub(super) ending: Ending,
    pub(super) stopped: Option<Stop>,
    pub(super) last_stdout: Option<String>,
    pub(super) said: Option<String>,
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
    deadline: Instant,
    cancel: Option<&Cancel>,
    log: &mut dyn FnMut(&str),
) -> Result<Watched, FdError> {
    let mut stdout = Lines::new(child.stdout.take())?;
    let mut stderr = Lines::new(child.stderr.take())?;
    let (mut last_stdout, mut quote) = (None, Quote::default());
    let mut phase = Phase::Running;
    let mut stopped = None;

    let ending = loop {
        let exited = match child.try_wait() {
            Ok(status) => status.map(Ending::from),
            Err(FdError::GroupRemains { .. }) => Some(Ending::HelpersRunning),
            Err(error) => return Err(error),
        };
        let limit = if exited.is_some() { PIPE_BYTES } else { TURN_BYTES };
        stdout.take(limit, &mut |line| keep_last(line, &mut last_stdout));
        stderr.take(limit, &mut |line| {
            quote.take(line);
            log(line);
        });
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
        let pipes = [stdout.pipe(), stderr.pipe()].into_iter().flatten();
        let cancel = cancel.filter(|_| stopped.is_none()).map(AsFd::as_fd);
        sources.extend(pipes.chain(cancel).map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
        wait_for_any(&mut sources, wake_at - now)?;
    };
    stdout.finish(&mut |line| keep_last(line, &mut last_stdout));
    stderr.finish(&mut |line| {
        quote.take(line);
        log(line);
    });
    Ok(Watched { ending, stopped, last_stdout, said: quote.text() })
}

fn keep_last(line: &str, last: &mut Option<String>) {
    if !line.trim().is_empty() {
        *last = Some(line.to_owned());
    }
}

fn is_cancelled(cancel: &Cancel) -> bool {
    let mut source = [PollFd::from_borrowed_fd(cancel.as_fd(), PollFlags::IN)];
    matches!(poll(&mut source, Some(&Timespec::default())), Ok(1..))
}

fn wait_for_any(sources: &mut [PollFd<'_>], at_most: Duration) -> Result<(), FdError> {
    // A limit that no timespec holds is no limit.
    let timeout = Timespec::try_from(at_most).ok();
    match poll(sources, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(FdError::system("poll")(errno)),
    }
}
