//! Small messages over a socket that keeps them apart, `SOCK_SEQPACKET`
//! ([unix(7)](https://man7.org/linux/man-pages/man7/unix.7.html)): what a resident provider and its proxy say to each other.

use super::receive::{CONTROL_BYTES, descriptors_in};
use super::send::{Failure, send_some};
use crate::fd::{Waited, ready_unless};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// The longest packet. What can be longer crosses as a sealed memfd.
pub(crate) const PACKET_BYTES: usize = 4096;

/// Why a packet did not cross. All descriptors that arrived are closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The other side is gone, or has hung up.
    #[error("the other side has closed the connection; its own log may say why")]
    Closed,
    /// The deadline passed.
    #[error("the other side said nothing by the deadline")]
    Late,
    /// Nobody wants the packet any more.
    #[error("the exchange was called off")]
    Stopped,
    /// A packet is longer than any of this protocol.
    #[error("a packet has more than {limit} bytes; is the other side speaking this protocol?")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The kernel dropped descriptors for want of room.
    #[error(
        "of a packet's descriptors only {received} could be taken; raise the limit of open descriptors (ulimit -n)"
    )]
    DescriptorsLost {
        /// How many came through.
        received: usize,
    },
    /// The system.
    #[error("{call} failed: {errno}")]
    System {
        /// The system call's name.
        call: &'static str,
        /// What it answered.
        errno: Errno,
    },
}

impl PacketError {
    fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}

/// A packet as it arrived.
#[derive(Debug)]
pub(crate) struct Packet {
    pub text: Vec<u8>,
    /// Each closes on exec.
    pub descriptors: Vec<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Packets {
    socket: OwnedFd,
}

impl Packets {
    /// Both ends of a new connection. They close on exec.
    pub fn pair() -> Result<(Self, Self), PacketError> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(PacketError::system("socketpair"))?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// The end that is `socket`.
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends one packet. It crosses whole or not at all.
    pub fn send(&self, text: &[u8], descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), PacketError> {
        if text.len() > PACKET_BYTES {
            return Err(PacketError::TooLong { limit: PACKET_BYTES });
        }
        match send_some(self.socket.as_fd(), &[IoSlice::new(text)], descriptors, deadline) {
            Ok(_) => Ok(()),
            Err(Failure::Deadline) => Err(PacketError::Late),
            Err(Failure::Call(Errno::PIPE | Errno::CONNRESET)) => Err(PacketError::Closed),
            Err(Failure::Call(errno)) => Err(PacketError::System { call: "sendmsg", errno }),
        }
    }

    /// Receives one packet.
    pub fn receive(&self, deadline: Instant, stop: Option<BorrowedFd<'_>>) -> Result<Packet, PacketError> {
        loop {
            match self.take()? {
                Some(packet) => return Ok(packet),
                None => self.wait(deadline, stop)?,
            }
        }
    }

    /// The packet that has arrived, if one has.
    pub fn take(&self) -> Result<Option<Packet>, PacketError> {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        // One byte more than a packet may have shows that it has more.
        let mut text = vec![0; PACKET_BYTES + 1];
        let received = loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut control, flags) {
                Ok(received) => break (received.bytes, received.flags, descriptors_in(&mut control)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(PacketError::Closed),
                Err(errno) => return Err(PacketError::System { call: "recvmsg", errno }),
            }
        };
        let (bytes, flags, descriptors) = received;
        if flags.contains(ReturnFlags::CTRUNC) {
            return Err(PacketError::DescriptorsLost { received: descriptors.len() });
        }
        if bytes > PACKET_BYTES {
            return Err(PacketError::TooLong { limit: PACKET_BYTES });
        }
        // An empty packet looks the same, and nobody sends one.
        if bytes == 0 {
            return Err(PacketError::Closed);
        }
        text.truncate(bytes);
        Ok(Some(Packet { text, descriptors }))
    }

    fn wait(&self, deadline: Instant, stop: Option<BorrowedFd<'_>>) -> Result<(), PacketError> {
        match ready_unless(self.socket.as_fd(), PollFlags::IN, deadline, stop).map_err(PacketError::system("poll"))? {
            Waited::Ready => Ok(()),
            Waited::Late => Err(PacketError::Late),
            Waited::Stopped => Err(PacketError::Stopped),
        }
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn packets_arrive_one_by_one_with_their_own_descriptors() {
        let (one, other) = Packets::pair().unwrap();
        let file = std::fs::File::open("/dev/zero").unwrap();
        one.send(b"first", &[file.as_fd(); 253], soon()).unwrap();
        one.send(&[b'x'; PACKET_BYTES], &[], soon()).unwrap();
        let first = other.receive(soon(), None).unwrap();
        assert_eq!((&first.text[..], first.descriptors.len()), (&b"first"[..], 253));
        assert_eq!(other.receive(soon(), None).unwrap().text.len(), PACKET_BYTES);
        assert_eq!(other.take().unwrap().map(|packet| packet.text), None);
    }

    #[test]
    fn what_does_not_cross_has_an_error_of_its_own() {
        let (one, other) = Packets::pair().unwrap();
        assert_eq!(one.send(&[b'x'; PACKET_BYTES + 1], &[], soon()), Err(PacketError::TooLong { limit: PACKET_BYTES }));
        assert_eq!(other.receive(Instant::now(), None).unwrap_err(), PacketError::Late);
        let stop = crate::handoff::Cancel::new().unwrap();
        stop.cancel();
        assert_eq!(other.receive(soon(), Some(stop.as_fd())).unwrap_err(), PacketError::Stopped);
        rustix::net::send(&one, &[b'x'; PACKET_BYTES + 2], SendFlags::empty()).unwrap();
        assert_eq!(other.receive(soon(), None).unwrap_err(), PacketError::TooLong { limit: PACKET_BYTES });
        drop(one);
        assert_eq!(other.receive(soon(), None).unwrap_err(), PacketError::Closed);
        assert_eq!(other.send(b"x", &[], soon()), Err(PacketError::Closed));
    }
}
