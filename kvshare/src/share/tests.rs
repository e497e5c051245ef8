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
    let reclaimed = ledger.mint(0, now).unwrap().get();
    ledger.reclaim(0).unwrap();
    let live = ledger.mint(0, now).unwrap().get();
    let other = ledger.mint(1, now).unwrap().get();
    let unknown = (1..).find(|number| ![reclaimed, live, other].contains(number)).unwrap();
    let refused = [
        (0, None, ShareError::Missing),
        (0, Some(0), ShareError::Zero),
        (0, Some(unknown), ShareError::Unknown { id: unknown }),
        (0, Some(reclaimed), ShareError::Reclaimed { id: reclaimed }),
        (0, Some(other), ShareError::OtherSlot { id: other, minted_for: 1, slot: 0 }),
        (1, Some(reclaimed), ShareError::OtherSlot { id: reclaimed, minted_for: 0, slot: 1 }),
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
fn cells_that_others_may_still_write_are_not_leased_again() {
    let (mut ledger, now) = ledger();
    let first = ledger.mint(0, now).unwrap().get();
    assert_eq!(ledger.mint(0, now), Err(ShareError::StillShared { slot: 0 }));
    assert!(ledger.recognize(0, Some(first), now).is_ok(), "the refusal left the lease as it was");
    let late = now + LIFETIME;
    assert_eq!(ledger.mint(0, late), Err(ShareError::StillShared { slot: 0 }));
    assert_eq!(ledger.state(0, late), Some(SlotState::Quarantined));
    ledger.reclaim(0).unwrap();
    let second = ledger.mint(0, late).unwrap();
    ledger.adopt(second, late).unwrap();
    assert!(ledger.mint(0, late).is_ok(), "adopted cells are the decoder's own, to lease again");
}

#[test]
fn a_lifetime_past_the_end_of_time_never_expires() {
    let mut ledger = Ledger::new(1, Duration::MAX);
    let now = Instant::now();
    let number = ledger.mint(0, now).unwrap().get();
    let in_a_century = now + Duration::from_secs(100 * 365 * 86400);
    assert!(ledger.recognize(0, Some(number), in_a_century).is_ok());
}

#[test]
fn reclaiming_voids_a_live_share() {
    let (mut ledger, now) = ledger();
    let number = ledger.mint(0, now).unwrap().get();
    ledger.reclaim(0).unwrap();
    assert_eq!(ledger.recognize(0, Some(number), now), Err(ShareError::Reclaimed { id: number }));
}

#[test]
fn numbers_are_not_repeated_and_not_in_logs() {
    let (mut ledger, now) = ledger();
    let mut mint = || {
        ledger.reclaim(0).unwrap();
        ledger.mint(0, now).unwrap()
    };
    let mut numbers: Vec<u64> = (0..1000).map(|_| mint().get()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000);
    let share = mint();
    assert!(!format!("{share:?}").contains(&share.get().to_string()));
}

#[test]
fn what_a_ledger_remembers_is_bounded() {
    let (mut ledger, now) = ledger();
    let first = ledger.mint(0, now).unwrap().get();
    for _ in 0..1000 {
        ledger.reclaim(0).unwrap();
        let _ = ledger.mint(0, now).unwrap();
    }
    ledger.reclaim(0).unwrap();
    assert_eq!(ledger.recognize(0, Some(first), now), Err(ShareError::Unknown { id: first }));
}
