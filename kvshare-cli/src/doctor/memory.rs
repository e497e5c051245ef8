//! The default route, and what memory there is for it.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kvshare::fd::{Truncation, check_region};
use kvshare::layout::ALIGNMENT;
use kvshare::map::{Access, Extent, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::wire::{Limits, receive, send};

use super::{Check, State};
use crate::output::bytes_in_words;

const PAGE: &[u8] = &[0xa5; ALIGNMENT as usize];

/// Sends a page of sealed memory through a socket to ourselves, writes it on the one side and reads it on the other.
pub(super) fn default_route() -> Check {
    let name = "default route";
    match page_crosses() {
        Ok(()) => {
            Check::new(name, State::Good, "a sealed memfd crossed a unix socket and was read where it was written")
        }
        Err(error) => Check::new(name, State::Broken, error)
            .remedy("a container's seccomp profile, SELinux or AppArmor may forbid it; see also the kernel's line"),
    }
}

fn page_crosses() -> Result<(), String> {
    let failed = |step: &'static str| move |error: &dyn std::fmt::Display| format!("{step}: {error}");
    let memory = Memfd::new().allocate("doctor", ALIGNMENT).map_err(|error| failed("memfd and seals")(&error))?;
    let extent = Extent { offset: 0, size: ALIGNMENT };
    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    let mapped = MappedRegion::map(&memory.descriptor, extent, &[], &options);
    let mut ours = mapped.map_err(|error| failed("mapping it for writing")(&error))?;
    let (here, there) = UnixStream::pair().map_err(|error| failed("a pair of unix sockets")(&error))?;
    let deadline = Instant::now() + Duration::from_secs(5);
    send(&here, b"{}", &[memory.descriptor.as_fd()], deadline).map_err(|error| failed("sending it")(&error))?;
    let message = receive(&there, &Limits::default(), deadline).map_err(|error| failed("receiving it")(&error))?;
    let arrived = message.descriptors.first().ok_or("receiving it: no descriptor came")?;
    match check_region(arrived) {
        Ok(Truncation::Impossible) => {}
        Ok(Truncation::Possible) => return Err("its seals were lost on the way".to_owned()),
        Err(error) => return Err(failed("looking at it")(&error)),
    }
    let theirs = MappedRegion::map(arrived, extent, &[], &MapOptions::default());
    let theirs = theirs.map_err(|error| failed("mapping what arrived")(&error))?;
    let mut found = [0; ALIGNMENT as usize];
    let written = ours.view_mut(0, ALIGNMENT).and_then(|mut view| view.copy_from(PAGE));
    let read = theirs.view(0, ALIGNMENT).and_then(|view| view.copy_to(&mut found));
    written.and(read).map_err(|error| failed("writing and reading it")(&error))?;
    if found == PAGE { Ok(()) } else { Err("what was written is not what is read".to_owned()) }
}

pub(super) fn checks() -> Vec<Check> {
    vec![available(), cgroup(), transparent_huge_pages(), huge_page_pools()]
}

fn available() -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| kib(&text, name).map_or_else(|| "unknown".to_owned(), bytes_in_words);
    Check::new("memory", State::Good, format!("{} available of {}", of("MemAvailable:"), of("MemTotal:")))
}

/// The bytes that a line of `/proc/meminfo` tells (proc_meminfo(5)).
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The limit of this process's own memory cgroup (the kernel's Documentation/admin-guide/cgroup-v2.rst, `memory.max`).
/// Shared memory counts for whoever touched it first.
fn cgroup() -> Check {
    let name = "memory cgroup";
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = membership.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Check::new(name, State::Good, "none of version 2");
    };
    let limit = fs::read_to_string(format!("/sys/fs/cgroup{}/memory.max", path.trim_end()));
    match limit.as_deref().map(str::trim).map(str::parse::<u64>) {
        Ok(Ok(limit)) => {
            let found = format!("at most {}, the cache included", bytes_in_words(limit));
            Check::new(name, State::Limited, found)
                .remedy("raise the container's memory limit if the cache does not fit")
        }
        _ => Check::new(name, State::Good, "no limit"),
    }
}

fn transparent_huge_pages() -> Check {
    let name = "transparent huge pages";
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = fs::read_to_string(path).unwrap_or_default();
    let setting = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(setting, _)| setting);
    let remedy = format!("echo within_size > {path} (as root) makes first touches faster");
    match setting {
        Some(setting @ ("always" | "within_size" | "force")) => {
            Check::new(name, State::Good, format!("shmem_enabled is {setting}"))
        }
        Some("advise") => {
            Check::new(name, State::Limited, "shmem_enabled is advise: only for memory taken on touch").remedy(remedy)
        }
        Some(setting) => {
            Check::new(name, State::Limited, format!("shmem_enabled is {setting}: memfds have small pages"))
                .remedy(remedy)
        }
        None => Check::new(name, State::Absent, "this kernel has none for shared memory"),
    }
}

fn huge_page_pools() -> Check {
    let name = "huge page pools";
    let entries = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut pools: Vec<(u64, u64, u64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = |file: &str| fs::read_to_string(entry.path().join(file)).ok()?.trim().parse::<u64>().ok();
            Some((kib.checked_mul(1024)?, count("free_hugepages")?, count("nr_hugepages")?))
        })
        .collect();
    pools.sort_unstable();
    if pools.is_empty() {
        return Check::new(name, State::Absent, "this kernel has none");
    }
    let words = pools.iter().map(|(bytes, free, all)| format!("{}: {free} free of {all}", bytes_in_words(*bytes)));
    let found = words.collect::<Vec<_>>().join("; ");
    if pools.iter().any(|(_, free, _)| *free > 0) {
        return Check::new(name, State::Good, found);
    }
    Check::new(name, State::Absent, found).remedy(
        "sysctl vm.nr_hugepages=N (as root) reserves N of 2 MiB; other processes then touch the cache 30 times faster",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_meminfo_is_in_kib() {
        let text = "MemTotal:       65791132 kB\nMemAvailable:   61324500 kB\n";
        assert_eq!(kib(text, "MemAvailable:"), Some(61_324_500 * 1024));
        assert_eq!(kib(text, "MemFree:"), None);
    }
}
