//! The ledger: one lease a slot, each adopted at most once.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::ShareId;

/// How many past shares a ledger remembers, so that it can say "used" or "expired" instead of "unknown".
const REMEMBERED: usize = 256;

/// What a slot's cells are, from the decoder's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The decoder's own; nobody else may write.
    Private,
    /// Exported; a provider may be writing.
    Leased,
    /// A lease ended without an adoption: whoever had it may still be writing. Nothing in the cells may be believed
    /// until they are reclaimed.
    Quarantined,
}

/// Why a share is not minted or an adoption is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say in code what the messages say in words")]
pub enum ShareError {
    #[error("adopt needs \"share_id\": the number that the share of this slot returned")]
    Missing,
    #[error("share_id 0 names no share; quote the number that the share of this slot returned")]
    Zero,
    #[error("share_id {id} was not minted here, or so long ago that it is forgotten; share the slot again")]
    Unknown { id: u64 },
    #[error("share_id {id} was adopted already; each share is adopted once: share the slot again")]
    Used { id: u64 },
    #[error("share_id {id} is void: its slot's cells were reclaimed since; share the slot again")]
    Reclaimed { id: u64 },
    #[error("share_id {id} expired after {after_s} s; share the slot again")]
    Expired { id: u64, after_s: u64 },
    #[error("share_id {id} was minted for slot {minted_for}, not for slot {slot}")]
    OtherSlot { id: u64, minted_for: usize, slot: usize },
    #[error("there is no slot {slot}; the decoder has {slots}")]
    NoSuchSlot { slot: usize, slots: usize },
    #[error(
        "whoever has the last share of slot {slot} may still write its cells; give the slot fresh memory and reclaim it first"
    )]
    StillShared { slot: usize },
    #[error("the operating system gave no random number for a share_id; try again")]
    NoRandomness,
}

/// How a remembered share ended.
#[derive(Clone, Copy)]
enum Ending {
    Adopted,
    Reclaimed,
    Expired,
}

struct Past {
    id: u64,
    slot: usize,
    ending: Ending,
}

struct Lease {
    number: NonZeroU64,
    /// `None` where the lifetime reaches past what the clock can tell.
    expires: Option<Instant>,
}

struct Slot {
    lease: Option<Lease>,
    state: SlotState,
}

/// Who may adopt what. Time is passed in, so that every rule can be tested.
pub struct Ledger {
    slots: Vec<Slot>,
    lifetime: Duration,
    past: VecDeque<Past>,
}

impl Ledger {
    /// A ledger for `slots` slots, whose shares expire after `lifetime`.
    pub fn new(slots: usize, lifetime: Duration) -> Self {
        let slots = (0..slots).map(|_| Slot { lease: None, state: SlotState::Private }).collect();
        Self { slots, lifetime, past: VecDeque::new() }
    }

    /// Leases the cells of `slot` and names the lease.
    ///
    /// Only private cells are leased: an earlier holder that may still write would else write into the next share's
    /// cells, and adopting that one would call them the decoder's own.
    ///
    /// # Errors
    /// No such slot, [`ShareError::StillShared`], or no randomness.
    pub fn mint(&mut self, slot: usize, now: Instant) -> Result<ShareId, ShareError> {
        self.known(slot)?;
        self.expire(now);
        if self.slots[slot].state != SlotState::Private {
            return Err(ShareError::StillShared { slot });
        }
        let number = random_number()?;
        let lease = Lease { number, expires: now.checked_add(self.lifetime) };
        self.slots[slot] = Slot { lease: Some(lease), state: SlotState::Leased };
        Ok(ShareId::new(slot, number))
    }

