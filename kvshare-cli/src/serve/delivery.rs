//! The handshake of the shared route: the decoder is asked for its cache, and delivers it at a socket.

use std::ops::Deref;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvshare::handoff::{Cancel, ReceivedShare, ShareFailure};
use kvshare::map::Unsealed;
use kvshare::wire::{Limits, Listener, WireError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::handoff::never_shares;
use super::metrics::Metrics;
use crate::cycle::{DecoderClient, DecoderError};

/// How long the decoder may take to connect once it has answered, and to send its message once it has connected. It may
/// take much longer to answer: another request may have its slot.
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);

/// Numbers the sockets of this process.
static NEXT_SOCKET: AtomicU64 = AtomicU64::new(1);

/// Why no share arrived. No provider was started yet, so the file route can be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The decoder refused, or did not answer.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The socket or the message.
    #[error(transparent)]
    Share(#[from] ShareFailure),
    /// The decoder answered, and nobody connected.
    #[error("the decoder answered action=share and did not connect to the socket within {} s", MESSAGE_LIMIT.as_secs())]
    NobodyCame,
    /// The decoder sent its cache and did not answer.
    #[error("the decoder sent its cache and did not answer action=share within {} s", MESSAGE_LIMIT.as_secs())]
    NoAnswer,
    /// The system.
    #[error("the share could not be received: {0}")]
    System(#[from] std::io::Error),
}

impl HandshakeError {
    /// Whether it would be the same the next time.
    pub fn is_for_good(&self) -> bool {
        matches!(self, Self::Decoder(error) if never_shares(error))
    }
}

impl From<WireError> for HandshakeError {
    fn from(error: WireError) -> Self {
        ShareFailure::from(error).into()
    }
}

/// A share whose descriptors are counted as they come and go.
#[derive(Debug)]
pub struct CountedShare {
    share: ReceivedShare,
    metrics: Arc<Metrics>,
}

impl CountedShare {
    fn new(share: ReceivedShare, metrics: Arc<Metrics>) -> Self {
        metrics.descriptors_received.inc_by(share.descriptors.len() as u64);
        Self { share, metrics }
    }
}

impl Deref for CountedShare {
    type Target = ReceivedShare;

    fn deref(&self) -> &ReceivedShare {
        &self.share
    }
}

impl Drop for CountedShare {
    fn drop(&mut self) {
        self.metrics.descriptors_closed.inc_by(self.share.descriptors.len() as u64);
    }
}

/// Ends a wait for a delivery, also when the request that wanted it is dropped.
struct EndOfWait(Cancel);

impl Drop for EndOfWait {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Asks for a share and receives it, both at once: a decoder answers only after it has sent.
///
/// # Errors
/// [`HandshakeError`]; every descriptor that came is closed.
pub async fn lease(
    decoder: &DecoderClient,
    directory: &Path,
    metrics: &Arc<Metrics>,
) -> Result<(CountedShare, u64), HandshakeError> {
    // The process's id keeps two proxies apart that were pointed at one slot directory.
    let number = NEXT_SOCKET.fetch_add(1, Ordering::Relaxed);
    let listener = Listener::bind(directory.join(format!("kvshare-{}-{number}.sock", std::process::id())))?;
    let path = listener.path().to_string_lossy().into_owned();
    let end = EndOfWait(Cancel::new()?);
    let (cancel, counting) = (end.0.clone(), Arc::clone(metrics));
    let deliver = move || deliver(&listener, &cancel, counting);
    let mut delivery = tokio::task::spawn_blocking(deliver);
    let mut answer = pin!(decoder.share(&path));
    tokio::select! {
        answer = &mut answer => {
            let share_id = match answer {
                Ok(share_id) => share_id,
                // A refusal is the reason; that nobody connected then is its consequence.
                Err(refusal) => {
                    drop(end);
                    let _ = delivery.await;
                    return Err(refusal.into());
                }
            };
            let delivered = match tokio::time::timeout(MESSAGE_LIMIT, &mut delivery).await {
                Ok(delivered) => delivered,
                Err(_) => {
                    drop(end);
                    delivery.await
                }
            };
            Ok((arrived(delivered)?, share_id))
        }
        delivered = &mut delivery => {
            let share = arrived(delivered)?;
            let answer = tokio::time::timeout(MESSAGE_LIMIT, answer).await;
            Ok((share, answer.map_err(|_| HandshakeError::NoAnswer)??))
        }
    }
}

type Delivered = Result<Option<CountedShare>, ShareFailure>;

fn arrived(delivered: Result<Delivered, tokio::task::JoinError>) -> Result<CountedShare, HandshakeError> {
    delivered.map_err(std::io::Error::other)??.ok_or(HandshakeError::NobodyCame)
}

/// Waits for the decoder's message and checks it; `None` where nobody had connected when `cancel` came.
fn deliver(listener: &Listener, cancel: &Cancel, metrics: Arc<Metrics>) -> Delivered {
    loop {
        let mut sources =
            [listener.as_fd(), cancel.as_fd()].map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        match poll(&mut sources, None) {
            // One that came is received even if it was cancelled since: the decoder has leased the cells.
            Ok(_) if !sources[0].revents().is_empty() => break,
            Ok(_) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ShareFailure::Wait(errno.into())),
        }
    }
    let deadline = Instant::now() + MESSAGE_LIMIT;
    let message = listener.accept(deadline)?.receive(&Limits::default(), deadline)?;
    let share = ReceivedShare::check(message, Unsealed::Refuse)?;
    Ok(Some(CountedShare::new(share, metrics)))
}
