//! How far right rows may be apart.
//!
//! Two right implementations differ by their arithmetic and by the rounding of the cache's type. The first is large where
//! one of them rounds activations: between llama-server and an f32 implementation up to 2.6 % for K and 5.9 % for V were
//! seen in correct runs, and 4 % and 8 % hold (docs, "Facts about llama.cpp"). The second was measured with the embedded
//! model, 92 tokens, caches of each type for K and V against one of f32, in the layer where it is largest: f16 0.05 %, bf16
//! 0.3 %, q8_0 1.3 %, q5_1 6.4 %, q5_0 9.4 %, q4_0 16.5 %, q4_1 16.9 %, iq4_nl 19.3 %. K of a coarse type makes V coarse,
//! too, since attention reads it.

use kvshare::layout::TensorType;
use kvshare::state_file::Half;

/// What other arithmetic makes of K and of V, whatever the cache's type.
const ARITHMETIC: Tolerance = Tolerance { k: 0.04, v: 0.08 };

/// How many times the tolerance one row may be off by: less than 3 times was seen between right implementations.
const ROW_FACTOR: f64 = 4.0;

/// How far K and V of a layer may be off, as a part of the expected rows' norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// K.
    pub k: f64,
    /// V.
    pub v: f64,
}

impl Tolerance {
    /// One that suits caches in which K or V has these types.
    ///
    /// ```
    /// use kvshare::layout::TensorType;
    /// use kvshare_cli::verify::Tolerance;
    ///
    /// assert_eq!(Tolerance::of_types([TensorType::F16]), Tolerance { k: 0.04, v: 0.08 });
    /// assert_eq!(Tolerance::of_types([TensorType::Q4_0, TensorType::F16]).k, 0.25);
    /// ```
    pub fn of_types(types: impl IntoIterator<Item = TensorType>) -> Self {
        let rounding = types.into_iter().map(rounding).fold(0.0, f64::max);
        ARITHMETIC.or_larger(Self::given(rounding))
    }

    /// One for K and V.
    pub fn given(tolerance: f64) -> Self {
        Self { k: tolerance, v: tolerance }
    }

    /// The larger of both.
    pub fn or_larger(self, other: Self) -> Self {
        Self { k: self.k.max(other.k), v: self.v.max(other.v) }
    }

    /// Of all rows together.
    pub fn of(self, half: Half) -> f64 {
        if half == Half::K { self.k } else { self.v }
    }

    /// Of one row.
    pub fn of_row(self, half: Half) -> f64 {
        ROW_FACTOR * self.of(half)
    }
}

/// The most that rounding to a type may make of K or V: the measured figures, and half as much again where they are over
/// what arithmetic does.
fn rounding(tensor_type: TensorType) -> f64 {
    match tensor_type {
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Iq4Nl => 0.25,
        TensorType::Q5_0 | TensorType::Q5_1 => 0.14,
        _ => 0.02,
    }
}