    /// The live share of `slot` that `quoted`, a number from outside, names. It is not consumed yet.
    ///
    /// # Errors
    /// No number, or one that is not the slot's live share; each wrong one for its own reason.
    pub fn recognize(&mut self, slot: usize, quoted: Option<u64>, now: Instant) -> Result<ShareId, ShareError> {
        self.known(slot)?;
        let quoted = quoted.ok_or(ShareError::Missing)?;
        let number = NonZeroU64::new(quoted).ok_or(ShareError::Zero)?;
        self.expire(now);
        match &self.slots[slot].lease {
            Some(lease) if lease.number == number => Ok(ShareId::new(slot, number)),
            _ => Err(self.why_not(slot, quoted)),
        }
    }

    /// Consumes `share`: the slot's cells are the decoder's own again.
    ///
    /// # Errors
    /// The share ended since it was minted or recognized.
    pub fn adopt(&mut self, share: ShareId, now: Instant) -> Result<(), ShareError> {
        let share = self.recognize(share.slot(), Some(share.get()), now)?;
        self.slots[share.slot()] = Slot { lease: None, state: SlotState::Private };
        self.remember(Past { id: share.get(), slot: share.slot(), ending: Ending::Adopted });
        Ok(())
    }

    /// Ends the leases that are over by `now`; their cells are quarantined.
    pub fn expire(&mut self, now: Instant) {
        for slot in 0..self.slots.len() {
            let expires = self.slots[slot].lease.as_ref().and_then(|lease| lease.expires);
            if expires.is_some_and(|expires| expires <= now) {
                self.end_lease(slot, Ending::Expired);
            }
        }
    }

    /// Says that nobody else can write the cells of `slot` any more: they were replaced by fresh memory, or every
    /// other holder is known to be gone. A live lease is void.
    ///
    /// # Errors
    /// No such slot.
    pub fn reclaim(&mut self, slot: usize) -> Result<(), ShareError> {
        self.known(slot)?;
        self.end_lease(slot, Ending::Reclaimed);
        self.slots[slot].state = SlotState::Private;
        Ok(())
    }

    /// What the cells of `slot` are at `now`, or `None` for no such slot.
    pub fn state(&mut self, slot: usize, now: Instant) -> Option<SlotState> {
        self.expire(now);
        self.slots.get(slot).map(|slot| slot.state)
    }

    fn known(&self, slot: usize) -> Result<(), ShareError> {
        let slots = self.slots.len();
        if slot < slots { Ok(()) } else { Err(ShareError::NoSuchSlot { slot, slots }) }
    }

    fn end_lease(&mut self, slot: usize, ending: Ending) {
        if let Some(lease) = self.slots[slot].lease.take() {
            self.slots[slot].state = SlotState::Quarantined;
            self.remember(Past { id: lease.number.get(), slot, ending });
        }
    }

    fn remember(&mut self, past: Past) {
        if self.past.len() == REMEMBERED {
            self.past.pop_front();
        }
        self.past.push_back(past);
    }

    fn why_not(&self, slot: usize, id: u64) -> ShareError {
        let live = |other: &Slot| other.lease.as_ref().is_some_and(|lease| lease.number.get() == id);
        if let Some(minted_for) = self.slots.iter().position(live) {
            return ShareError::OtherSlot { id, minted_for, slot };
        }
        match self.past.iter().rev().find(|past| past.id == id) {
            None => ShareError::Unknown { id },
            Some(past) if past.slot != slot => ShareError::OtherSlot { id, minted_for: past.slot, slot },
            Some(Past { ending: Ending::Adopted, .. }) => ShareError::Used { id },
            Some(Past { ending: Ending::Reclaimed, .. }) => ShareError::Reclaimed { id },
            Some(Past { ending: Ending::Expired, .. }) => ShareError::Expired { id, after_s: self.lifetime.as_secs() },
        }
    }
}

fn random_number() -> Result<NonZeroU64, ShareError> {
    loop {
        // 0 comes once in 2^64 draws.
        if let Some(number) = NonZeroU64::new(getrandom::u64().map_err(|_| ShareError::NoRandomness)?) {
            return Ok(number);
        }
    }
}
