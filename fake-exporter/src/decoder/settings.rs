//! What a decoder is told at its start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kvshare::layout::TensorType;
use kvshare::map::Guard;
use kvshare::memory::RegionSource;

use super::{DecoderError, Misbehaviour};

/// What a decoder is told at its start.
pub struct Settings {
    /// Positions of context, and so cells of the cache.
    pub cells: u32,
    /// The type of K.
    pub type_k: TensorType,
    /// The type of V.
    pub type_v: TensorType,
    /// Whether V lies row by row (flash attention) and not channel by channel.
    pub flash_attention: bool,
    /// Where state files and sockets lie; without it slots can be neither saved nor shared.
    pub slot_directory: Option<PathBuf>,
    /// Whether the cache is shared.
    pub sharing: Sharing,
    /// Whether adopted rows are compared with the decoder's own, and the errors logged.
    pub compare: bool,
    /// For how long a share can be adopted.
    pub share_lifetime: Duration,
    /// Where the cache's memory comes from.
    pub memory: Box<dyn RegionSource + Send + Sync>,
    /// Where unmapped pages lie around it.
    pub guard: Guard,
    /// What goes wrong with each share, if anything.
    pub misbehaviour: Option<Misbehaviour>,
}

impl Settings {
    /// The directory of state files and sockets.
    ///
    /// # Errors
    /// There is none.
    pub fn slot_directory(&self) -> Result<&Path, DecoderError> {
        self.slot_directory.as_deref().ok_or(DecoderError::NoSlotDirectory)
    }

    /// Whether the cache is shared.
    ///
    /// # Errors
    /// It is not.
    pub fn check_sharing(&self) -> Result<(), DecoderError> {
        match self.sharing {
            Sharing::On => Ok(()),
            Sharing::Off => Err(DecoderError::SharingOff),
            Sharing::Unknown => Err(DecoderError::InvalidAction),
        }
    }
}

/// How a decoder answers `action=share` and `action=adopt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sharing {
    /// It shares.
    #[default]
    On,
    /// It knows the actions and cannot export: 501.
    Off,
    /// It has never heard of them, as a stock llama-server: 400 "Invalid action".
    Unknown,
}
