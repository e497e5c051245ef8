//! What this machine says of its memory.

use std::fs;

/// How many bytes can be had without swapping, as `MemAvailable` of `/proc/meminfo` tells (proc_meminfo(5)).
///
/// A memory cgroup may allow less; its limit shows only when memory is taken.
pub(super) fn available_memory() -> Option<u64> {
    parse_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

pub(super) fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The setting in force for transparent huge pages in shared memory: `always`, `within_size`, `advise`, `never`,
/// `deny` or `force` (Linux, Documentation/admin-guide/mm/transhuge.rst).
pub(super) fn shared_memory_huge_setting() -> Option<String> {
    let settings = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok()?;
    parse_setting(&settings).map(str::to_owned)
}

/// The bracketed word of a line such as `always [never] force`.
pub(super) fn parse_setting(settings: &str) -> Option<&str> {
    settings.split_once('[')?.1.split_once(']').map(|(setting, _)| setting)
}
