//! Right rows in the wrong places.

use super::{Hypothesis, Mistake, Suspect};
use crate::verify::side::Reading;

pub(super) fn of<'a>(suspect: &Suspect<'a>) -> Vec<Hypothesis<'a>> {
    [(Mistake::RowsLate, 1), (Mistake::RowsEarly, -1)]
        .map(|(mistake, shift)| (mistake, Reading { shift, ..suspect.right() }))
        .into()
}
