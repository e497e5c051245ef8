//! The decoder's state and what can be done to it, without HTTP: one slot, its cache in regions, and who may write it.
//!
//! The cache is mapped once and used where it lies. A provider that was handed the regions writes K and V into the very
//! pages that attention reads later, so [`Decoder::adopt`] moves no byte: it only believes the tokens.
//!
//! A [`Decoder`] does one thing at a time and blocks while it does; [`crate::http`] makes requests wait in order.
#![forbid(unsafe_code)]

mod cache;
mod compare;
mod complete;
mod error;
mod files;
mod ids;
mod misbehave;
mod settings;
mod share;
#[cfg(test)]
mod tests;
mod text;
mod timings;
mod writing;

use std::sync::Arc;
use std::time::Instant;

use kvshare::share::{Ledger, SlotState};

pub use compare::{Comparison, LayerError};
pub use complete::{Completion, Piece, Request, StopReason};
pub use error::DecoderError;
pub use files::FileReport;
pub use ids::checked_ids;
pub use misbehave::Misbehaviour;
pub use settings::{Settings, Sharing};
pub use timings::Timings;

use crate::brain::Brain;
use cache::{Cache, CachePlan};
use misbehave::Hostage;

/// The only slot. A llama-server behind a handoff has one (`-np 1`).
pub const SLOT: usize = 0;

/// One slot of a decoder with its cache.
pub struct Decoder {
    brain: Arc<dyn Brain>,
    settings: Arc<Settings>,
    plan: CachePlan,
    cache: Cache,
    ledger: Ledger,
    /// The tokens whose rows the cache holds, at positions from 0.
    tokens: Vec<i32>,
    /// A connection that a misbehaving share keeps open.
    hostage: Option<Hostage>,
}

impl Decoder {
    /// Allocates the cache and maps it.
    ///
    /// # Errors
    /// Settings that make no cache, or memory that cannot be had.
    pub fn new(brain: Arc<dyn Brain>, settings: Settings) -> Result<Self, DecoderError> {
        let plan = CachePlan::new(&*brain, &settings)?;
        let cache = plan.allocate(&settings)?;
        let ledger = Ledger::new(1, settings.share_lifetime);
        Ok(Self { brain, settings: Arc::new(settings), plan, cache, ledger, tokens: Vec::new(), hostage: None })
    }

    /// What it thinks with.
    pub fn brain(&self) -> &Arc<dyn Brain> {
        &self.brain
    }

    /// What it was told at its start.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// The tokens that the slot holds.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Forgets what the slot holds, and returns how many tokens that were.
    pub fn erase(&mut self) -> usize {
        std::mem::take(&mut self.tokens).len()
    }

    /// Makes the cells the decoder's own before it writes them.
    ///
    /// Cells that were shared and not adopted may still be written by whoever got them, and a mapping cannot be taken
    /// back from a process. So the slot gets fresh memory instead, and the lease, if it is not over, is void. For a
    /// moment both memories exist.
    fn own_cells(&mut self) -> Result<(), DecoderError> {
        self.hostage = None;
        if self.ledger.state(SLOT, Instant::now()) != Some(SlotState::Private) {
            self.tokens.clear();
            self.cache = self.plan.allocate(&self.settings)?;
            self.ledger.reclaim(SLOT)?;
        }
        Ok(())
    }

    fn cells(&self) -> u64 {
        self.cache.mapped().cells()
    }
}
