//! Whether anything in a process group still runs, once its leader is gone.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use std::time::Duration;

/// The first of the pauses between two looks; each is twice as long as the one before. All of them take two seconds.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LOOKS: u32 = 13;

/// Waits until nothing in `group`, whose leader was reaped and whose members were killed, runs any more; `false` if
/// something still does after two seconds.
///
/// The members are no children of ours, so that only looking again and again tells when they are gone.
pub(super) fn ends(group: Pid) -> bool {
    (0..LOOKS).any(|look| {
        if look > 0 {
            std::thread::sleep(FIRST_PAUSE * (1 << (look - 1)));
        }
        is_empty(group) || is_dead(group)
    })
}

/// While a group has a member, zombies included, its number belongs to nobody else.
fn is_empty(group: Pid) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH)
}

/// Whether the group's members are known, and all of them zombies. Who should reap them may never do so, as the first
/// process of a container often does not; but a zombie has neither memory nor descriptors and writes nothing.
fn is_dead(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let stats = processes.filter_map(|process| std::fs::read_to_string(process.ok()?.path().join("stat")).ok());
    let mut members = stats.filter_map(|stat| Member::parse(&stat)).filter(|member| member.group == group).peekable();
    // Members that /proc hides from us are not known to be dead.
    members.peek().is_some() && members.all(|member| member.is_zombie)
}

/// A process, as `/proc/PID/stat` tells
/// ([proc_pid_stat(5)](https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html)).
struct Member {
    group: Pid,
    is_zombie: bool,
}

impl Member {
    fn parse(stat: &str) -> Option<Self> {
        // The program's name comes before, in parentheses, and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let group = Pid::from_raw(fields.nth(1)?.parse().ok()?)?;
        // A first thread that ended before the others shows as a zombie while they run on.
        let threads = fields.nth(14)?;
        Some(Self { group, is_zombie: matches!(state, "Z" | "X") && matches!(threads, "0" | "1") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_dead_when_its_last_thread_is() {
        let stat = |state: &str, threads: u32| {
            format!("77 (a) Z 5 (b) {state} 1 4711 4711 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 900 0 0\n")
        };
        let cases =
            [("S", 1, false), ("D", 1, false), ("T", 1, false), ("Z", 1, true), ("Z", 0, true), ("Z", 2, false)];
        for (state, threads, dead) in cases {
            let member = Member::parse(&stat(state, threads)).unwrap();
            assert_eq!((member.group.as_raw_pid(), member.is_zombie), (4711, dead), "{state}, {threads} threads");
        }
    }

    #[test]
    fn what_is_no_process_is_no_member() {
        for stat in ["", "77", "77 (a) Z", "77 (a) Z 1 0 0", "77 (a) Z 1 x 4711 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"] {
            assert!(Member::parse(stat).is_none(), "{stat:?}");
        }
    }
}
