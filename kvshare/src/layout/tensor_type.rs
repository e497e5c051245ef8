//! The element types that a KV cache can have, with ggml's numbers and block sizes.

use std::fmt;
use std::str::FromStr;

/// A ggml element type that a KV cache tensor can have.
///
/// Quantized types store blocks of 32 elements; the others store one element a block. Numbers, names and block sizes
/// are those of ggml (`enum ggml_type` in `ggml/include/ggml.h`, the block structs in `ggml/src/ggml-common.h`).
///
/// ```
/// use kvshare::layout::TensorType;
///
/// assert_eq!(TensorType::F16.row_bytes(192), Some(384));
/// assert_eq!(TensorType::Q8_0.row_bytes(192), Some(204));
/// assert_eq!(TensorType::Q8_0.row_bytes(100), None, "32 does not divide 100");
/// assert_eq!("q8_0".parse(), Ok(TensorType::Q8_0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float, the default of llama.cpp's caches.
    F16,
    /// 16-bit brain float.
    Bf16,
    /// 8-bit blocks: an f16 scale and 32 signed bytes.
    Q8_0,
    /// 4-bit blocks: an f16 scale and 32 nibbles.
    Q4_0,
    /// 4-bit blocks with an f16 scale and an f16 minimum.
    Q4_1,
    /// 5-bit blocks with an f16 scale.
    Q5_0,
    /// 5-bit blocks with an f16 scale and an f16 minimum.
    Q5_1,
    /// 4-bit blocks over a table of unevenly spaced values.
    Iq4Nl,
}

/// Elements of one block of any quantized type here (`QK8_0`, `QK4_0` and so on in `ggml/src/ggml-common.h`).
const QUANTIZED_BLOCK: u64 = 32;

impl TensorType {
    /// Every type, in the order of ggml's numbers.
    pub const ALL: [Self; 9] =
        [Self::F32, Self::F16, Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Iq4Nl, Self::Bf16];

    /// ggml's number for this type.
    pub const fn ggml_number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Iq4Nl => 20,
            Self::Bf16 => 30,
        }
    }

    /// The type with ggml's number `number`, if a KV cache can have it.
    pub fn from_ggml_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|candidate| candidate.ggml_number() == number)
    }

    /// ggml's name for this type, as `llama-server --cache-type-k` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Iq4Nl => "iq4_nl",
        }
    }

    /// How many elements one block holds: 1, or 32 for a quantized type.
    pub const fn block_elements(self) -> u64 {
        if self.is_quantized() { QUANTIZED_BLOCK } else { 1 }
    }

    /// How many whole blocks `elements` fill. A row's address needs it, so it must not cost a division.
    #[inline]
    pub(super) const fn blocks_in(self, elements: u64) -> u64 {
        if self.is_quantized() { elements / QUANTIZED_BLOCK } else { elements }
    }

    /// How many bytes one block takes.
    #[inline]
    pub const fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
        }
    }

    /// Whether elements share a block, so that a single one has no address of its own.
    #[inline]
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The bytes of a row of `elements`, or `None` where a block does not divide it or the size overflows.
    pub const fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A name that is no element type a KV cache can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no KV cache type; use f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl")]
pub struct UnknownTensorType {
    /// The name as it was given.
    pub name: String,
}

impl FromStr for TensorType {
    type Err = UnknownTensorType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|candidate| candidate.name() == name)
            .ok_or_else(|| UnknownTensorType { name: name.chars().take(64).collect() })
    }
}
