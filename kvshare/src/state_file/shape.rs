//! What a cache's rows are made of: types, widths, transposition, rotation.

use std::fmt;

use super::{MAX_LAYERS, MAX_ROW_BYTES, StateFileError};
use crate::layout::TensorType;

/// One of the two halves of a layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// The keys.
    K,
    /// The values.
    V,
}

impl Half {
    /// Both, in the order of a file.
    pub const BOTH: [Self; 2] = [Self::K, Self::V];
}

impl fmt::Display for Half {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::K => "K",
            Self::V => "V",
        })
    }
}

/// The rows of one layer's K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// The type of their elements.
    pub tensor_type: TensorType,
    /// Elements in a row: `n_embd_k_gqa` or `n_embd_v_gqa`.
    pub width: u32,
}

impl RowShape {
    /// The bytes of a row, or `None` where a block does not divide it.
    pub const fn row_bytes(self) -> Option<u64> {
        self.tensor_type.row_bytes(self.width as u64)
    }
}

/// The rows of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// The rows of K.
    pub k: RowShape,
    /// The rows of V.
    pub v: RowShape,
}

impl LayerShape {
    /// The rows of `half`.
    pub const fn half(&self, half: Half) -> RowShape {
        match half {
            Half::K => self.k,
            Half::V => self.v,
        }
    }
}

/// The rows of a whole cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Every layer that has a cache, in order.
    pub layers: Vec<LayerShape>,
    /// Whether V is stored channel by channel, as it is without flash attention.
    pub v_trans: bool,
    /// By how much K is rotated, 0 for not at all; see [`rotate`](crate::values::rotate).
    pub n_rot_k: u32,
    /// By how much V is rotated, 0 for not at all.
    pub n_rot_v: u32,
}

impl StateShape {
    /// A cache whose `n_layer` layers are all alike, neither transposed nor rotated.
    pub fn uniform(n_layer: usize, k: RowShape, v: RowShape) -> Self {
        Self { layers: vec![LayerShape { k, v }; n_layer], v_trans: false, n_rot_k: 0, n_rot_v: 0 }
    }

    /// Whether the rows of `half` lie channel by channel.
    pub fn is_transposed(&self, half: Half) -> bool {
        self.v_trans && half == Half::V
    }

    /// By how much `half` is rotated.
    pub fn rotation(&self, half: Half) -> u32 {
        match half {
            Half::K => self.n_rot_k,
            Half::V => self.n_rot_v,
        }
    }

    /// Whether the rows of a file, which this describes, are such as those of a decoder's cache.
    pub(super) fn compare(&self, expected: &Self) -> Result<(), StateFileError> {
        if self.v_trans != expected.v_trans {
            return Err(StateFileError::Transposition {
                found: self.v_trans.into(),
                expected: expected.v_trans.into(),
            });
        }
        if self.layers.len() != expected.layers.len() {
            return Err(StateFileError::LayerCount { found: self.layers.len(), expected: expected.layers.len() });
        }
        for half in Half::BOTH {
            let (found, expected) = (self.rotation(half), expected.rotation(half));
            if found != expected {
                return Err(StateFileError::Rotation { half, found, expected });
            }
        }
        for half in Half::BOTH {
            for (layer, (found, expected)) in self.layers.iter().zip(&expected.layers).enumerate() {
                let (found, expected) = (found.half(half), expected.half(half));
                if found.tensor_type != expected.tensor_type {
                    let (found, expected) = (found.tensor_type, expected.tensor_type);
                    return Err(StateFileError::Type { layer, half, found, expected });
                }
                if found.width != expected.width {
                    return Err(StateFileError::RowWidth { layer, half, found: found.width, expected: expected.width });
                }
            }
        }
        Ok(())
    }

    /// Whether a state file can hold such a cache.
    pub(super) fn check(&self) -> Result<(), StateFileError> {
        check_layer_count(self.layers.len())?;
        for (index, layer) in self.layers.iter().enumerate() {
            check_half(index, Half::K, layer.k, false)?;
            check_half(index, Half::V, layer.v, self.v_trans)?;
        }
        Ok(())
    }
}

pub(super) fn check_layer_count(count: usize) -> Result<(), StateFileError> {
    if count == 0 || count > MAX_LAYERS as usize {
        return Err(StateFileError::Count { field: "n_layer", count: count as u64, least: 1, most: MAX_LAYERS.into() });
    }
    Ok(())
}

pub(super) fn check_half(layer: usize, half: Half, shape: RowShape, is_transposed: bool) -> Result<(), StateFileError> {
    let RowShape { tensor_type, width } = shape;
    // An element of a block has no address of its own, so llama.cpp wants flash attention for a quantized V.
    if is_transposed && tensor_type.is_quantized() {
        return Err(StateFileError::QuantizedTransposed { layer, tensor_type });
    }
    match shape.row_bytes() {
        Some(1..=MAX_ROW_BYTES) => Ok(()),
        _ => Err(StateFileError::Width { layer, half, tensor_type, width }),
    }
}
