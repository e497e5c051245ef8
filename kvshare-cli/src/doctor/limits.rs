//! What a process of this user may do.

use std::fs;

use kvshare::fd::DescriptorLimit;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Resource, getpid, getrlimit, pidfd_getfd, pidfd_open};

use super::{Check, State};
use crate::output::bytes_in_words;

/// Descriptors that a proxy should be able to hold: some hundred connections, and the regions of a large cache twice.
const ENOUGH: u64 = 1024;

pub(super) fn checks() -> Vec<Check> {
    vec![descriptors(), locked_memory(), pidfd(), tracing()]
}

fn descriptors() -> Check {
    let DescriptorLimit { soft, hard } = DescriptorLimit::current();
    let words = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    let check = |state| Check::new("descriptor limit", state, format!("{} (at most {})", words(soft), words(hard)));
    if soft.is_none_or(|soft| soft >= ENOUGH) {
        return check(State::Good);
    }
    check(State::Limited).remedy(format!("ulimit -n {ENOUGH}: descriptors that arrive over the limit are lost"))
}

fn locked_memory() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let words = limit.map_or_else(|| "none".to_owned(), bytes_in_words);
    let check = |state| Check::new("locked memory limit", state, words.clone());
    match limit {
        Some(limit) if limit < 64 << 20 => check(State::Limited)
            .remedy("only drivers that pin the cache need more: ulimit -l, or memlock in limits.conf"),
        _ => check(State::Good),
    }
}

fn pidfd() -> Check {
    let name = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Err(errno) => Check::new(name, State::Broken, format!("pidfd_open: {errno}"))
            .remedy("providers cannot be watched without it: Linux 5.3, or a container profile that allows it"),
        Ok(pidfd) => match pidfd_getfd(&pidfd, 0, PidfdGetfdFlags::empty()) {
            // EBADF: it is allowed, and standard input is closed.
            Ok(_) | Err(rustix::io::Errno::BADF) => {
                Check::new(name, State::Good, "providers can be watched, descriptors taken from own processes")
            }
            Err(errno) => {
                let found = format!("providers can be watched; descriptors of others cannot be taken ({errno})");
                Check::new(name, State::Limited, found)
                    .remedy("only inspect --pid needs it: a seccomp profile may forbid it")
            }
        },
    }
}

/// What Yama says of tracing (the kernel's Documentation/admin-guide/LSM/Yama.rst).
fn tracing() -> Check {
    let name = "looking into others";
    let path = "/proc/sys/kernel/yama/ptrace_scope";
    match fs::read_to_string(path).as_deref().map(str::trim) {
        Ok("0") | Err(_) => Check::new(name, State::Good, "inspect --pid may look into processes of the same user"),
        Ok(scope) => Check::new(name, State::Limited, format!("ptrace_scope is {scope}: inspect --pid needs root"))
            .remedy(format!("sysctl kernel.yama.ptrace_scope=0 (as root) lets it, for all processes ({path})")),
    }
}
