//! Where the decoder delivers its cache: a socket in the slot directory, one message, checked.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Cancel;
use crate::fd::{self, FdError};
use crate::header::{Header, HeaderError};
use crate::map::Unsealed;
use crate::wire::{Limits, Listener, Message, WireError};

/// Numbers the sockets of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A listening socket for one share. Its file is gone when it is dropped.
#[derive(Debug)]
pub struct ShareDesk {
    listener: Listener,
    unsealed: Unsealed,
}

/// What a decoder shared: a header that holds together and describes the descriptors that came with it.
#[derive(Debug)]
pub struct ReceivedShare {
    /// What the header says.
    pub header: Header,
    /// The header as it came, for the provider: unknown fields are its business.
    pub header_bytes: Vec<u8>,
    /// The descriptors, by the header's index; closed when this is dropped.
    pub descriptors: Vec<OwnedFd>,
}

/// Why no share arrived. No descriptor is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareFailure {
    /// The socket or the message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A descriptor.
    #[error("descriptor {index} of the share: {source}")]
    Descriptor {
        /// Which one.
        index: usize,
        /// What is wrong with it.
        source: FdError,
    },
    /// Whoever else holds a descriptor's memory could truncate it.
    #[error(
        "descriptor {index} of the share is not sealed, so that its other holders could truncate it and kill the \
         provider; seal it with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL, or accept unsealed memory"
    )]
    Unsealed {
        /// Which one.
        index: usize,
    },
    /// Cancelled, or the deadline came, before the decoder connected.
    #[error("the decoder did not connect to the socket: {reason}")]
    NobodyCame {
        /// "cancelled", or which limit passed.
        reason: &'static str,
    },
    /// Waiting failed.
    #[error("waiting for the decoder to connect failed: {0}")]
    Wait(#[source] std::io::Error),
}

impl ShareDesk {
    /// Listens at `kvshare-PID-N.sock` in `directory`, which must be ours and of mode 0700.
    ///
    /// # Errors
    /// A directory that others can reach, a path too long for a socket, or one that is taken.
    pub fn open(directory: &Path) -> Result<Self, ShareFailure> {
        // The process's id keeps two proxies apart that were pointed at one slot directory.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvshare-{}-{number}.sock", std::process::id());
        Ok(Self { listener: Listener::bind(directory.join(name))?, unsealed: Unsealed::Refuse })
    }

    /// Says whether memory that the decoder could truncate is received. It is refused unless this is called: the provider
    /// that [`run`](crate::provider::run) makes would refuse it, when it is too late for the file route, and another may
    /// be killed by it.
    pub fn unsealed(self, unsealed: Unsealed) -> Self {
        Self { unsealed, ..self }
    }

    /// Where the decoder is to connect.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Waits for the decoder's message and checks it. Ends early when `cancel` says so before the decoder connected:
    /// when its answer was a refusal, say.
    ///
    /// # Errors
    /// [`ShareFailure`] says what was wrong; every descriptor that came is closed.
    pub fn receive(self, deadline: Instant, cancel: &Cancel) -> Result<ReceivedShare, ShareFailure> {
        self.wait(deadline, cancel)?;
        let message = self.listener.accept(deadline)?.receive(&Limits::default(), deadline)?;
        ReceivedShare::check(message, self.unsealed)
    }

    fn wait(&self, deadline: Instant, cancel: &Cancel) -> Result<(), ShareFailure> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut sources =
                [self.listener.as_fd(), cancel.as_fd()].map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
            match poll(&mut sources, timeout.as_ref()) {
                Ok(0) => return Err(ShareFailure::NobodyCame { reason: "the time limit passed" }),
                // One that came is received even if it was cancelled since: the decoder has leased the cells.
                Ok(_) if !sources[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(ShareFailure::NobodyCame { reason: "cancelled" }),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ShareFailure::Wait(errno.into())),
            }
        }
    }
}

impl ReceivedShare {
    /// Checks a message's header, and that it and the descriptors belong together.
    ///
    /// # Errors
    /// [`ShareFailure::Header`], [`ShareFailure::Unsealed`] or [`ShareFailure::Descriptor`].
    pub fn check(message: Message, unsealed: Unsealed) -> Result<Self, ShareFailure> {
        let Message { header: header_bytes, descriptors, unsealed: truncatable } = message;
        let header = Header::parse(&header_bytes)?;
        let size =
            |(index, descriptor)| fd::size(descriptor).map_err(|source| ShareFailure::Descriptor { index, source });
        let sizes = descriptors.iter().enumerate().map(size).collect::<Result<Vec<_>, _>>()?;
        header.check_descriptors(&sizes)?;
        if let (Unsealed::Refuse, Some(&index)) = (unsealed, truncatable.first()) {
            return Err(ShareFailure::Unsealed { index });
        }
        Ok(Self { header, header_bytes, descriptors })
    }
}
