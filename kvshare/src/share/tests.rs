//! The ledger's promises: a share is adopted once, by whoever can quote it, and no refusal changes anything.

use std::time::{Duration, Instant};

use super::*;

const LIFETIME: Duration = Duration::from_secs(60);

fn ledger() -> (Ledger, Instant) {
    (Ledger::new(2, LIFETIME), Instant::now())
}

#[test]
fn a_share_is_adopted_once() {
    let (mut ledger, now) = ledger();
    assert_eq!(ledger.state(0, now), Some(SlotState::Private));
    let share = ledger.mint(0, now).unwrap();
    assert_eq!(ledger.state(0, now), Some(SlotState::Leased));
    let number = share.get();
    let again = ledger.recognize(0, Some(number), now).unwrap();
    ledger.adopt(share, now).unwrap();
    assert_eq!(ledger.state(0, now), Some(SlotState::Private));
    assert_eq!(ledger.adopt(again, now), Err(ShareError::Used { id: number }));
    assert_eq!(ledger.recognize(0, Some(number), now), Err(ShareError::Used { id: number }));
}

#[test]
fn a_wrong_number_is_refused_and_changes_nothing() {
    let (mut ledger, now) = ledger();
    let replaced = ledger.mint(0, now).unwrap().get();
    let live = ledger.mint(0, now).unwrap().get();
    let other = ledger.mint(1, now).unwrap().get();
    let unknown = (1..).find(|number| ![replaced, live, other].contains(number)).unwrap();
    let refused = [
        (0, None, ShareError::Missing),
        (0, Some(0), ShareError::Zero),
        (0, Some(unknown), ShareError::Unknown { id: unknown }),
        (0, Some(replaced), ShareError::Replaced { id: replaced }),
        (0, Some(other), ShareError::OtherSlot { id: other, minted_for: 1, slot: 0 }),
        (1, Some(replaced), ShareError::OtherSlot { id: replaced, minted_for: 0, slot: 1 }),
        (2, Some(live), ShareError::NoSuchSlot { slot: 2, slots: 2 }),
    ];
    for (slot, quoted, expected) in refused {
        assert_eq!(ledger.recognize(slot, quoted, now), Err(expected));
    }
    assert_eq!(ledger.state(0, now), Some(SlotState::Leased));
    assert!(ledger.recognize(0, Some(live), now).is_ok());
}

#[test]
fn an_expired_share_quarantines_its_cells_until_they_are_reclaimed() {
    let (mut ledger, now) = ledger();
    let number = ledger.mint(0, now).unwrap().get();
    let just_before = now + LIFETIME - Duration::from_millis(1);
    assert!(ledger.recognize(0, Some(number), just_before).is_ok());
    let late = now + LIFETIME;
    assert_eq!(ledger.recognize(0, Some(number), late), Err(ShareError::Expired { id: number, after_s: 60 }));
    assert_eq!(ledger.state(0, late), Some(SlotState::Quarantined));
    ledger.reclaim(0).unwrap();
    assert_eq!(ledger.state(0, late), Some(SlotState::Private));
}

#[test]
fn reclaiming_voids_a_live_share() {
    let (mut ledger, now) = ledger();
    let number = ledger.mint(0, now).unwrap().get();
    ledger.reclaim(0).unwrap();
    assert_eq!(ledger.recognize(0, Some(number), now), Err(ShareError::Replaced { id: number }));
}

#[test]
fn numbers_are_not_repeated_and_not_in_logs() {
    let (mut ledger, now) = ledger();
    let mut numbers: Vec<u64> = (0..1000).map(|_| ledger.mint(0, now).unwrap().get()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000);
    let share = ledger.mint(0, now).unwrap();
    assert!(!format!("{share:?}").contains(&share.get().to_string()));
}

#[test]
fn what_a_ledger_remembers_is_bounded() {
    let (mut ledger, now) = ledger();
    let first = ledger.mint(0, now).unwrap().get();
    for _ in 0..1000 {
        let _ = ledger.mint(0, now).unwrap();
    }
    assert_eq!(ledger.recognize(0, Some(first), now), Err(ShareError::Unknown { id: first }));
}
