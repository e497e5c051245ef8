//! Receiving one message, from a peer that may do anything.

use super::{DESCRIPTORS_PER_SEND, LENGTH_BYTES, WireError};
use crate::fd::{DescriptorLimit, Truncation, Waited, check_region, ready_unless};
use crate::header;
use rustix::cmsg_space;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// The control bytes that the kernel can deliver at once: the descriptors of one send, since it never joins two sends
/// that carry some (the kernel's net/unix/af_unix.c, unix_stream_read_generic), and what a socket option can add, of
/// which a security label (`SO_PASSSEC`) is the longest and under 256 bytes in practice.
pub(super) const CONTROL_BYTES: usize = cmsg_space!(ScmRights(DESCRIPTORS_PER_SEND), ScmCredentials(1)) + 512;

/// How much memory the header gets ahead of the bytes that have arrived.
const STEP: usize = 64 << 10;

/// What a peer may send at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of a header: [`header::MAX_BYTES`] by default.
    pub max_header: usize,
    /// The descriptors of a message: [`header::MAX_REGIONS`] by default, since each must be named by a region.
    pub max_descriptors: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_header: header::MAX_BYTES, max_descriptors: header::MAX_REGIONS }
    }
}

/// A message as it arrived.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The header's bytes, untouched.
    pub header: Vec<u8>,
    /// The descriptors, in the order in which they were sent. Each closes on exec.
    pub descriptors: Vec<OwnedFd>,
    /// The places of those descriptors whose memory the sender, or whoever else holds it, can truncate: then an access to
    /// it can kill a process that has it mapped. Empty for a sender that seals its memory.
    pub unsealed: Vec<usize>,
}

/// Receives one message and not a byte more.
///
/// `socket` is a connected unix stream socket, blocking or not. Memory grows with the bytes that have arrived, never with
/// the length that a peer announces. On an error every descriptor that arrived is closed, and the connection must be
/// closed, too: where in a message it stands is unknown.
///
/// # Errors
///
/// Each way in which a peer can fail has its own [`WireError`]: closed, stalled, empty, too long, too many descriptors,
/// descriptors lost on arrival, or one that can be no region.
#[doc(alias = "recvmsg")]
#[doc(alias = "SCM_RIGHTS")]
pub fn receive(socket: impl AsFd, limits: &Limits, deadline: Instant) -> Result<Message, WireError> {
    receive_unless(socket.as_fd(), limits, deadline, None)
}

/// The same, given up as soon as the rest of the message must be waited for and `stop` is readable.
pub(super) fn receive_unless(
    socket: BorrowedFd<'_>,
    limits: &Limits,
    deadline: Instant,
    stop: Option<BorrowedFd<'_>>,
) -> Result<Message, WireError> {
    let mut arrival = Arrival {
        socket,
        limits,
        deadline,
        stop,
        done: 0,
        expected: LENGTH_BYTES,
        descriptors: Vec::new(),
        lost: None,
    };
    let header = arrival.header();
    if let Some(lost) = arrival.lost {
        let announced = header.ok().and_then(|header| announced(&header));
        return Err(WireError::DescriptorsLost { announced, received: lost, limit: DescriptorLimit::current().soft });
    }
    let header = header?;
    let mut unsealed = Vec::new();
    for (index, descriptor) in arrival.descriptors.iter().enumerate() {
        match check_region(descriptor).map_err(|source| WireError::NotARegion { index, source })? {
            Truncation::Impossible => {}
            Truncation::Possible => unsealed.push(index),
        }
    }
    Ok(Message { header, descriptors: arrival.descriptors, unsealed })
}

/// One message on its way in.
struct Arrival<'a> {
    socket: BorrowedFd<'a>,
    limits: &'a Limits,
    deadline: Instant,
    stop: Option<BorrowedFd<'a>>,
    done: usize,
    expected: usize,
    descriptors: Vec<OwnedFd>,
    /// Once the kernel said that it dropped descriptors: how many came through. They are closed at once, and only the
    /// text is still read, for the error to say how many there should be.
    lost: Option<usize>,
}

impl Arrival<'_> {
    fn header(&mut self) -> Result<Vec<u8>, WireError> {
        let mut length = [0; LENGTH_BYTES];
        while self.done < LENGTH_BYTES {
            self.read_some(&mut length[self.done..])?;
        }
        let announced = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if announced == 0 {
            return Err(WireError::EmptyHeader);
        }
        if announced > self.limits.max_header {
            return Err(WireError::HeaderTooLong { announced, limit: self.limits.max_header });
        }
        self.expected = LENGTH_BYTES.saturating_add(announced);

        let mut header = Vec::new();
        let mut filled = 0;
        while filled < announced {
            if filled == header.len() {
                header.resize(announced.min(filled + STEP), 0);
            }
            filled += self.read_some(&mut header[filled..])?;
        }
        Ok(header)
    }

    /// Reads at least one byte into `buffer`, which is never longer than what is left of the message's part, and takes
    /// the descriptors that come with it.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, WireError> {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
                Ok(received) => {
                    self.take(&mut control, received.flags.contains(ReturnFlags::CTRUNC))?;
                    if received.bytes == 0 {
                        return Err(self.closed());
                    }
                    self.done += received.bytes;
                    return Ok(received.bytes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait()?,
                Err(Errno::CONNRESET) => return Err(self.closed()),
                Err(errno) => return Err(WireError::system("recvmsg")(errno)),
            }
        }
    }

    fn wait(&self) -> Result<(), WireError> {
        let &Self { socket, deadline, stop, done, expected, .. } = self;
        match ready_unless(socket, PollFlags::IN, deadline, stop).map_err(WireError::system("poll"))? {
            Waited::Ready => Ok(()),
            Waited::Late => Err(WireError::Stalled { done, expected }),
            Waited::Stopped => Err(WireError::Stopped { done, expected }),
        }
    }

    fn take(&mut self, control: &mut RecvAncillaryBuffer<'_>, truncated: bool) -> Result<(), WireError> {
        self.descriptors.extend(descriptors_in(control));
        if truncated || self.lost.is_some() {
            *self.lost.get_or_insert(0) += self.descriptors.drain(..).count();
        }
        let received = self.lost.unwrap_or(self.descriptors.len());
        if received > self.limits.max_descriptors {
            return Err(WireError::TooManyDescriptors { received, limit: self.limits.max_descriptors });
        }
        Ok(())
    }

    fn closed(&self) -> WireError {
        match self.done {
            0 => WireError::ClosedBeforeMessage,
            done => WireError::ClosedWithinMessage { done, expected: self.expected },
        }
    }
}

/// The descriptors that came with a receipt.
pub(super) fn descriptors_in(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut all = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            all.extend(descriptors);
        }
    }
    all
}

/// How many descriptors a header's regions name, if it can be read: only for an error's text, so nothing else of the
/// header is checked.
fn announced(header: &[u8]) -> Option<usize> {
    #[derive(Deserialize)]
    struct Header {
        regions: Vec<Region>,
    }
    #[derive(Deserialize)]
    struct Region {
        fd: u64,
    }
    let header: Header = serde_json::from_slice(header).ok()?;
    Some(header.regions.iter().map(|region| region.fd).collect::<BTreeSet<_>>().len())
}
