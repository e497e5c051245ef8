//! The rotation of a quantized cache.
//!
//! A few channels of K and V are far larger than the rest, which wastes the few levels of a quantized block. So
//! llama.cpp multiplies each piece of n elements by a Hadamard matrix before it quantizes, which spreads every element
//! over the whole piece, and rotates the query alike (`ggml_gen_hadamard` and the constructor of `llama_kv_cache` in
//! `src/llama-kv-cache.cpp`). Rows written unrotated into such a cache are read as nonsense, with no error.

use super::ValuesError;
use crate::layout::TensorType;

/// The smallest piece that llama.cpp rotates; a head size that it does not divide is not rotated.
const SMALLEST: u32 = 64;

/// Rotates every `size` elements of a row by the normalized Hadamard matrix: x·H, with
/// `H[i][j] = (-1)^popcount(i & j) / sqrt(size)`.
///
/// The rotation is its own inverse. `size` is `n_rot_k` or `n_rot_v`; 0 leaves the row as it is. It belongs before
/// [`encode_row`](super::encode_row), and after [`decode_row`](super::decode_row).
///
/// # Errors
///
/// [`ValuesError::RotationSize`] where `size` is neither 0 nor a power of two that divides the row.
///
/// ```
/// let mut row = [1.0, 0.0, 0.0, 0.0];
/// kvshare::values::rotate(&mut row, 4)?;
/// assert_eq!(row, [0.5; 4]);
/// kvshare::values::rotate(&mut row, 4)?;
/// assert_eq!(row, [1.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), kvshare::values::ValuesError>(())
/// ```
pub fn rotate(values: &mut [f32], size: u32) -> Result<(), ValuesError> {
    if size == 0 {
        return Ok(());
    }
    let piece_length = size as usize;
    if !size.is_power_of_two() || !values.len().is_multiple_of(piece_length) {
        return Err(ValuesError::RotationSize { size, elements: values.len() });
    }
    let normalization = 1.0 / (size as f32).sqrt();
    for piece in values.chunks_exact_mut(piece_length) {
        walsh_hadamard(piece);
        piece.iter_mut().for_each(|value| *value *= normalization);
    }
    Ok(())
}

/// The fast Walsh-Hadamard transform: log2(n) passes of sums and differences instead of a matrix of n by n.
fn walsh_hadamard(piece: &mut [f32]) {
    let mut distance = 1;
    while distance < piece.len() {
        for pair in piece.chunks_exact_mut(2 * distance) {
            let (lower, upper) = pair.split_at_mut(distance);
            for (a, b) in lower.iter_mut().zip(upper) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
}

/// By how much llama.cpp rotates K rows of this type (`n_rot_k`): the largest power of two, from 64 up, that divides
/// the head size; 0 for types that are not quantized and for head sizes that 64 does not divide.
///
/// ```
/// use kvshare::layout::TensorType;
/// use kvshare::values::key_rotation;
///
/// assert_eq!(key_rotation(TensorType::Q8_0, 64), 64);
/// assert_eq!(key_rotation(TensorType::Q8_0, 128), 128);
/// assert_eq!(key_rotation(TensorType::Q8_0, 192), 64);
/// assert_eq!(key_rotation(TensorType::Q8_0, 80), 0);
/// assert_eq!(key_rotation(TensorType::F16, 128), 0);
/// ```
pub fn key_rotation(tensor_type: TensorType, head_size: u32) -> u32 {
    match value_rotation(tensor_type, head_size) {
        0 => 0,
        _ => 1 << head_size.trailing_zeros(),
    }
}

/// By how much llama.cpp rotates V rows of this type (`n_rot_v`): 64, or 0 for types that are not quantized and for
/// head sizes that 64 does not divide.
pub fn value_rotation(tensor_type: TensorType, head_size: u32) -> u32 {
    let is_rotated = tensor_type.is_quantized() && head_size != 0 && head_size.is_multiple_of(SMALLEST);
    if is_rotated { SMALLEST } else { 0 }
}
