//! A socket in the file system that processes of our own user can connect to.

use super::place::{address, check_directory_of, file_type};
use super::{Connection, WireError};
use crate::fd::{Identity, identity, ready};
use rustix::event::PollFlags;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, fchmod, flock, open, statat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How many peers may wait to be accepted. One handoff runs at a time.
const BACKLOG: i32 = 16;

/// A listening socket at a path, which is removed with it.
///
/// While it lives it holds a lock on the file `PATH.lock` beside the socket. Whoever has the lock may remove a socket
/// that nobody listens at any more; the kernel releases it when its process ends in any way.
///
/// ```
/// use kvshare::wire::{Limits, Listener, connect};
/// use std::fs::Permissions;
/// use std::os::unix::fs::PermissionsExt;
/// use std::time::{Duration, Instant};
///
/// let only_ours = Permissions::from_mode(0o700);
/// let directory = tempfile::Builder::new().permissions(only_ours).tempdir()?;
/// let path = directory.path().join("kvshare-1.sock");
/// let deadline = Instant::now() + Duration::from_secs(10);
///
/// let listener = Listener::bind(&path)?;
/// connect(&path, deadline)?.send(b"{}", &[], deadline)?;
/// let message = listener.accept(deadline)?.receive(&Limits::default(), deadline)?;
/// assert_eq!(message.header, b"{}");
///
/// drop(listener);
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    identity: Identity,
    // Declared last, so dropped last: the lock outlives the socket.
    _lock: Lock,
}

impl Listener {
    /// Listens at `path`, whose directory must be ours and of mode 0700, so that nobody else can connect, or put
    /// something else in its place.
    ///
    /// # Errors
    ///
    /// [`WireError::PathTooLong`], [`WireError::NoFileName`], [`WireError::DirectoryIsOpen`] and
    /// [`WireError::DirectoryOfAnother`]; [`WireError::InUse`] if a process listens there already;
    /// [`WireError::NotASocket`] if a file is in the way.
    pub fn bind(path: impl Into<PathBuf>) -> Result<Self, WireError> {
        let path = path.into();
        let address = address(&path)?;
        check_directory_of(&path)?;
        let lock = Lock::acquire(&path)?;
        remove_stale(&path, &address)?;

        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(WireError::system("socket"))?;
        // Set before bind, which gives the file the socket's mode: set after it, the file would be open to others for a
        // moment; and the umask is not ours to change, being the whole process's.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(WireError::system("fchmod of a socket"))?;
        bind(&socket, &address).map_err(|errno| match errno {
            Errno::ADDRINUSE => WireError::InUse { path: path.clone() },
            errno => WireError::path("bind", &path)(errno),
        })?;
        let identity = identity_at(&path).map_err(WireError::path("lstat", &path))?;
        let listener = Self { socket, path, identity, _lock: lock };
        listen(&listener.socket, BACKLOG).map_err(WireError::system("listen"))?;
        Ok(listener)
    }

    /// The path as it was given to [`bind`](Self::bind).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until `deadline` for a peer of our own user or root's.
    ///
    /// # Errors
    ///
    /// [`WireError::NoConnection`] at the deadline; [`WireError::Stranger`] if a peer of another user connected, which is
    /// closed, so that the next call goes on.
    pub fn accept(&self, deadline: Instant) -> Result<Connection, WireError> {
        loop {
            if !ready(self.socket.as_fd(), PollFlags::IN, deadline).map_err(WireError::system("poll"))? {
                return Err(WireError::NoConnection { path: self.path.clone() });
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => return Connection::checked(socket),
                // Another thread was faster, or the peer is gone again.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(WireError::system("accept4")(errno)),
            }
        }
    }
}

impl AsFd for Listener {
    /// The listening socket, for a poll together with other descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if identity_at(&self.path) == Ok(self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket at `path` if nobody listens at it. The caller holds the path's lock.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), WireError> {
    match file_type(path)? {
        None => return Ok(()),
        Some(FileType::Socket) => {}
        Some(_) => return Err(WireError::NotASocket { path: path.to_owned() }),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(WireError::system("socket"))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(WireError::path("unlink", path)),
        Err(Errno::NOENT) => Ok(()),
        // Accepted, a full queue, a socket of another type: somebody is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(WireError::InUse { path: path.to_owned() }),
        Err(errno) => Err(WireError::path("connect", path)(errno)),
    }
}

/// The lock that makes two starters take turns at one path.
#[derive(Debug)]
struct Lock {
    file: OwnedFd,
    path: PathBuf,
}

impl Lock {
    fn acquire(socket: &Path) -> Result<Self, WireError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        loop {
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(WireError::path("open", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(WireError::InUse { path: socket.to_owned() }),
                Err(errno) => return Err(WireError::path("flock", &path)(errno)),
            }
            let lock = Self { file, path: path.clone() };
            // A holder before us may have removed the file between our open and our lock; then the lock holds nobody
            // off who comes after.
            if lock.is_in_place()? {
                return Ok(lock);
            }
        }
    }

    fn is_in_place(&self) -> Result<bool, WireError> {
        let ours = identity(self.file.as_fd()).map_err(WireError::path("fstat", &self.path))?;
        match identity_at(&self.path) {
            Ok(there) => Ok(there == ours),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(WireError::path("lstat", &self.path)(errno)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while still locked: whoever opened it before finds out by `is_in_place`.
        if self.is_in_place().unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Which file lies at `path` itself, a symbolic link not followed.
fn identity_at(path: &Path) -> Result<Identity, Errno> {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(|status| Identity::of(&status))
}
