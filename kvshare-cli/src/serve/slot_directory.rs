//! Where state files, token files and sockets lie.

use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, open, statat};

/// How the names of directories begin that a server made for itself.
const PREFIX: &str = "kvshare-slots-";
/// How they begin while they are made.
const UNFINISHED: &str = "kvshare-new-";

/// The slot directory.
#[derive(Debug)]
pub enum SlotDirectory {
    /// Ours.
    Fresh(FreshDirectory),
    /// That of a backend which somebody else started.
    Given(PathBuf),
}

/// A directory of ours: made fresh, of mode 0700, and gone with its contents when this is dropped.
///
/// It is locked (flock) while its server lives, so that the next one knows what a killed one has left.
#[derive(Debug)]
pub struct FreshDirectory {
    path: PathBuf,
    lock: Option<OwnedFd>,
}

impl SlotDirectory {
    /// Makes one in the system's directory for temporary files, and removes those there whose servers were killed.
    ///
    /// # Errors
    /// The system's.
    pub fn fresh() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        remove_left_behind(&parent);
        FreshDirectory::create(&parent).map(Self::Fresh)
    }

    /// Whether it is ours, so that whatever lies in it came with a handoff.
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Fresh(_))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::Fresh(directory) => &directory.path,
            Self::Given(path) => path,
        }
    }
}

impl FreshDirectory {
    fn create(parent: &Path) -> io::Result<Self> {
        let only_ours = Permissions::from_mode(0o700);
        let unfinished = tempfile::Builder::new().prefix(UNFINISHED).permissions(only_ours).tempdir_in(parent)?;
        let lock = lock(unfinished.path()).and_then(|lock| Ok(lock.ok_or(io::ErrorKind::ResourceBusy)?));
        // Where there is no descriptor left, a directory that is empty can still be removed.
        let lock = lock.inspect_err(|_| drop(std::fs::remove_dir(unfinished.path())))?;
        // It has its name only once it is locked: without a lock it would look left behind.
        let name = unfinished.path().file_name().unwrap_or_default().to_string_lossy().replacen(UNFINISHED, PREFIX, 1);
        let path = parent.join(name);
        std::fs::rename(unfinished.path(), &path)?;
        let _ = unfinished.keep();
        Ok(Self { path, lock: Some(lock) })
    }
}

impl Drop for FreshDirectory {
    fn drop(&mut self) {
        // Removing takes a descriptor, and there may be no other one. Whoever sees the directory unlocked removes it, too.
        self.lock = None;
        // What cannot be removed now will be by the next server.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes everything in `directory`, which is ours, but the file named `keep`: what a provider that was killed has left.
pub fn sweep(directory: &Path, keep: Option<&str>) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| keep.is_none_or(|keep| entry.file_name() != keep)) {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_directory { std::fs::remove_dir_all(entry.path()) } else { std::fs::remove_file(entry.path()) };
    }
}

/// Removes the directories in `parent` that are ours and that no server has locked.
fn remove_left_behind(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // Locked while it is removed, and what cannot be looked at or removed is somebody else's business.
        if let Ok(Some(_lock)) = lock(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a directory if it is ours, only ours to use, and not locked.
fn lock(path: &Path) -> io::Result<Option<OwnedFd>> {
    let directory = open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let facts = fstat(&directory)?;
    if facts.st_uid != rustix::process::geteuid().as_raw() || facts.st_mode & 0o777 != 0o700 {
        return Ok(None);
    }
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        // One that was renamed or removed meanwhile is not the one at this path.
        Ok(()) => {
            let there = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(((there.st_dev, there.st_ino) == (facts.st_dev, facts.st_ino)).then_some(directory))
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_is_private_and_goes_with_its_contents() {
        let parent = tempfile::tempdir().unwrap();
        let directory = FreshDirectory::create(parent.path()).unwrap();
        assert_eq!(std::fs::metadata(&directory.path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(names(parent.path()).iter().all(|name| name.starts_with(PREFIX)), "{:?}", names(parent.path()));
        std::fs::write(directory.path.join("a file"), "").unwrap();
        drop(directory);
        assert!(names(parent.path()).is_empty());
    }

    #[test]
    fn all_is_swept_out_but_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let fill = || {
            std::fs::create_dir(directory.path().join("cache")).unwrap();
            for name in ["kvshare-1-1.bin", "state.tmp", "cache/rows"] {
                std::fs::write(directory.path().join(name), "").unwrap();
            }
        };
        fill();
        sweep(directory.path(), Some("kvshare-1-1.bin"));
        assert_eq!(names(directory.path()), ["kvshare-1-1.bin"]);
        fill();
        sweep(directory.path(), None);
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn only_what_a_dead_server_of_ours_has_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let (at, elsewhere) = (|name: &str| parent.path().join(name), tempfile::tempdir().unwrap());
        let alive = FreshDirectory::create(parent.path()).unwrap();
        for (name, mode) in [("kvshare-slots-dead", 0o700), ("kvshare-slots-open", 0o755), ("others", 0o700)] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("kvshare-1-1.bin"), "rows").unwrap();
            std::fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        }
        std::fs::write(at("kvshare-slots-file"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), at("kvshare-slots-link")).unwrap();

        remove_left_behind(parent.path());
        let alive = alive.path.file_name().unwrap().to_str().unwrap();
        let mut kept = vec![alive, "kvshare-slots-file", "kvshare-slots-link", "kvshare-slots-open", "others"];
        kept.sort_unstable();
        assert_eq!(names(parent.path()), kept);
        assert!(elsewhere.path().exists());
    }
}
