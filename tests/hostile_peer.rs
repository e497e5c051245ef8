//! A peer at the other end of a unix socket that does what a script says and nothing of what the protocol asks.
//!
//! A script is a list of [`Act`]s. Each is one thing that a program can do to a socket, so that a test reads as the story of
//! what its peer did.

use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Between two looks for a file.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One thing that a peer does.
#[derive(Clone, Copy, Debug)]
pub enum Act<'a> {
    /// Sends these bytes with one call.
    Send(&'a [u8]),
    /// Sends these bytes with one call, and descriptors that ride on the first of them: at most 253.
    SendWith(&'a [u8], &'a [BorrowedFd<'a>]),
    /// Takes this many bytes with plain reads, as one does who never heard of descriptors.
    Read(usize),
    /// Says that nothing more will be sent, and goes on listening.
    StopSending,
    /// Leaves a file, for a test that waits for it.
    Mark(&'a Path),
    /// Does nothing until there is a file.
    WaitFor(&'a Path),
    /// Closes the connection. Without this the connection is still open after the script.
    HangUp,
}

/// Does what `script` says, and returns the connection if nobody closed it.
///
/// # Errors
/// The other side is gone, or the system refuses what a script asks for.
pub fn perform(socket: UnixStream, script: &[Act<'_>]) -> io::Result<Option<UnixStream>> {
    for act in script {
        match *act {
            Act::Send(bytes) => send(&socket, bytes, &[])?,
            Act::SendWith(bytes, descriptors) => send(&socket, bytes, descriptors)?,
            Act::Read(count) => (&socket).read_exact(&mut vec![0; count])?,
            Act::StopSending => socket.shutdown(Shutdown::Write)?,
            Act::Mark(path) => std::fs::write(path, "")?,
            Act::WaitFor(path) => {
                while !path.exists() {
                    std::thread::sleep(LOOK_EVERY);
                }
            }
            Act::HangUp => return Ok(None),
        }
    }
    Ok(Some(socket))
}

fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other(format!("{} descriptors in one call; the kernel takes 253", descriptors.len())));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other(format!("{sent} bytes of {} fitted", bytes.len()))) }
}
