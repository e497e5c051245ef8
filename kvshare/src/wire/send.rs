//! Sending one message.

use super::{DESCRIPTORS_PER_SEND, LENGTH_BYTES, WireError};
use crate::fd::ready;
use rustix::cmsg_space;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Sends one message: `header`, and `descriptors` in their order.
///
/// `socket` is a connected unix stream socket, blocking or not. On an error the peer may have received a part of the
/// message, so the connection must be closed.
///
/// # Errors
///
/// [`WireError::EmptyHeader`], [`WireError::HeaderTooLong`] (over 4 GiB) and [`WireError::TooFewBytes`] before anything is
/// sent; [`WireError::TooManyInFlight`], [`WireError::ClosedWithinMessage`], [`WireError::Stalled`] and
/// [`WireError::System`] from the kernel.
#[doc(alias = "sendmsg")]
#[doc(alias = "SCM_RIGHTS")]
pub fn send(
    socket: impl AsFd,
    header: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(), WireError> {
    if header.is_empty() {
        return Err(WireError::EmptyHeader);
    }
    let Ok(length) = u32::try_from(header.len()) else {
        return Err(WireError::HeaderTooLong { announced: header.len(), limit: u32::MAX as usize });
    };
    let total = LENGTH_BYTES + header.len();
    let mut batches = descriptors.chunks(DESCRIPTORS_PER_SEND).peekable();
    if batches.len() > total {
        return Err(WireError::TooFewBytes { descriptors: descriptors.len(), bytes: total });
    }

    let length = length.to_le_bytes();
    let mut done = 0;
    while done < total {
        let batch = batches.next().unwrap_or_default();
        // Every batch but the last rides on a single byte, so that the next one has a byte, too. The last takes the
        // rest; should the kernel take less, it has the descriptors all the same.
        let end = if batches.peek().is_some() { done + 1 } else { total };
        let bytes = [
            part(&length, done, end),
            part(header, done.saturating_sub(LENGTH_BYTES), end.saturating_sub(LENGTH_BYTES)),
        ];
        done += send_some(socket.as_fd(), &bytes, batch, deadline).map_err(|failure| match failure {
            Failure::Deadline => WireError::Stalled { done, expected: total },
            Failure::Call(Errno::PIPE | Errno::CONNRESET) => WireError::ClosedWithinMessage { done, expected: total },
            Failure::Call(Errno::TOOMANYREFS) => WireError::TooManyInFlight { descriptors: descriptors.len() },
            Failure::Call(errno) => WireError::system("sendmsg")(errno),
        })?;
    }
    Ok(())
}

/// Why one call to the kernel came to nothing.
pub(super) enum Failure {
    Deadline,
    Call(Errno),
}

/// Sends at least one of `bytes`, with all of `descriptors` on the first, and returns how many it sent.
pub(super) fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<usize, Failure> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_PER_SEND))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        // Never for a batch of `send`'s; and what the kernel answers to a larger one.
        return Err(Failure::Call(Errno::INVAL));
    }
    loop {
        match sendmsg(socket, bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => return Ok(sent),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !ready(socket, PollFlags::OUT, deadline).map_err(Failure::Call)? {
                    return Err(Failure::Deadline);
                }
            }
            Err(errno) => return Err(Failure::Call(errno)),
        }
    }
}

/// The bytes of `all` from `start` to `end`, as far as it has them.
fn part(all: &[u8], start: usize, end: usize) -> IoSlice<'_> {
    IoSlice::new(all.get(start..end.min(all.len())).unwrap_or_default())
}
