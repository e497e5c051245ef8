//! The quantized types: blocks of 32 elements behind a scale.
//!
//! Layouts are the block structs of `ggml/src/ggml-common.h`; rounding is that of the `quantize_row_*_ref` functions
//! in `ggml/src/ggml-quants.c`, which are what a stock CPU build stores, but for ties. Element j and element j + 16 of
//! a block share a byte, the first in its lower four bits. Rust's float-to-integer casts saturate and turn NaN to 0,
//! so no input can panic.

use half::f16;

/// Elements in a block, of every quantized type.
const BLOCK: usize = 32;

/// The unevenly spaced values of iq4_nl (`kvalues_iq4nl` in `ggml/src/ggml-common.h`).
const IQ4_NL_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A block whose largest element is below this is all zero in iq4_nl (`GROUP_MAX_EPS` in `ggml/src/ggml-quants.c`).
const IQ4_NL_SMALLEST: f32 = 1e-15;

type Elements = [f32; BLOCK];
type Levels = [u8; BLOCK];

/// Encodes a row block by block; the caller has checked the lengths.
pub(super) fn encode<const N: usize>(values: &[f32], row: &mut [u8], encode_block: impl Fn(&Elements) -> [u8; N]) {
    for (elements, block) in values.as_chunks().0.iter().zip(row.as_chunks_mut().0) {
        *block = encode_block(elements);
    }
}

/// Decodes a row block by block; the caller has checked the lengths.
pub(super) fn decode<const N: usize>(row: &[u8], values: &mut [f32], decode_block: impl Fn(&[u8; N]) -> Elements) {
    for (block, elements) in row.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
        *elements = decode_block(block);
    }
}

pub(super) fn encode_q8_0(elements: &Elements) -> [u8; 34] {
    let largest = elements.iter().fold(0.0, |largest: f32, element| largest.max(element.abs()));
    let scale = largest / 127.0;
    let inverse = inverse_of(scale);
    let mut block = [0; 34];
    let (head, levels) = block.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (level, element) in levels.iter_mut().zip(elements) {
        *level = ((element * inverse).round() as i8).cast_unsigned();
    }
    block
}

pub(super) fn decode_q8_0(block: &[u8; 34]) -> Elements {
    let scale = half_at(block, 0);
    std::array::from_fn(|j| f32::from(block[2 + j].cast_signed()) * scale)
}

pub(super) fn encode_q4_0(elements: &Elements) -> [u8; 18] {
    let (scale, levels) = signed_levels(elements, 8);
    assemble([&half_bytes(scale), &nibbles(&levels)])
}

pub(super) fn decode_q4_0(block: &[u8; 18]) -> Elements {
    let scale = half_at(block, 0);
    four_bit_levels(block).map(|level| (f32::from(level) - 8.0) * scale)
}

pub(super) fn encode_q4_1(elements: &Elements) -> [u8; 20] {
    let (scale, smallest, levels) = levels_from_smallest(elements, 15);
    assemble([&half_bytes(scale), &half_bytes(smallest), &nibbles(&levels)])
}

pub(super) fn decode_q4_1(block: &[u8; 20]) -> Elements {
    let (scale, smallest) = (half_at(block, 0), half_at(block, 2));
    four_bit_levels(block).map(|level| f32::from(level) * scale + smallest)
}

pub(super) fn encode_q5_0(elements: &Elements) -> [u8; 22] {
    let (scale, levels) = signed_levels(elements, 16);
    assemble([&half_bytes(scale), &fifth_bits(&levels), &nibbles(&levels)])
}

pub(super) fn decode_q5_0(block: &[u8; 22]) -> Elements {
    let scale = half_at(block, 0);
    five_bit_levels(block, 2).map(|level| (f32::from(level) - 16.0) * scale)
}

pub(super) fn encode_q5_1(elements: &Elements) -> [u8; 24] {
    let (scale, smallest, levels) = levels_from_smallest(elements, 31);
    assemble([&half_bytes(scale), &half_bytes(smallest), &fifth_bits(&levels), &nibbles(&levels)])
}

pub(super) fn decode_q5_1(block: &[u8; 24]) -> Elements {
    let (scale, smallest) = (half_at(block, 0), half_at(block, 2));
    five_bit_levels(block, 4).map(|level| f32::from(level) * scale + smallest)
}

