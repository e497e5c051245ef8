//! The handshake of the shared route: the decoder is asked for its cache, and delivers it at a socket.

use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use kvshare::handoff::{ReceivedShare, ShareDesk, ShareFailure};
use tokio::time::timeout;

use super::{DecoderClient, DecoderError, cancellable};

/// How long the decoder may take to send its message once it has connected, and to answer once it has sent.
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);

/// How long it may take to deliver once it has answered: longer than a message that stalls, which has its own error.
const DELIVERY_LIMIT: Duration = Duration::from_secs(6);

/// The decoder's cache, lent to one provider.
#[derive(Debug)]
pub struct Lease {
    /// Its header and descriptors.
    pub share: ReceivedShare,
    /// The number that lets its cells be adopted.
    pub share_id: u64,
}

/// Why no share arrived. No provider was started yet, so another route can be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The decoder refused, or did not answer.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The socket or the message.
    #[error(transparent)]
    Share(#[from] ShareFailure),
    /// The decoder neither connected nor answered.
    #[error("the decoder did not answer action=share within {} s; something else may have its slot", limit.as_secs())]
    TooLate {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The decoder answered, and no message came.
    #[error("the decoder answered action=share and delivered no cache to the socket within {} s", DELIVERY_LIMIT.as_secs())]
    NothingCame,
    /// The decoder sent its cache and did not answer.
    #[error("the decoder sent its cache and did not answer action=share within {} s", MESSAGE_LIMIT.as_secs())]
    NoAnswer,
    /// The system.
    #[error("the share could not be received: {0}")]
    System(#[from] std::io::Error),
}

impl LeaseError {
    /// Whether it would be the same the next time.
    pub fn is_for_good(&self) -> bool {
        matches!(self, Self::Decoder(error) if error.never_shares())
    }
}

/// Asks `decoder` for a share and receives it in `directory`, both at once: a decoder answers only after it has sent. It
/// may take `limit` to begin, since something else may have its slot.
///
/// # Errors
/// [`LeaseError`]; every descriptor that came is closed.
pub async fn lease(decoder: &DecoderClient, directory: &Path, limit: Duration) -> Result<Lease, LeaseError> {
    let desk = ShareDesk::open(directory)?.known(decoder.known_header());
    let path = desk.path().to_string_lossy().into_owned();
    // The answer is waited for until `limit`, and the delivery from then on; a wait of the desk's own would outrun both.
    let connect_by = Instant::now() + limit + 2 * DELIVERY_LIMIT;
    let mut delivery = pin!(cancellable(move |cancel| desk.receive(connect_by, MESSAGE_LIMIT, cancel)));
    let mut answer = pin!(timeout(limit, decoder.share(&path)));
    tokio::select! {
        answer = &mut answer => {
            // A refusal is the reason; that nobody connected then is its consequence.
            let share_id = answer.map_err(|_| LeaseError::TooLate { limit })??;
            let delivered = timeout(DELIVERY_LIMIT, delivery).await.map_err(|_| LeaseError::NothingCame)?;
            Ok(Lease { share: delivered??, share_id })
        }
        delivered = &mut delivery => match (delivered?, timeout(MESSAGE_LIMIT, answer).await) {
            (Ok(share), Ok(Ok(Ok(share_id)))) => Ok(Lease { share, share_id }),
            // So it is here: a decoder that dies breaks off its message, too.
            (_, Ok(Ok(Err(refusal)))) => Err(refusal.into()),
            (Err(failure), _) => Err(failure.into()),
            (Ok(_), _) => Err(LeaseError::NoAnswer),
        },
    }
}
