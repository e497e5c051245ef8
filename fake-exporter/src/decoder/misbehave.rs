//! Shares that go wrong on request, so that a proxy and a provider can be tested against each kind.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use kvshare::header::Header;
use kvshare::wire::{Connection, WireError};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// What goes wrong with a share. Its answer over HTTP is a `share_id` all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Misbehaviour {
    /// Never connects to the socket.
    NeverConnects,
    /// Sends half a message, and keeps the connection open until the slot is used again.
    Stalls,
    /// Sends half a message and closes the connection.
    Dies,
    /// Announces a header of 4 GiB.
    HugeLength,
    /// Sends a header that is no JSON.
    BadJson,
    /// Claims another layout hash for the first region.
    WrongHash,
    /// Claims another digest.
    WrongDigest,
    /// Sends all descriptors but the last.
    MissingDescriptor,
    /// Sends the last descriptor twice.
    ExtraDescriptor,
    /// Sends a socket as the first descriptor.
    SocketAsRegion,
    /// Sends a first region that anybody can truncate.
    Unsealed,
    /// Claims that the last region is larger than its memory.
    TooSmall,
}

/// A connection that is kept open without sending more.
pub(super) type Hostage = UnixStream;

impl Misbehaviour {
    /// Whether nothing is sent at all.
    pub(super) fn stays_away(self) -> bool {
        self == Self::NeverConnects
    }

    /// Sends what it sends instead of `header` and `descriptors`, and returns the connection if it is to stay open.
    pub(super) fn send(
        self,
        connection: Connection,
        header: &Header,
        descriptors: &[OwnedFd],
        deadline: Instant,
    ) -> Result<Option<Hostage>, WireError> {
        let text = header.to_json();
        let regions: Vec<BorrowedFd<'_>> = descriptors.iter().map(|region| region.as_fd()).collect();
        match self {
            Self::NeverConnects => {}
            Self::Stalls => return send_bytes(connection, text.len() as u32, &text[..text.len() / 2]).map(Some),
            Self::Dies => drop(send_bytes(connection, text.len() as u32, &text[..text.len() / 2])?),
            Self::HugeLength => drop(send_bytes(connection, u32::MAX, &text)?),
            Self::BadJson => connection.send(&text[..text.len() / 2], &regions, deadline)?,
            Self::WrongHash => {
                let mut header = header.clone();
                header.regions[0].layout ^= 1;
                connection.send(&header.to_json(), &regions, deadline)?;
            }
            Self::WrongDigest => {
                let (digest, other) = (header.digest(), format!("blake3:{:064}", 0));
                let text = String::from_utf8_lossy(&text).replace(&digest, &other);
                connection.send(text.as_bytes(), &regions, deadline)?;
            }
            Self::MissingDescriptor => connection.send(&text, &regions[..regions.len() - 1], deadline)?,
            Self::ExtraDescriptor => {
                connection.send(&text, &[&regions[..], &regions[regions.len() - 1..]].concat(), deadline)?;
            }
            Self::SocketAsRegion => {
                let instead = [&[connection.as_fd()], &regions[1..]].concat();
                connection.send(&text, &instead, deadline)?;
            }
            Self::Unsealed => {
                let unsealed = unsealed(header.regions[0].size)?;
                connection.send(&text, &[&[unsealed.as_fd()], &regions[1..]].concat(), deadline)?;
            }
            Self::TooSmall => {
                let mut header = header.clone();
                let last = header.regions.len() - 1;
                header.regions[last].size += kvshare::layout::ALIGNMENT;
                connection.send(&header.to_json(), &regions, deadline)?;
            }
        }
        Ok(None)
    }
}

/// Sends an announced length and some bytes, without descriptors.
fn send_bytes(connection: Connection, announced: u32, bytes: &[u8]) -> Result<UnixStream, WireError> {
    let mut stream = UnixStream::from(OwnedFd::from(connection));
    let sent = stream.write_all(&announced.to_le_bytes()).and_then(|()| stream.write_all(bytes));
    sent.map_err(failed("send"))?;
    Ok(stream)
}

fn unsealed(size: u64) -> Result<OwnedFd, WireError> {
    let memfd = memfd_create("kvshare-unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|memfd| ftruncate(&memfd, size).map(|()| memfd));
    memfd.map_err(|errno| failed("memfd_create")(errno.into()))
}

fn failed(call: &'static str) -> impl Fn(io::Error) -> WireError {
    move |error| WireError::System { call, source: error }
}
