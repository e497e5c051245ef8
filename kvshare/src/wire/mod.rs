//! One message over a unix socket: a header with the descriptors that it talks about.
//!
//! A message is a 4-byte little-endian length and that many bytes of header. Its descriptors ride on the first byte as
//! `SCM_RIGHTS`; what is over [`DESCRIPTORS_PER_SEND`] rides in further batches, on a byte each. [`send`] and [`receive`]
//! work on any connected stream socket, blocking or not; [`Listener`] and [`connect`] make one in a directory that is
//! only ours. What the header says is not looked at here, and what a descriptor is only as far as to refuse what can
//! never be memory.
//!
//! ```
//! use kvshare::wire::{Limits, receive, send};
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//! use std::time::{Duration, Instant};
//!
//! let (ours, theirs) = UnixStream::pair()?;
//! let file = std::fs::File::open("/dev/zero")?;
//! let deadline = Instant::now() + Duration::from_secs(10);
//!
//! send(&ours, br#"{"version":1}"#, &[file.as_fd()], deadline)?;
//! let message = receive(&theirs, &Limits::default(), deadline)?;
//! assert_eq!(message.header, br#"{"version":1}"#);
//! assert_eq!(message.descriptors.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connect;
mod error;
mod listen;
mod packet;
mod place;
mod receive;
mod sealed;
mod send;

pub use connect::{Connection, connect};
pub use error::WireError;
pub use listen::Listener;
pub use packet::PacketError;
pub(crate) use packet::{PACKET_BYTES, Packets};
pub use place::{MAX_PATH_BYTES, check_inside};
pub use receive::{Limits, Message, receive};
pub use sealed::SealedError;
pub(crate) use sealed::{read_sealed, seal};
pub use send::send;

/// How many descriptors one send can carry: `SCM_MAX_FD` of the kernel's `include/net/scm.h`
/// ([unix(7)](https://man7.org/linux/man-pages/man7/unix.7.html)).
pub const DESCRIPTORS_PER_SEND: usize = 253;

/// The bytes that the header's length takes in front of it.
const LENGTH_BYTES: usize = 4;
