//! The number that names one export.

use std::fmt;
use std::num::NonZeroU64;

/// A live share of one slot: a random 64-bit number that is not 0. Whoever can quote the number took part in the share.
///
/// Only a [`Ledger`](super::Ledger) makes one, by minting it or by recognizing a number from outside; it can be neither
/// copied nor built from a number elsewhere, and [`Ledger::adopt`](super::Ledger::adopt) consumes it.
#[derive(PartialEq, Eq)]
pub struct ShareId {
    slot: usize,
    number: NonZeroU64,
}

impl ShareId {
    pub(super) fn new(slot: usize, number: NonZeroU64) -> Self {
        Self { slot, number }
    }

    /// The number, as it goes into `{"share_id": …}`.
    pub fn get(&self) -> u64 {
        self.number.get()
    }

    /// The slot whose cells were shared.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

impl fmt::Debug for ShareId {
    /// Without the number, which is a secret between decoder and proxy and does not belong into logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShareId").field("slot", &self.slot).finish_non_exhaustive()
    }
}
