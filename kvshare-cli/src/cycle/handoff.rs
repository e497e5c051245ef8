//! A prompt's cache from the provider to the decoder, by either route.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvshare::handoff::{HandoffFile, KnownCache, ProviderFailure, ProviderProgram, ProviderReport};

use super::{DecoderClient, DecoderError, Lease, LeaseError, Place, RestoreError, cancellable, lease, restore};

/// How long the decoder may take to begin sharing.
const SHARE_LIMIT: Duration = Duration::from_secs(30);

/// Why a handoff did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CycleError {
    /// A call to the decoder.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The decoder's message.
    #[error(transparent)]
    Lease(LeaseError),
    /// The provider.
    #[error(transparent)]
    Provider(#[from] ProviderFailure),
    /// The provider's state file, or the decoder reading it.
    #[error(transparent)]
    Restore(RestoreError),
    /// The system.
    #[error("{0}")]
    System(#[from] io::Error),
}

// A call to the decoder is one whichever step made it.

impl From<LeaseError> for CycleError {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Decoder(error) => Self::Decoder(error),
            error => Self::Lease(error),
        }
    }
}

impl From<RestoreError> for CycleError {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Decoder(error) => Self::Decoder(error),
            error => Self::Restore(error),
        }
    }
}

/// A handoff through the decoder's memory.
#[derive(Debug)]
pub struct SharedHandoff {
    /// From asking for the share to holding its descriptors.
    pub share: Duration,
    /// From starting the provider until it was gone.
    pub provider: ProviderReport,
    /// The decoder taking the cells.
    pub adopt: Duration,
    /// The bytes of the message: the only ones that crossed beside the descriptors.
    pub message_bytes: u64,
    /// The bytes of the regions handed over.
    pub region_bytes: u64,
    /// How many descriptors crossed.
    pub descriptors: usize,
}

/// A handoff through a state file.
#[derive(Debug)]
pub struct FileHandoff {
    /// From starting the provider until it was gone.
    pub provider: ProviderReport,
    /// Checking the file and the decoder reading it.
    pub restore: Duration,
    /// The bytes of the file.
    pub file_bytes: u64,
}

/// A decoder, a provider, and the directory where they meet.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// The decoder.
    pub decoder: DecoderClient,
    /// The provider.
    pub provider: ProviderProgram,
    /// The decoder's slot directory.
    pub slot_directory: PathBuf,
}

impl Cycle {
    /// Hands the cache of `tokens` over through the decoder's memory. `log` gets the provider's words.
    ///
    /// # Errors
    /// [`CycleError`]; the slot holds nothing new then.
    pub async fn share(&self, tokens: &[i32], log: fn(&str)) -> Result<SharedHandoff, CycleError> {
        let asked = Instant::now();
        let Lease { share, share_id } = lease(&self.decoder, &self.slot_directory, SHARE_LIMIT).await?;
        let share_time = asked.elapsed();
        let message_bytes = share.header_bytes.len() as u64 + 4;
        let (region_bytes, descriptors) = (share.header.bytes(), share.descriptors.len());

        let provider = self.provide(tokens.into(), Place::Shared(share), log).await?;
        let adopting = Instant::now();
        self.decoder.adopt(tokens, share_id).await?;
        let adopt = adopting.elapsed();
        Ok(SharedHandoff { share: share_time, provider, adopt, message_bytes, region_bytes, descriptors })
    }

    /// Hands the cache of `tokens` over through a state file, which is checked before the decoder sees it.
    ///
    /// # Errors
    /// [`CycleError`]; the slot holds nothing new then, or nothing.
    pub async fn restore(&self, tokens: &[i32], log: fn(&str)) -> Result<FileHandoff, CycleError> {
        let tokens: Arc<[i32]> = tokens.into();
        let file = Arc::new(HandoffFile::new(&self.slot_directory));
        let provider = self.provide(Arc::clone(&tokens), Place::File(Arc::clone(&file)), log).await?;
        let restoring = Instant::now();
        let file_bytes = restore(&self.decoder, &file, &tokens, &Arc::new(KnownCache::default())).await?.bytes;
        Ok(FileHandoff { provider, restore: restoring.elapsed(), file_bytes })
    }

    async fn provide(&self, tokens: Arc<[i32]>, place: Place, log: fn(&str)) -> Result<ProviderReport, CycleError> {
        let (provider, directory) = (self.provider.clone(), self.slot_directory.clone());
        let run = move |cancel: &_| {
            provider.run(&tokens, place.destination(), &directory, Some(cancel), &mut |line| log(line))
        };
        Ok(cancellable(run).await??)
    }
}
