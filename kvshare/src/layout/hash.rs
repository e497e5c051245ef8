//! The layout hash: 64 bits that say which types and shapes lie in a region, and in what order.
//!
//! It mixes whole numbers, not bytes, and knows no names: a region that starts with K and one that starts with V of the
//! same shape hash alike. That is why a header also carries a digest.

use super::Tensor;

/// The hash of a region without a tensor.
pub const EMPTY_HASH: u64 = 1_469_598_103_934_665_603;

/// The multiplier, which is FNV-1a's 64-bit prime.
const PRIME: u64 = 1_099_511_628_211;

/// The layout hash of a region that holds `tensors` in this order.
pub fn layout_hash<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    tensors.into_iter().fold(EMPTY_HASH, |hash, tensor| {
        let numbers = std::iter::once(u64::from(tensor.tensor_type().ggml_number())).chain(tensor.ne());
        numbers.fold(hash, |hash, number| (hash ^ number).wrapping_mul(PRIME))
    })
}
