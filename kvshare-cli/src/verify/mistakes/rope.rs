//! K turned wrongly, or not at all.

use kvshare::state_file::Half;

use super::{Hypothesis, Mistake, Suspect};
use crate::verify::side::TurnKind;

pub(super) fn of<'a>(suspect: &Suspect<'a>) -> Vec<Hypothesis<'a>> {
    let (Half::K, Some(rope)) = (suspect.place.half, suspect.rope) else { return Vec::new() };
    let turns = [
        (Mistake::BeforeRope, TurnKind::Apply),
        (Mistake::OtherPairing { wanted: rope.pairing }, TurnKind::Repair),
        (Mistake::TurnedLate, TurnKind::Advance(-1)),
        (Mistake::TurnedEarly, TurnKind::Advance(1)),
    ];
    turns.map(|(mistake, kind)| (mistake, suspect.right().turned(rope, kind))).into()
}
