//! The types that store one element a block: f32, f16 and bf16, little-endian.
//!
//! The conversions of `half` use the processor's vector instructions, and need aligned elements. A row whose bytes are not
//! aligned passes through short pieces that lie on the stack. Lengths were checked by the caller.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements converted at a time: enough for the vector loop, small enough for the stack.
const PIECE: usize = 256;

pub(super) fn encode_f32(values: &[f32], row: &mut [u8]) {
    for (value, bytes) in values.iter().zip(row.as_chunks_mut::<4>().0) {
        *bytes = value.to_le_bytes();
    }
}

pub(super) fn decode_f32(row: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(row.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn encode_f16(values: &[f32], row: &mut [u8]) {
    if cfg!(target_endian = "little")
        && let Ok(narrow) = bytemuck::try_cast_slice_mut::<u8, f16>(row)
    {
        narrow.convert_from_f32_slice(values);
        return;
    }
    let mut narrow = [f16::ZERO; PIECE];
    for (piece, bytes) in values.chunks(PIECE).zip(row.chunks_mut(2 * PIECE)) {
        let narrow = &mut narrow[..piece.len()];
        narrow.convert_from_f32_slice(piece);
        store_f16(narrow, bytes);
    }
}

pub(super) fn decode_f16(row: &[u8], values: &mut [f32]) {
    if cfg!(target_endian = "little")
        && let Ok(narrow) = bytemuck::try_cast_slice::<u8, f16>(row)
    {
        narrow.convert_to_f32_slice(values);
        return;
    }
    let mut narrow = [f16::ZERO; PIECE];
    for (piece, bytes) in values.chunks_mut(PIECE).zip(row.chunks(2 * PIECE)) {
        let narrow = &mut narrow[..piece.len()];
        load_f16(bytes, narrow);
        narrow.convert_to_f32_slice(piece);
    }
}

pub(super) fn store_f16(values: &[f16], row: &mut [u8]) {
    for (value, bytes) in values.iter().zip(row.as_chunks_mut::<2>().0) {
        *bytes = value.to_le_bytes();
    }
}

pub(super) fn load_f16(row: &[u8], values: &mut [f16]) {
    for (value, bytes) in values.iter_mut().zip(row.as_chunks::<2>().0) {
        *value = f16::from_le_bytes(*bytes);
    }
}

// bf16 is the upper half of an f32: the compiler makes a vector loop of it without help.

pub(super) fn encode_bf16(values: &[f32], row: &mut [u8]) {
    for (value, bytes) in values.iter().zip(row.as_chunks_mut::<2>().0) {
        *bytes = bf16::from_f32(*value).to_le_bytes();
    }
}

pub(super) fn decode_bf16(row: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(row.as_chunks::<2>().0) {
        *value = bf16::from_le_bytes(*bytes).to_f32();
    }
}
