//! Which mistakes explain rows that are wrong.

use std::ops::Range;

use super::compare::{Agreement, compare};
use super::mistakes::{Mistake, Suspect};
use super::rope::Rope;
use super::side::{Place, Reading, Side};
use super::tolerance::Tolerance;
use crate::inspect::reader::ReadError;

/// Rows that a hypothesis must explain before it is tried on all.
const SAMPLE: u64 = 64;

/// What is known of rows that are wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// The mistakes that explain them, the one that explains most first.
    pub explanations: Vec<Explanation>,
    /// Where rows are all 0 that should not be, and nothing else is wrong.
    pub empty: Vec<Place>,
    /// What nothing explains.
    pub unexplained: Vec<Place>,
}

/// A mistake, and what it explains.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The mistake.
    pub mistake: Mistake,
    /// What it explains.
    pub places: Vec<Explained>,
}

/// Rows that are right if the mistake was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Whose rows.
    pub place: Place,
    /// The tensor that they were found in.
    pub found_in: String,
    /// The positions that bear it out.
    pub positions: Range<u64>,
    /// The relative error that is left.
    pub relative: f64,
}

/// The caches, and what is known about them.
#[derive(Clone, Copy, Debug)]
pub struct Patient<'a> {
    /// The cache that was found.
    pub found: &'a Side,
    /// The one that was expected.
    pub expected: &'a Side,
    /// How many positions were compared.
    pub positions: u64,
    /// How far rows may be off.
    pub tolerance: Tolerance,
    /// How the model turns K, if that is known.
    pub rope: Option<&'a Rope>,
}

impl Patient<'_> {
    /// Looks for the mistakes that explain the rows in `wrong`.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn diagnose(&self, wrong: &[(Place, &Agreement)]) -> Result<Diagnosis, ReadError> {
        let is_empty = |agreement: &Agreement| agreement.rows_off > 0 && agreement.rows_empty == agreement.rows_off;
        let (empty, wrong): (Vec<_>, Vec<_>) = wrong.iter().partition(|(_, agreement)| is_empty(agreement));
        let mut evidence = Vec::new();
        for (place, agreement) in &wrong {
            self.examine(*place, agreement.first_off.unwrap_or(0)..self.positions, &mut evidence)?;
        }
        let (explanations, unexplained) = cover(wrong.iter().map(|(place, _)| *place).collect(), evidence);
        Ok(Diagnosis { explanations, empty: empty.iter().map(|(place, _)| *place).collect(), unexplained })
    }

    /// Adds what explains the rows of `positions`, the first of which is wrong.
    fn examine(
        &self,
        place: Place,
        positions: Range<u64>,
        evidence: &mut Vec<(Mistake, Explained)>,
    ) -> Result<(), ReadError> {
        let plain = Reading::right(self.found.tensor(place).clone());
        let plain = compare(self.found, &plain, self.expected, place, positions.clone(), self.tolerance)?;
        let suspect = Suspect { found: self.found, place, rope: self.rope };
        for (mistake, reading) in suspect.hypotheses() {
            let available = reading.available(positions.clone(), self.positions);
            if let Some(relative) = self.test(place, &reading, available.clone(), plain.relative)? {
                let found_in = reading.tensor.name().to_owned();
                evidence.push((mistake, Explained { place, found_in, positions: available, relative }));
            }
        }
        Ok(())
    }

    /// The relative error of the rows of `positions` by `reading`, if that is right and much smaller than `plain`.
    fn test(
        &self,
        place: Place,
        reading: &Reading<'_>,
        positions: Range<u64>,
        plain: f64,
    ) -> Result<Option<f64>, ReadError> {
        let types = [reading.elements, self.expected.tensor(place).plane.tensor_type];
        let tolerance = self.tolerance.or_larger(Tolerance::of_types(types));
        let sample = positions.start..positions.end.min(positions.start.saturating_add(SAMPLE));
        let mut relative = None;
        for piece in [sample, positions] {
            if piece.is_empty() {
                return Ok(None);
            }
            let agreement = compare(self.found, reading, self.expected, place, piece, tolerance)?;
            // A plain error that is no number is larger than any.
            if !agreement.holds(tolerance, place.half) || plain < 2.0 * agreement.relative {
                return Ok(None);
            }
            relative = Some(agreement.relative);
        }
        Ok(relative)
    }
}

/// The mistakes that explain `wrong` together, each the one that explains most of what is left, and what no mistake does.
fn cover(wrong: Vec<Place>, mut evidence: Vec<(Mistake, Explained)>) -> (Vec<Explanation>, Vec<Place>) {
    let mut left = wrong;
    let mut explanations: Vec<Explanation> = Vec::new();
    loop {
        evidence.retain(|(_, explained)| left.contains(&explained.place));
        let count = |mistake: Mistake| evidence.iter().filter(|(other, _)| *other == mistake).count();
        // Of several the first: so they are ordered in their table.
        let best = evidence.iter().map(|(mistake, _)| *mistake).rev().max_by_key(|mistake| count(*mistake));
        let Some(mistake) = best else { return (explanations, left) };
        let mut places: Vec<Explained> = Vec::new();
        for (_, explained) in evidence.iter().filter(|(other, _)| *other == mistake) {
            // A place can be explained twice, by two layers that are alike.
            if !places.iter().any(|known| known.place == explained.place) {
                places.push(explained.clone());
            }
        }
        left.retain(|place| !places.iter().any(|explained| explained.place == *place));
        explanations.push(Explanation { mistake, places });
    }
}
