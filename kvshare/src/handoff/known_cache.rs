//! What is known of the decoder's cache, and whether a state file fits it.

use crate::layout::TensorType;
use crate::state_file::{Expected, Half, StateFile, StateFileError, StateShape};

/// What is known of the decoder's cache. A field left at `None` is not compared.
///
/// All of it can be learned from one file that the decoder saved itself ([`learn`](Self::learn)); the first four fields,
/// from its flags and its own word, do where it saves none.
///
/// What cannot be known, from this or from the file: whether the rows belong to the same model (there is no checksum and no
/// name in a state file, and two fine-tunes of one model have caches of one shape), whether K was rotated by the right
/// positions, and whether the rows are right at all. The reply's timings say that a cache was used, never that it is right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownCache {
    /// Positions of a sequence's context.
    pub n_ctx: Option<u64>,
    /// The type of K.
    pub type_k: Option<TensorType>,
    /// The type of V.
    pub type_v: Option<TensorType>,
    /// Whether V is stored channel by channel, as it is without flash attention.
    pub v_trans: Option<bool>,
    /// How many streams there are.
    pub n_stream: Option<usize>,
    /// The rows of every layer: how many, of which type and width, rotated by how much, and in which order V is.
    pub shape: Option<StateShape>,
}

impl KnownCache {
    /// Takes over all that a file tells which the decoder saved itself.
    ///
    /// # Errors
    /// [`StateFileError`] where it has no cells, or those of several streams.
    pub fn learn(&mut self, saved: &StateFile) -> Result<(), StateFileError> {
        self.shape = Some(saved.only_stream()?.shape.clone());
        self.n_stream = Some(saved.streams.len());
        Ok(())
    }

    /// Makes sure that `file` restores to `tokens`, and fits into this cache.
    ///
    /// # Errors
    /// [`StateFileError`] names the first difference.
    pub fn check(&self, file: &StateFile, tokens: &[i32]) -> Result<(), StateFileError> {
        file.validate(&Expected {
            tokens: Some(tokens),
            n_ctx: self.n_ctx,
            n_stream: self.n_stream,
            shape: self.shape.as_ref(),
            ..Expected::default()
        })?;
        let shape = &file.only_stream()?.shape;
        if let Some(v_trans) = self.v_trans.filter(|v_trans| *v_trans != shape.v_trans) {
            return Err(StateFileError::Transposition { found: shape.v_trans.into(), expected: v_trans.into() });
        }
        for (half, expected) in [(Half::K, self.type_k), (Half::V, self.type_v)] {
            let Some(expected) = expected else { continue };
            let mut types = shape.layers.iter().map(|layer| layer.half(half).tensor_type).enumerate();
            if let Some((layer, found)) = types.find(|(_, found)| *found != expected) {
                return Err(StateFileError::Type { layer, half, found, expected });
            }
        }
        Ok(())
    }
}
