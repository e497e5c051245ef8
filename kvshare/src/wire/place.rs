//! Where in the file system a socket may lie.

use super::WireError;
use rustix::fs::{AtFlags, CWD, FileType, Mode, statat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The longest path that a socket's address holds: `sun_path` has 108 bytes, the last of them a NUL
/// ([unix(7)](https://man7.org/linux/man-pages/man7/unix.7.html)).
pub const MAX_PATH_BYTES: usize = 107;

/// Checks that the socket `path` lies directly inside `directory`, and returns the path to connect to.
///
/// A relative `path` is taken to start in `directory`. `..`, a directory below, a symbolic link out of the directory and
/// one in the socket's own place are refused: a decoder that is told where to send its cache sends it nowhere else. The
/// path returned has no symbolic links in it.
///
/// ```
/// use kvshare::wire::{WireError, check_inside};
/// use std::path::Path;
///
/// let error = check_inside(Path::new("../elsewhere.sock"), Path::new("/tmp")).unwrap_err();
/// assert!(matches!(error, WireError::OutsideDirectory { .. }));
/// ```
///
/// # Errors
///
/// [`WireError::OutsideDirectory`]; [`WireError::NobodyListens`] if nothing is there; [`WireError::NotASocket`] if
/// something else is; [`WireError::Path`] if it cannot be looked at.
pub fn check_inside(path: &Path, directory: &Path) -> Result<PathBuf, WireError> {
    let outside = || WireError::OutsideDirectory { path: path.to_owned(), directory: directory.to_owned() };
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(outside());
    }
    let full = directory.join(path);
    let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
        return Err(outside());
    };
    let canonical = |path: &Path| path.canonicalize().map_err(WireError::path("realpath", path));
    let directory = canonical(directory)?;
    // A parent that does not exist is not the directory.
    if parent.canonicalize().ok().as_ref() != Some(&directory) {
        return Err(outside());
    }
    let full = directory.join(name);
    match file_type(&full)? {
        Some(FileType::Socket) => Ok(full),
        Some(FileType::Symlink) => Err(outside()),
        Some(_) => Err(WireError::NotASocket { path: full }),
        None => Err(WireError::NobodyListens { path: full }),
    }
}

/// What lies at `path` itself, a symbolic link not followed; `None` if nothing does.
pub(super) fn file_type(path: &Path) -> Result<Option<FileType>, WireError> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(FileType::from_raw_mode(status.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(WireError::path("lstat", path)(errno)),
    }
}

/// `path` as a socket's address.
pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, WireError> {
    let length = path.as_os_str().as_bytes().len();
    if length > MAX_PATH_BYTES {
        return Err(WireError::PathTooLong { path: path.to_owned(), length });
    }
    // An empty path would be an address that no file system guards.
    if path.file_name().is_none() {
        return Err(WireError::NoFileName { path: path.to_owned() });
    }
    SocketAddrUnix::new(path).map_err(|_| WireError::NoFileName { path: path.to_owned() })
}

/// Checks that only this process's user can reach what lies in the directory of `path`.
pub(super) fn check_directory_of(path: &Path) -> Result<(), WireError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let status = statat(CWD, directory, AtFlags::empty()).map_err(WireError::path("stat", directory))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(WireError::path("opendir", directory)(Errno::NOTDIR));
    }
    let ours = rustix::process::geteuid().as_raw();
    if status.st_uid != ours {
        return Err(WireError::DirectoryOfAnother { directory: directory.to_owned(), owner: status.st_uid, ours });
    }
    let mode = Mode::from_raw_mode(status.st_mode).bits();
    if mode & 0o777 != 0o700 {
        return Err(WireError::DirectoryIsOpen { directory: directory.to_owned(), mode: mode & 0o777 });
    }
    Ok(())
}
