//! The mistakes that can be told from the rows: a table, each with the ways in which the rows read right if it was made.
//!
//! A mistake is undone as the found rows are read. If they then agree with the expected ones, it was made. To add one: a
//! variant, its words, and a function in the file of its group.

mod exchanges;
mod positions;
mod rope;
mod storage;

use kvshare::layout::TensorType;

use super::rope::{Pairing, Rope};
use super::side::{Place, Reading, Side};

/// What a provider can do wrong with right numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// The row of position p lies at p + 1.
    RowsLate,
    /// The row of position p lies at p - 1.
    RowsEarly,
    /// K lies where V belongs, and V where K does.
    HalvesExchanged,
    /// A layer has another layer's rows.
    LayersExchanged,
    /// V lies channel by channel in a cache that keeps it by position.
    ByChannel,
    /// V lies by position in a cache that keeps it channel by channel.
    ByPosition,
    /// The elements are of another type, `written`, than the cache's, `wanted`.
    OtherType {
        /// The type they have.
        written: TensorType,
        /// The type they should have.
        wanted: TensorType,
    },
    /// The bytes of each element are in the other order.
    BytesReversed,
    /// The rows are rotated by `written`, where the cache is by `wanted`; 0 is not at all.
    OtherRotation {
        /// By how much they are.
        written: u32,
        /// By how much they should be.
        wanted: u32,
    },
    /// K was stored before RoPE.
    BeforeRope,
    /// RoPE paired other channels than the model, which pairs `wanted`.
    OtherPairing {
        /// The model's pairing.
        wanted: Pairing,
    },
    /// RoPE turned K as if each position were one later.
    TurnedLate,
    /// RoPE turned K as if each position were one earlier.
    TurnedEarly,
}

/// What a mistake is looked for in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect<'a> {
    /// The found cache.
    pub found: &'a Side,
    /// Whose rows are off.
    pub place: Place,
    /// How the model turns K, if that is known.
    pub rope: Option<&'a Rope>,
}

/// A mistake, and how its rows are to be read.
pub(super) type Hypothesis<'a> = (Mistake, Reading<'a>);

/// The groups; the first of two that explain as much is named.
const GROUPS: [for<'a> fn(&Suspect<'a>) -> Vec<Hypothesis<'a>>; 4] =
    [positions::of, exchanges::of, storage::of, rope::of];

impl<'a> Suspect<'a> {
    /// Everything that can be looked for.
    pub fn hypotheses(&self) -> impl Iterator<Item = Hypothesis<'a>> {
        GROUPS.into_iter().flat_map(|group| group(self))
    }

    /// How the rows should be read.
    fn right(&self) -> Reading<'a> {
        Reading::right(self.found.tensor(self.place).clone())
    }
}

impl Mistake {
    /// Its name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::RowsLate => "rows_late",
            Self::RowsEarly => "rows_early",
            Self::HalvesExchanged => "k_and_v_exchanged",
            Self::LayersExchanged => "layers_exchanged",
            Self::ByChannel => "v_by_channel",
            Self::ByPosition => "v_by_position",
            Self::OtherType { .. } => "other_type",
            Self::BytesReversed => "bytes_reversed",
            Self::OtherRotation { wanted: 0, .. } => "rotated",
            Self::OtherRotation { written: 0, .. } => "not_rotated",
            Self::OtherRotation { .. } => "other_rotation",
            Self::BeforeRope => "before_rope",
            Self::OtherPairing { .. } => "other_rope_pairing",
            Self::TurnedLate => "rope_position_late",
            Self::TurnedEarly => "rope_position_early",
        }
    }

    /// What was done, as a sentence without its end.
    pub fn words(self) -> String {
        match self {
            Self::RowsLate => "each row lies one place too late, that of position p at p + 1".to_owned(),
            Self::RowsEarly => "each row lies one place too early, that of position p at p - 1".to_owned(),
            Self::HalvesExchanged => "K and V are exchanged".to_owned(),
            Self::LayersExchanged => "they are other layers' rows".to_owned(),
            Self::ByChannel => "V lies channel by channel, and this cache keeps it by position".to_owned(),
            Self::ByPosition => "V lies by position, and this cache keeps it channel by channel".to_owned(),
            Self::OtherType { written, wanted } => format!("the elements are {written}, and this cache's are {wanted}"),
            Self::BytesReversed => "the bytes of each element are in reverse order".to_owned(),
            Self::OtherRotation { written: 0, wanted } => {
                format!("the rows are not rotated, and this cache's are, by {wanted}")
            }
            Self::OtherRotation { written, wanted: 0 } => {
                format!("the rows are rotated by {written}, and this cache's are not")
            }
            Self::OtherRotation { written, wanted } => {
                format!("the rows are rotated by {written}, and this cache's by {wanted}")
            }
            Self::BeforeRope => "K was stored before RoPE".to_owned(),
            Self::OtherPairing { wanted } => {
                format!("RoPE paired {}, and this model pairs {wanted}", wanted.other())
            }
            Self::TurnedLate => "RoPE turned K by one position too many".to_owned(),
            Self::TurnedEarly => "RoPE turned K by one position too few".to_owned(),
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::RowsLate => {
                "write the row of token number i, counted from 0, at position i; prefill no token of your own"
            }
            Self::RowsEarly => "write the row of token number i, counted from 0, at position i, the first one too",
            Self::HalvesExchanged => {
                "find the tensors by their names: keys belong into cache_k_l<L>, values into cache_v_l<L>"
            }
            Self::LayersExchanged => {
                "find the tensors by their names: layer L's rows belong into cache_k_l<L> and cache_v_l<L>"
            }
            Self::ByChannel => "write V by position, as params.v_trans of the header (false) says",
            Self::ByPosition => {
                "write element c of position p at c * cells + p, as params.v_trans of the header (true) says"
            }
            Self::OtherType { .. } => "convert each row to the tensor's own type, at that type's row length",
            Self::BytesReversed => "write elements little-endian",
            Self::OtherRotation { wanted: 0, .. } => "leave the rotation out: n_rot_k (n_rot_v) of the header is 0",
            Self::OtherRotation { .. } => {
                "multiply each block of n_rot_k (n_rot_v) values by the Hadamard matrix before it is quantized \
                 (the protocol, section 6.6)"
            }
            Self::BeforeRope => "apply RoPE to K before it is written: the decoder reads K as it is stored",
            Self::OtherPairing { wanted: Pairing::Neighbours } => {
                "pair neighbours: the GGUF's weights of this architecture are permuted for that"
            }
            Self::OtherPairing { wanted: Pairing::Halves } => "pair the halves of a head",
            Self::TurnedLate | Self::TurnedEarly => "count positions from 0 where RoPE is computed",
        }
    }
}
