//! A connection between two processes of one user.

use super::place::address;
use super::receive::receive_unless;
use super::{Limits, Message, WireError, receive, send};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// A connection to a process of our own user, or root's.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    peer_uid: u32,
    peer_pid: i32,
}

impl Connection {
    /// Takes a connected socket, if the process at its other end is ours or root's.
    pub(super) fn checked(socket: OwnedFd) -> Result<Self, WireError> {
        // Not rustix's: its credentials have no place for the id 0 of a peer in a PID namespace that we cannot see.
        let peer = getsockopt(&socket, PeerCredentials).map_err(WireError::system("getsockopt SO_PEERCRED"))?;
        let ours = rustix::process::geteuid().as_raw();
        if peer.uid() != ours && peer.uid() != 0 {
            return Err(WireError::Stranger { peer: peer.uid(), ours, pid: peer.pid() });
        }
        Ok(Self { socket, peer_uid: peer.uid(), peer_pid: peer.pid() })
    }

    /// The user of the peer when it connected or began to listen.
    pub fn peer_uid(&self) -> u32 {
        self.peer_uid
    }

    /// The process id of the peer when it connected or began to listen; 0 where it is in a PID namespace that we cannot
    /// see. The process may be gone and its id another's: it is good for a log and for nothing else.
    pub fn peer_pid(&self) -> i32 {
        self.peer_pid
    }

    /// Sends one message, as [`send`] does.
    ///
    /// # Errors
    ///
    /// Those of [`send`].
    pub fn send(&self, header: &[u8], descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), WireError> {
        send(&self.socket, header, descriptors, deadline)
    }

    /// Receives one message, as [`receive`] does.
    ///
    /// # Errors
    ///
    /// Those of [`receive`].
    pub fn receive(&self, limits: &Limits, deadline: Instant) -> Result<Message, WireError> {
        receive(&self.socket, limits, deadline)
    }

    /// Receives one message, as [`receive`] does, but gives it up once `stop` is readable. What has arrived whole by then
    /// is received all the same.
    ///
    /// # Errors
    ///
    /// Those of [`receive`], and [`WireError::Stopped`].
    pub fn receive_unless(
        &self,
        limits: &Limits,
        deadline: Instant,
        stop: BorrowedFd<'_>,
    ) -> Result<Message, WireError> {
        receive_unless(self.as_fd(), limits, deadline, Some(stop))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.socket
    }
}

/// Connects to the process that listens at `path`, waiting until `deadline` while its queue is full.
///
/// # Errors
///
/// [`WireError::NobodyListens`], [`WireError::NoConnection`] at the deadline, [`WireError::Stranger`] if somebody else
/// listens there, [`WireError::PathTooLong`], and [`WireError::Path`] if the kernel refuses.
pub fn connect(path: &Path, deadline: Instant) -> Result<Connection, WireError> {
    let address = address(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(WireError::system("socket"))?;
    loop {
        // A unix socket cannot be polled for room in the listener's queue; connect itself waits as long as a send may.
        // A timeout of zero would be none at all.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        set_socket_timeout(&socket, Timeout::Send, Some(left)).map_err(WireError::system("setsockopt SO_SNDTIMEO"))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Connection::checked(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => {}
            Err(Errno::AGAIN) => return Err(WireError::NoConnection { path: path.to_owned() }),
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(WireError::NobodyListens { path: path.to_owned() }),
            Err(errno) => return Err(WireError::path("connect", path)(errno)),
        }
    }
}
