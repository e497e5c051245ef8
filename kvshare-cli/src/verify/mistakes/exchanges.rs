//! Right rows in another tensor.

use kvshare::state_file::Half;

use super::{Hypothesis, Mistake, Suspect};
use crate::verify::side::{Place, Reading};

pub(super) fn of<'a>(suspect: &Suspect<'a>) -> Vec<Hypothesis<'a>> {
    let Place { index, half } = suspect.place;
    let other_half = if half == Half::K { Half::V } else { Half::K };
    let other_layers = (0..suspect.found.layers()).filter(|other| *other != index);
    let exchanges = other_layers.map(|index| (Mistake::LayersExchanged, Place { index, half }));
    let exchanges = [(Mistake::HalvesExchanged, Place { index, half: other_half })].into_iter().chain(exchanges);
    let width = suspect.found.tensor(suspect.place).plane.width;
    exchanges
        .map(|(mistake, place)| (mistake, Reading::right(suspect.found.tensor(place).clone())))
        .filter(|(_, reading)| reading.tensor.plane.width == width)
        .collect()
}