/// As `quantize_row_iq4_nl_ref`: the levels are chosen with the scale that the largest element gives, and then the
/// scale is the one that fits these levels best, each element weighted by its square.
pub(super) fn encode_iq4_nl(elements: &Elements) -> [u8; 18] {
    let extreme = extreme_of(elements);
    if extreme.abs() < IQ4_NL_SMALLEST {
        return [0; 18];
    }
    let inverse = 1.0 / (extreme / f32::from(IQ4_NL_VALUES[0]));
    let levels = elements.map(|element| nearest_iq4_nl(element * inverse));
    let (mut products, mut squares) = (0.0, 0.0);
    for (element, level) in elements.iter().zip(levels) {
        let (value, weight) = (f32::from(IQ4_NL_VALUES[usize::from(level)]), element * element);
        products += weight * value * element;
        squares += weight * value * value;
    }
    assemble([&half_bytes(products / squares), &nibbles(&levels)])
}

pub(super) fn decode_iq4_nl(block: &[u8; 18]) -> Elements {
    let scale = half_at(block, 0);
    four_bit_levels(block).map(|level| f32::from(IQ4_NL_VALUES[usize::from(level)]) * scale)
}

/// The index of the value nearest to `scaled`; the upper one of two that are equally near.
fn nearest_iq4_nl(scaled: f32) -> u8 {
    let is_reached = |pair: &&[i8]| 2.0 * scaled >= f32::from(pair[0]) + f32::from(pair[1]);
    IQ4_NL_VALUES.windows(2).take_while(is_reached).count() as u8
}

/// The scale and levels of a type whose level `middle` stands for zero, with the largest element at level 0.
fn signed_levels(elements: &Elements, middle: u8) -> (f32, Levels) {
    let scale = extreme_of(elements) / -f32::from(middle);
    let inverse = inverse_of(scale);
    let levels = elements.map(|element| ((element * inverse + f32::from(middle) + 0.5) as u8).min(2 * middle - 1));
    (scale, levels)
}

/// The scale, the smallest element and the levels of a type whose level 0 stands for its smallest element.
fn levels_from_smallest(elements: &Elements, highest: u8) -> (f32, f32, Levels) {
    let smallest = elements.iter().copied().fold(f32::MAX, f32::min);
    let largest = elements.iter().copied().fold(f32::MIN, f32::max);
    let scale = (largest - smallest) / f32::from(highest);
    let inverse = inverse_of(scale);
    let levels = elements.map(|element| (((element - smallest) * inverse + 0.5) as u8).min(highest));
    (scale, smallest, levels)
}

/// The element farthest from zero, with its sign; the first of several.
fn extreme_of(elements: &Elements) -> f32 {
    elements.iter().fold(0.0, |extreme: f32, &element| if extreme.abs() < element.abs() { element } else { extreme })
}

fn inverse_of(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn half_bytes(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

fn nibbles(levels: &Levels) -> [u8; 16] {
    std::array::from_fn(|j| (levels[j] & 0x0f) | (levels[j + 16] << 4))
}

fn fifth_bits(levels: &Levels) -> [u8; 4] {
    let bits = levels.iter().enumerate().fold(0, |bits, (j, level)| bits | (u32::from(level >> 4) << j));
    bits.to_le_bytes()
}

/// The nibbles are the last 16 bytes of every block that has them.
fn four_bit_levels<const N: usize>(block: &[u8; N]) -> Levels {
    let nibbles = &block[N - 16..];
    std::array::from_fn(|j| if j < 16 { nibbles[j] & 0x0f } else { nibbles[j - 16] >> 4 })
}

fn five_bit_levels<const N: usize>(block: &[u8; N], fifth_bits_at: usize) -> Levels {
    let low = four_bit_levels(block);
    let at = |k: usize| block[fifth_bits_at + k];
    let fifth = u32::from_le_bytes([at(0), at(1), at(2), at(3)]);
    std::array::from_fn(|j| low[j] | ((fifth >> j & 1) as u8) << 4)
}

/// A block from its parts, which fill it exactly.
fn assemble<const N: usize, const PARTS: usize>(parts: [&[u8]; PARTS]) -> [u8; N] {
    let mut block = [0; N];
    for (byte, part) in block.iter_mut().zip(parts.into_iter().flatten()) {
        *byte = *part;
    }
    block
}
