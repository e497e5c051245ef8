//! A prompt's cache from the provider to the decoder, by either route.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvshare::handoff::{
    Cancel, Destination, ProviderFailure, ProviderProgram, ProviderReport, ReceivedShare, ShareDesk, ShareFailure,
};
use kvshare::state_file::{Expected, ReadOptions, StateFile, StateFileError};

use super::{DecoderClient, DecoderError};

/// How long the decoder may take to send its descriptors.
const SHARE_LIMIT: Duration = Duration::from_secs(30);

/// Numbers the state files of this process.
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// Why a handoff did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CycleError {
    /// A call to the decoder.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The decoder's message.
    #[error(transparent)]
    Share(#[from] ShareFailure),
    /// The provider.
    #[error(transparent)]
    Provider(#[from] ProviderFailure),
    /// The provider's state file could not be opened.
    #[error("the provider left no state file: {0}")]
    NoFile(#[source] io::Error),
    /// The provider's state file is not what was asked for.
    #[error("the provider's state file is refused: {0}")]
    StateFile(#[from] StateFileError),
    /// The decoder read less than the file holds.
    #[error("the decoder restored {restored} tokens of {expected}")]
    Restored {
        /// What it restored.
        restored: u64,
        /// What the file holds.
        expected: usize,
    },
    /// The system.
    #[error("{0}")]
    System(#[from] io::Error),
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
        let started = Instant::now();
        let (share, share_id) = self.receive().await?;
        let share_time = started.elapsed();
        let message_bytes = share.header_bytes.len() as u64 + 4;
        let (region_bytes, descriptors) = (share.header.bytes(), share.descriptors.len());

        let provider = self.run_provider(tokens, ProviderRoute::Shared(share), log).await?;
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
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvshare-{}-{number}.bin", std::process::id());
        let file = RemovedAtEnd(self.slot_directory.join(&name));
        let provider = self.run_provider(tokens, ProviderRoute::File(name.clone()), log).await?;
        let restoring = Instant::now();
        let file_bytes = check_state_file(&file.0, tokens)?;
        let restored = self.decoder.restore(&name).await?;
        if restored != tokens.len() as u64 {
            return Err(CycleError::Restored { restored, expected: tokens.len() });
        }
        Ok(FileHandoff { provider, restore: restoring.elapsed(), file_bytes })
    }

    /// Asks for a share and receives it, both at once: the decoder answers only after it has sent.
    async fn receive(&self) -> Result<(ReceivedShare, u64), CycleError> {
        let desk = ShareDesk::open(&self.slot_directory)?;
        let path = desk.path().to_string_lossy().into_owned();
        let cancel = Cancel::new()?;
        let canceller = cancel.clone();
        let receiving = blocking(move || desk.receive(Instant::now() + SHARE_LIMIT, &cancel));
        let asking = async {
            let answer = self.decoder.share(&path).await;
            if answer.is_err() {
                canceller.cancel();
            }
            answer
        };
        let (received, answer) = tokio::join!(receiving, asking);
        // A refusal is the reason; that nobody connected then is its consequence.
        let share_id = answer?;
        Ok((received??, share_id))
    }

    async fn run_provider(
        &self,
        tokens: &[i32],
        route: ProviderRoute,
        log: fn(&str),
    ) -> Result<ProviderReport, CycleError> {
        let (provider, directory, tokens) = (self.provider.clone(), self.slot_directory.clone(), tokens.to_vec());
        let run = move || {
            let destination = match &route {
                ProviderRoute::Shared(share) => Destination::Shared(share),
                ProviderRoute::File(name) => Destination::File { name },
            };
            provider.run(&tokens, destination, &directory, None, &mut |line| log(line))
        };
        Ok(blocking(run).await??)
    }
}

enum ProviderRoute {
    Shared(ReceivedShare),
    File(String),
}

/// Walks the file to its last byte, since the stock server aborts on one that is cut, and returns its length.
fn check_state_file(path: &Path, tokens: &[i32]) -> Result<u64, CycleError> {
    let file = File::open(path).map_err(CycleError::NoFile)?;
    let length = file.metadata().map_err(CycleError::NoFile)?.len();
    let state = StateFile::walk(io::BufReader::new(file), ReadOptions::default())?;
    state.validate(&Expected { tokens: Some(tokens), ..Expected::default() })?;
    Ok(length)
}

/// A file that must not stay, whatever happens.
struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        // It is not there if the provider failed.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
