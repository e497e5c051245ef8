//! A cache beside what it should hold.

use super::compare::compare;
use super::diagnosis::Patient;
use super::{Agreement, Diagnosis, ModelFacts, Place, Reading, Reference, Side, Tolerance, VerifyError};

/// A cache beside what it should hold.
#[derive(Clone, Debug)]
pub struct Verification {
    /// What it was compared with, for people.
    pub against: String,
    /// How many positions were compared.
    pub positions: u64,
    /// The stream that was compared, and how many the cache has.
    pub stream: (u64, u64),
    /// How far K and V may be off.
    pub tolerance: Tolerance,
    /// Every layer's K and V, layer by layer.
    pub planes: Vec<Plane>,
    /// What explains those that are wrong, if any is.
    pub diagnosis: Option<Diagnosis>,
    /// What is known of the model.
    pub model: ModelFacts,
}

/// One layer's K or V beside what it should be.
#[derive(Clone, Debug)]
pub struct Plane {
    /// Which it is.
    pub place: Place,
    /// The model's number of its layer.
    pub layer: u32,
    /// How far it is off.
    pub agreement: Agreement,
    /// Whether that is within the tolerance.
    pub holds: bool,
}

impl Verification {
    /// Compares `found` with `reference`, by `tolerance` or one that suits the caches' types.
    ///
    /// # Errors
    /// Caches of different models, more rows than one of them has, memory that cannot be read.
    pub fn of(
        found: &Side,
        reference: &Reference,
        model: ModelFacts,
        tolerance: Option<f64>,
    ) -> Result<Self, VerifyError> {
        let (expected, positions) = (&reference.side, reference.positions);
        check_shapes(found, expected)?;
        if positions > found.cells() {
            return Err(VerifyError::Cells { positions, cells: found.cells() });
        }
        let tolerance = tolerance.map_or_else(|| suited(found, expected), Tolerance::given);
        let plane = |place: Place| {
            let reading = Reading::right(found.tensor(place).clone());
            let agreement = compare(found, &reading, expected, place, 0..positions, tolerance)?;
            let (layer, holds) = (found.layer_number(place.index), agreement.holds(tolerance, place.half));
            Ok(Plane { place, layer, agreement, holds })
        };
        let planes = found.places().map(plane).collect::<Result<Vec<_>, VerifyError>>()?;
        let wrong: Vec<_> = planes.iter().filter(|plane| !plane.holds).collect();
        let diagnosis = if wrong.is_empty() {
            None
        } else {
            let wrong: Vec<_> = wrong.iter().map(|plane| (plane.place, &plane.agreement)).collect();
            let patient = Patient { found, expected, positions, tolerance, rope: model.rope.as_ref() };
            Some(patient.diagnose(&wrong)?)
        };
        let (against, stream) = (reference.what.clone(), (found.stream(), found.streams()));
        Ok(Self { against, positions, stream, tolerance, planes, diagnosis, model })
    }

    /// Whether all rows are within the tolerance.
    pub fn holds(&self) -> bool {
        self.planes.iter().all(|plane| plane.holds)
    }

    /// The plane whose worst element is farthest off, for its plane's size.
    pub fn worst(&self) -> Option<&Plane> {
        let by_distance = |a: &&Plane, b: &&Plane| a.agreement.worst_in_rms().total_cmp(&b.agreement.worst_in_rms());
        self.planes.iter().max_by(by_distance)
    }

    /// The plane at `place`.
    pub fn plane(&self, place: Place) -> Option<&Plane> {
        self.planes.iter().find(|plane| plane.place == place)
    }
}

/// Rows are only compared with rows of the same model.
fn check_shapes(found: &Side, expected: &Side) -> Result<(), VerifyError> {
    let (ours, theirs) = (found.layers(), expected.layers());
    if ours != theirs {
        return Err(VerifyError::Layers { found: ours, expected: theirs });
    }
    for place in found.places() {
        let (ours, theirs) = (found.tensor(place).plane.width, expected.tensor(place).plane.width);
        if ours != theirs {
            let (layer, half) = (found.layer_number(place.index), place.half);
            return Err(VerifyError::Width { layer, half, found: ours, expected: theirs });
        }
    }
    Ok(())
}

/// The tolerance by the types of both caches.
fn suited(found: &Side, expected: &Side) -> Tolerance {
    let sides = [found, expected].into_iter();
    Tolerance::of_types(sides.flat_map(|side| side.places().map(|place| side.tensor(place).plane.tensor_type)))
}
