//! Whole rows: checks the lengths, then hands each type to the file that knows it.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::ValuesError;
use super::{blocks, floats};
use crate::layout::TensorType;

/// f16 rows of another type pass through f32 in pieces of this many elements, a multiple of every block.
const PIECE: usize = 256;

/// Writes `values` into `row` as elements of `tensor_type`.
///
/// Quantized types are rounded as ggml's reference quantizers do (`quantize_row_q8_0_ref` and its siblings in
/// `ggml/src/ggml-quants.c`). A NaN or an infinity makes a meaningless block, never a panic.
///
/// # Errors
///
/// [`ValuesError::PartialBlock`] where a block does not divide `values`, [`ValuesError::RowLength`] where `row` is not
/// exactly [`TensorType::row_bytes`] long. Nothing is written then.
pub fn encode_row(tensor_type: TensorType, values: &[f32], row: &mut [u8]) -> Result<(), ValuesError> {
    check_lengths(tensor_type, values.len(), row.len())?;
    match tensor_type {
        TensorType::F32 => floats::encode_f32(values, row),
        TensorType::F16 => floats::encode_f16(values, row),
        TensorType::Bf16 => floats::encode_bf16(values, row),
        TensorType::Q8_0 => blocks::encode(values, row, blocks::encode_q8_0),
        TensorType::Q4_0 => blocks::encode(values, row, blocks::encode_q4_0),
        TensorType::Q4_1 => blocks::encode(values, row, blocks::encode_q4_1),
        TensorType::Q5_0 => blocks::encode(values, row, blocks::encode_q5_0),
        TensorType::Q5_1 => blocks::encode(values, row, blocks::encode_q5_1),
        TensorType::Iq4Nl => blocks::encode(values, row, blocks::encode_iq4_nl),
    }
    Ok(())
}

/// Reads the elements of `row`, which are of `tensor_type`, into `values`.
///
/// # Errors
///
/// Those of [`encode_row`].
pub fn decode_row(tensor_type: TensorType, row: &[u8], values: &mut [f32]) -> Result<(), ValuesError> {
    check_lengths(tensor_type, values.len(), row.len())?;
    match tensor_type {
        TensorType::F32 => floats::decode_f32(row, values),
        TensorType::F16 => floats::decode_f16(row, values),
        TensorType::Bf16 => floats::decode_bf16(row, values),
        TensorType::Q8_0 => blocks::decode(row, values, blocks::decode_q8_0),
        TensorType::Q4_0 => blocks::decode(row, values, blocks::decode_q4_0),
        TensorType::Q4_1 => blocks::decode(row, values, blocks::decode_q4_1),
        TensorType::Q5_0 => blocks::decode(row, values, blocks::decode_q5_0),
        TensorType::Q5_1 => blocks::decode(row, values, blocks::decode_q5_1),
        TensorType::Iq4Nl => blocks::decode(row, values, blocks::decode_iq4_nl),
    }
    Ok(())
}

/// [`encode_row`] for numbers that are already f16; a row of f16 is a plain copy.
///
/// # Errors
///
/// Those of [`encode_row`].
pub fn encode_row_f16(tensor_type: TensorType, values: &[f16], row: &mut [u8]) -> Result<(), ValuesError> {
    check_lengths(tensor_type, values.len(), row.len())?;
    if tensor_type == TensorType::F16 {
        floats::store_f16(values, row);
        return Ok(());
    }
    let mut wide = [0.0; PIECE];
    for (piece, bytes) in values.chunks(PIECE).zip(row.chunks_mut(piece_bytes(tensor_type))) {
        let wide = &mut wide[..piece.len()];
        piece.convert_to_f32_slice(wide);
        encode_row(tensor_type, wide, bytes)?;
    }
    Ok(())
}

/// [`decode_row`] into f16; a row of f16 is a plain copy. What f16 cannot hold becomes an infinity.
///
/// # Errors
///
/// Those of [`encode_row`].
pub fn decode_row_f16(tensor_type: TensorType, row: &[u8], values: &mut [f16]) -> Result<(), ValuesError> {
    check_lengths(tensor_type, values.len(), row.len())?;
    if tensor_type == TensorType::F16 {
        floats::load_f16(row, values);
        return Ok(());
    }
    let mut wide = [0.0; PIECE];
    for (piece, bytes) in values.chunks_mut(PIECE).zip(row.chunks(piece_bytes(tensor_type))) {
        let wide = &mut wide[..piece.len()];
        decode_row(tensor_type, bytes, wide)?;
        piece.convert_from_f32_slice(wide);
    }
    Ok(())
}

fn check_lengths(tensor_type: TensorType, elements: usize, given: usize) -> Result<(), ValuesError> {
    let needed = tensor_type.row_bytes(elements as u64).ok_or(ValuesError::PartialBlock { tensor_type, elements })?;
    if needed != given as u64 {
        return Err(ValuesError::RowLength { tensor_type, elements, needed, given });
    }
    Ok(())
}

/// The bytes of [`PIECE`] elements.
fn piece_bytes(tensor_type: TensorType) -> usize {
    PIECE / tensor_type.block_elements() as usize * tensor_type.block_bytes() as usize
}
