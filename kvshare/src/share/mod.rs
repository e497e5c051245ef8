//! The decoder's side: which export may be adopted, by whom, and once.
//!
//! A decoder keeps one [`Ledger`]. Exporting a slot's cache mints a [`ShareId`]; a number that comes back from outside is
//! recognized, and adopting consumes it. What became of each slot's cells is a [`SlotState`], so that cells that a
//! writer may still reach are never taken for the decoder's own.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use kvshare::share::{Ledger, ShareError};
//!
//! let mut ledger = Ledger::new(1, Duration::from_secs(600));
//! let now = Instant::now();
//! let number = ledger.mint(0, now)?.get(); // to the proxy, and back with the adopt request
//!
//! let share = ledger.recognize(0, Some(number), now)?; // then check the tokens, and only then:
//! ledger.adopt(share, now)?;
//! assert_eq!(ledger.recognize(0, Some(number), now), Err(ShareError::Used { id: number }));
//! # Ok::<(), ShareError>(())
//! ```
#![forbid(unsafe_code)]

mod id;
mod ledger;
#[cfg(test)]
mod tests;

pub use id::ShareId;
pub use ledger::{Ledger, ShareError, SlotState};
