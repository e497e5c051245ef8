//! Which other processes hold a descriptor's file, as far as `/proc` shows it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use kvshare::fd::Identity;

/// Which other processes hold a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Those that were found.
    pub found: Vec<Holder>,
    /// How many processes may not be looked into: they belong to another user, or guard themselves (proc(5)).
    pub hidden: u64,
}

/// A process that holds a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: String,
    /// The numbers of its descriptors.
    pub descriptors: Vec<u32>,
    /// Whether it has the file mapped.
    pub is_mapped: bool,
}

impl Holders {
    /// Looks through all processes but this one.
    pub fn of(identity: Identity) -> Self {
        let mut holders = Self::default();
        let Ok(entries) = fs::read_dir("/proc") else { return holders };
        for entry in entries.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let Some(pid) = pid.filter(|pid| *pid != std::process::id()) else { continue };
            match Holder::of(pid, &entry.path(), identity) {
                Some(holder) if holder.descriptors.is_empty() && !holder.is_mapped => {}
                Some(holder) => holders.found.push(holder),
                None => holders.hidden += 1,
            }
        }
        holders.found.sort_by_key(|holder| holder.pid);
        holders
    }
}

impl Holder {
    /// What a process holds of the file, or `None` where it may not be looked into. One that ends meanwhile holds
    /// nothing.
    fn of(pid: u32, directory: &Path, identity: Identity) -> Option<Self> {
        let descriptors = match fs::read_dir(directory.join("fd")) {
            Ok(entries) => entries.flatten().filter(|entry| is_same_file(&entry.path(), identity)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
            Err(_) => return Some(Self { pid, name: String::new(), descriptors: Vec::new(), is_mapped: false }),
        };
        let numbers = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut descriptors: Vec<u32> = numbers.collect();
        descriptors.sort_unstable();
        let name = fs::read_to_string(directory.join("comm")).unwrap_or_default().trim_end().to_owned();
        let maps = fs::read_to_string(directory.join("maps")).unwrap_or_default();
        let is_mapped = maps.lines().any(|line| is_mapping_of(line, identity));
        Some(Self { pid, name, descriptors, is_mapped })
    }
}

fn is_same_file(link: &Path, identity: Identity) -> bool {
    fs::metadata(link).is_ok_and(|found| (found.dev(), found.ino()) == (identity.device, identity.inode))
}

/// Whether a line of `/proc/PID/maps` is a mapping of the file: `start-end access offset major:minor inode path`
/// (proc_pid_maps(5)).
fn is_mapping_of(line: &str, identity: Identity) -> bool {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (Some(device), Some(inode)) = (fields.next(), fields.next()) else { return false };
    let (major, minor) = (rustix::fs::major(identity.device), rustix::fs::minor(identity.device));
    device == format!("{major:02x}:{minor:02x}") && inode.parse() == Ok(identity.inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_names_device_and_inode() {
        let identity = Identity { device: rustix::fs::makedev(0, 1), inode: 2050 };
        let line = |rest: &str| format!("7f10a0000000-7f10a0100000 rw-s 00000000 {rest}");
        assert!(is_mapping_of(&line("00:01 2050      /memfd:cache-0 (deleted)"), identity));
        for other in ["00:01 2051 /memfd:cache-1 (deleted)", "fe:01 2050 /usr/lib/x.so", "00:00 0", ""] {
            assert!(!is_mapping_of(&line(other), identity), "{other}");
        }
    }
}
