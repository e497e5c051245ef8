//! Where the decoder delivers its cache: a socket in the slot directory, one message, checked.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::{Cancel, KnownHeader};
use crate::fd::{self, FdError, Waited, ready_unless};
use crate::header::{Header, HeaderError};
use crate::map::Unsealed;
use crate::wire::{Connection, Limits, Listener, Message, WireError};

/// Numbers the sockets of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A listening socket for one share. Its file is gone when it is dropped.
#[derive(Debug)]
pub struct ShareDesk {
    listener: Listener,
    unsealed: Unsealed,
    known: KnownHeader,
}

/// What a decoder shared: a header that holds together and describes the descriptors that came with it.
#[derive(Debug)]
pub struct ReceivedShare {
    /// What the header says.
    pub header: Arc<Header>,
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
        Ok(Self {
            listener: Listener::bind(directory.join(name))?,
            unsealed: Unsealed::Refuse,
            known: KnownHeader::default(),
        })
    }

    /// Says whether memory that the decoder could truncate is received. It is refused unless this is called: the provider
    /// that [`run`](crate::provider::run) makes would refuse it, when it is too late for the file route, and another may
    /// be killed by it.
    pub fn unsealed(self, unsealed: Unsealed) -> Self {
        Self { unsealed, ..self }
    }

    /// Gives it the header that the same decoder sent before. Without this every header is read.
    pub fn known(self, known: &KnownHeader) -> Self {
        Self { known: known.clone(), ..self }
    }

    /// Where the decoder is to connect.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Waits for the decoder until `connect_by`, then for its message within `message_limit`, and checks that.
    ///
    /// The two limits are apart because a decoder may have to wait for its slot before it connects, and has nothing to
    /// wait for once it has. `cancel` ends either wait: the decoder's answer was a refusal, say, or nobody wants the share
    /// any more. A message that has arrived whole by then is received all the same, since the decoder has leased its cells.
    ///
    /// # Errors
    /// [`ShareFailure`] says what was wrong; every descriptor that came is closed.
    pub fn receive(
        self,
        connect_by: Instant,
        message_limit: Duration,
        cancel: &Cancel,
    ) -> Result<ReceivedShare, ShareFailure> {
        let connection = self.accept(connect_by, cancel)?;
        let deadline = Instant::now() + message_limit;
        let message = connection.receive_unless(&Limits::default(), deadline, cancel.as_fd())?;
        ReceivedShare::check(message, self.unsealed, &self.known)
    }

    fn accept(&self, deadline: Instant, cancel: &Cancel) -> Result<Connection, ShareFailure> {
        loop {
            let waited = ready_unless(self.listener.as_fd(), PollFlags::IN, deadline, Some(cancel.as_fd()));
            match waited.map_err(|errno| ShareFailure::Wait(errno.into()))? {
                Waited::Late => return Err(ShareFailure::NobodyCame { reason: "the time limit passed" }),
                Waited::Stopped => return Err(ShareFailure::NobodyCame { reason: "cancelled" }),
                Waited::Ready => match self.listener.accept(Instant::now()) {
                    // Whoever had connected is gone again.
                    Err(WireError::NoConnection { .. }) => {}
                    accepted => return Ok(accepted?),
                },
            }
        }
    }
}

impl ReceivedShare {
    /// Checks a message's header, unless it is `known`, and that it and the descriptors belong together.
    ///
    /// # Errors
    /// [`ShareFailure::Header`], [`ShareFailure::Unsealed`] or [`ShareFailure::Descriptor`].
    pub fn check(message: Message, unsealed: Unsealed, known: &KnownHeader) -> Result<Self, ShareFailure> {
        let Message { header: header_bytes, descriptors, unsealed: truncatable } = message;
        let header = known.parse(&header_bytes)?;
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
