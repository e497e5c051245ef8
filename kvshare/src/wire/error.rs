//! What can go wrong between two processes.

use crate::fd::FdError;
use std::io;
use std::path::PathBuf;

/// Why a message did not cross, or a socket could not be used.
///
/// After an error in the middle of a message the connection is of no more use: close it. All descriptors that arrived
/// are closed already.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The peer closed the connection before a message began.
    #[error("the peer closed the connection without sending a message; its own log may say why")]
    ClosedBeforeMessage,
    /// The peer closed the connection within a message.
    #[error("the peer closed the connection after {done} of {expected} bytes of a message; its own log may say why")]
    ClosedWithinMessage {
        /// The bytes that were sent or received.
        done: usize,
        /// The bytes of the message, as far as its length is known: 4 while it is not.
        expected: usize,
    },
    /// The deadline passed before the message was through.
    #[error("the peer stalled: {done} of {expected} bytes of a message were through at the deadline")]
    Stalled {
        /// The bytes that were sent or received.
        done: usize,
        /// The bytes of the message, as far as its length is known: 4 while it is not.
        expected: usize,
    },
    /// Nobody wanted the message any more.
    #[error("the exchange was called off after {done} of {expected} bytes of a message")]
    Stopped {
        /// The bytes that were received.
        done: usize,
        /// The bytes of the message, as far as its length is known: 4 while it is not.
        expected: usize,
    },
    /// The header is empty.
    #[error("a message has an empty header; a header is at least the JSON of its regions")]
    EmptyHeader,
    /// The header is longer than allowed.
    #[error(
        "a message announces a header of {announced} bytes, over the limit of {limit}; is the peer speaking this protocol?"
    )]
    HeaderTooLong {
        /// The length announced, or given to send.
        announced: usize,
        /// The limit.
        limit: usize,
    },
    /// More descriptors came than allowed.
    #[error("a message brought {received} descriptors, over the limit of {limit}; send fewer regions")]
    TooManyDescriptors {
        /// How many had come when it was refused.
        received: usize,
        /// The limit.
        limit: usize,
    },
    /// There are too few bytes for the batches that the descriptors need.
    #[error("{descriptors} descriptors do not fit on {bytes} bytes: each {} need a byte", super::DESCRIPTORS_PER_SEND)]
    TooFewBytes {
        /// How many were to be sent.
        descriptors: usize,
        /// The bytes of the message.
        bytes: usize,
    },
    /// The kernel delivered fewer descriptors than were sent.
    #[error(
        "descriptors were lost on arrival: the header announces {}, {received} arrived. Either this process's descriptor \
         table is full (its limit is {}; raise it with ulimit -n), or a security module (SELinux, AppArmor) withheld some",
        announced.map_or("an unreadable number".to_owned(), |announced| announced.to_string()),
        limit.map_or("none".to_owned(), |limit| limit.to_string())
    )]
    DescriptorsLost {
        /// How many the header's regions name; `None` where the header cannot be read.
        announced: Option<usize>,
        /// How many arrived. They are closed.
        received: usize,
        /// This process's soft limit on open descriptors; `None` is no limit.
        limit: Option<u64>,
    },
    /// The sender has too many descriptors on their way already.
    #[error(
        "too many descriptors of this user are on their way and not yet received (sending {descriptors} more); let the \
         receivers catch up, or raise the limit with ulimit -n"
    )]
    TooManyInFlight {
        /// How many were to be sent.
        descriptors: usize,
    },
    /// A descriptor that arrived can be no region.
    #[error("descriptor {index} of a message: {source}")]
    NotARegion {
        /// Its place in the message.
        index: usize,
        /// What it is.
        source: FdError,
    },
    /// The path does not fit into a socket's address.
    #[error(
        "the socket path {} is {length} bytes long, over the {} that a socket address holds; use a shorter directory",
        path.display(), super::MAX_PATH_BYTES
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The path does not end in a file's name.
    #[error("{path:?} is no path of a socket; give a directory and a file name")]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// Others than its owner may use the directory.
    #[error("the socket directory {} has mode {mode:04o}; only its owner may use it (chmod 0700)", directory.display())]
    DirectoryIsOpen {
        /// The directory.
        directory: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The directory is somebody else's.
    #[error("the socket directory {} belongs to uid {owner}, this process is uid {ours}; use a directory of your own", directory.display())]
    DirectoryOfAnother {
        /// The directory.
        directory: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        ours: u32,
    },
    /// Another process listens at the path.
    #[error("another process listens at {}; stop it, or use another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// There is something at the path that is not a socket.
    #[error("{} exists and is not a socket; move it away, or use another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Nobody listens at the path.
    #[error("nobody listens at {}; is its program running?", path.display())]
    NobodyListens {
        /// The path.
        path: PathBuf,
    },
    /// The path lies elsewhere than directly inside the directory.
    #[error("the socket path {} is not directly inside {}; sockets are used only there", path.display(), directory.display())]
    OutsideDirectory {
        /// The path as it was given.
        path: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// The peer is neither us nor root.
    #[error("the peer (pid {pid}) runs as uid {peer}; only uid {ours} or root may exchange a cache with this process")]
    Stranger {
        /// The peer's user.
        peer: u32,
        /// Our user.
        ours: u32,
        /// The peer's process; 0 where it is in a PID namespace that we cannot see.
        pid: i32,
    },
    /// Nobody connected, or nobody accepted, before the deadline.
    #[error("no connection was made at {} before the deadline", path.display())]
    NoConnection {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused a call.
    #[error("{call} failed: {source}")]
    System {
        /// The call, by the name of its manual page.
        call: &'static str,
        /// What the system answered.
        source: io::Error,
    },
    /// The operating system refused a call that has to do with a path.
    #[error("{call} of {} failed: {source}", path.display())]
    Path {
        /// The call, by the name of its manual page.
        call: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
}

impl WireError {
    /// Turns the error of the system call `call` into ours.
    pub(super) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { call, source: error.into() }
    }

    /// Turns the error of the system call `call` on `path` into ours.
    pub(super) fn path<E: Into<io::Error>>(call: &'static str, path: &std::path::Path) -> impl Fn(E) -> Self {
        move |error| Self::Path { call, path: path.to_owned(), source: error.into() }
    }
}
