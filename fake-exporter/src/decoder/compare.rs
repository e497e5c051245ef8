//! Comparing the rows in the slot with those that the decoder computes itself.
//!
//! This tells a provider's author where its arithmetic parts from the model's: a wrong layer, a wrong RoPE base or a
//! position off by one shows as a layer whose error jumps.

use std::fmt;

use kvshare::rows::{Rows, RowsError};
use serde::Serialize;

use super::{Decoder, DecoderError};

/// Values that are compared at once, about: whole rows.
const PIECE: usize = 1 << 16;

/// How far the rows in the slot are from the decoder's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The tokens whose rows were compared.
    pub n_tokens: usize,
    /// The layers, in order.
    pub layers: Vec<LayerError>,
}

/// The relative errors of one layer: the norm of the difference, divided by the norm of the decoder's own rows. In JSON,
/// a number that is none (from a row with NaN, say) is `null`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerError {
    /// The layer's number.
    pub layer: u32,
    /// Of K.
    pub k: f64,
    /// Of V.
    pub v: f64,
}

impl fmt::Display for Comparison {
    /// One line a layer.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "compared the rows of {} tokens with our own, relative errors:", self.n_tokens)?;
        for LayerError { layer, k, v } in &self.layers {
            write!(formatter, "\n  layer {layer}: K {:.4} %, V {:.4} %", 100.0 * k, 100.0 * v)?;
        }
        Ok(())
    }
}

impl Decoder {
    /// Evaluates the slot's tokens into a cache of its own, and compares the slot's rows with the result. The slot stays
    /// as it is.
    ///
    /// # Errors
    /// A slot without tokens, memory that cannot be had, rows that cannot be reached.
    pub fn compare(&mut self, goes_on: &dyn Fn() -> bool) -> Result<Comparison, DecoderError> {
        if self.tokens.is_empty() {
            return Err(DecoderError::NothingToCompare);
        }
        let (brain, tokens) = (&self.brain, &self.tokens);
        let mut own = self.plan.allocate(&self.settings)?;
        own.access(|own| Ok(brain.begin(tokens, 0, own, goes_on).map(drop)?))?;
        self.cache.access(|slot| {
            let error = |layer: u32| -> Result<LayerError, RowsError> {
                let own = own.mapped();
                Ok(LayerError {
                    layer,
                    k: relative_error(&slot.k(layer)?, &own.k(layer)?, tokens.len())?,
                    v: relative_error(&slot.v(layer)?, &own.v(layer)?, tokens.len())?,
                })
            };
            let layers = slot.layers().iter().map(|planes| error(planes.layer));
            Ok(Comparison { n_tokens: tokens.len(), layers: layers.collect::<Result<_, _>>()? })
        })
    }
}

/// The error of the first `count` rows.
fn relative_error(found: &Rows<'_>, reference: &Rows<'_>, count: usize) -> Result<f64, RowsError> {
    let width = found.plane().width as usize;
    let step = (PIECE / width).max(1);
    let (mut difference, mut norm) = (0.0, 0.0);
    for first in (0..count).step_by(step) {
        let values = width * step.min(count - first);
        let (mut found_values, mut reference_values) = (vec![0.0; values], vec![0.0; values]);
        found.read_f32(first as u64, &mut found_values)?;
        reference.read_f32(first as u64, &mut reference_values)?;
        for (found, reference) in found_values.into_iter().zip(reference_values) {
            difference += square(found - reference);
            norm += square(reference);
        }
    }
    Ok(if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() })
}

fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}
