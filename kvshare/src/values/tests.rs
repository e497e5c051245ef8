//! Each type against small rows worked out by hand, and against itself.

use half::f16;
use proptest::prelude::*;

use super::*;

/// 32 elements, of which only the first few are not 0.
fn block(start: &[f32]) -> Vec<f32> {
    let mut block = start.to_vec();
    block.resize(32, 0.0);
    block
}

fn encoded(tensor_type: TensorType, values: &[f32]) -> Vec<u8> {
    let mut row = vec![0xee; tensor_type.row_bytes(values.len() as u64).expect("whole blocks") as usize];
    encode_row(tensor_type, values, &mut row).expect("the row is as long as it should be");
    row
}

fn decoded(tensor_type: TensorType, row: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; elements];
    decode_row(tensor_type, row, &mut values).expect("the row is as long as it should be");
    values
}

/// How far a number may move when a block with numbers up to `largest` is stored and read again.
fn bound(tensor_type: TensorType, largest: f32) -> f32 {
    let relative = match tensor_type {
        TensorType::F32 => 0.0,
        TensorType::F16 => 0.000_5,
        TensorType::Bf16 => 0.004,
        TensorType::Q8_0 => 0.5 / 127.0 + 0.000_6,
        // Half a step, or a whole one at the end where no level is left.
        TensorType::Q4_0 => 1.0 / 8.0 + 0.001,
        TensorType::Q5_0 => 1.0 / 16.0 + 0.001,
        TensorType::Q4_1 => 2.0 / 15.0 / 2.0 + 0.002,
        TensorType::Q5_1 => 2.0 / 31.0 / 2.0 + 0.002,
        // The scale is fitted, so that even the largest element moves.
        TensorType::Iq4Nl => 0.16,
    };
    relative * largest + 1e-7
}

#[test]
fn one_block_of_each_type_has_the_bytes_that_ggml_gives_it() {
    let rows: [(TensorType, Vec<f32>, Vec<u8>); 9] = [
        (TensorType::F32, vec![1.0, -2.5], vec![0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0]),
        (TensorType::F16, vec![1.0, -2.5], vec![0, 0x3c, 0, 0xc1]),
        (TensorType::Bf16, vec![1.0, -2.5], vec![0x80, 0x3f, 0x20, 0xc0]),
        // Scale 1: elements are their own levels, halves away from zero.
        (TensorType::Q8_0, block(&[127.0, -127.0, 2.5, -2.5]), {
            [&[0, 0x3c, 127, 0x81, 3, 0xfd][..], &[0; 28]].concat()
        }),
        // The element farthest from zero is level 0, and so the scale takes its sign.
        (TensorType::Q4_0, block(&[-8.0, 7.0]), [&[0, 0x3c, 0x80, 0x8f][..], &[0x88; 14]].concat()),
        (TensorType::Q4_0, block(&[8.0, -7.0]), [&[0, 0xbc, 0x80, 0x8f][..], &[0x88; 14]].concat()),
        (TensorType::Q4_1, block(&[-1.0, 14.0]), [&[0, 0x3c, 0, 0xbc, 0x10, 0x1f][..], &[0x11; 14]].concat()),
        (TensorType::Q5_0, block(&[-16.0, 15.0]), {
            [&[0, 0x3c, 0xfe, 0xff, 0xff, 0xff, 0x00, 0x0f][..], &[0; 14]].concat()
        }),
        (TensorType::Q5_1, block(&[-1.0, 30.0]), {
            [&[0, 0x3c, 0, 0xbc, 2, 0, 0, 0, 0x10, 0x1f][..], &[0x11; 14]].concat()
        }),
    ];
    for (tensor_type, values, bytes) in rows {
        assert_eq!(encoded(tensor_type, &values), bytes, "{tensor_type} {values:?}");
        assert_eq!(decoded(tensor_type, &bytes, values.len())[..2], values[..2], "{tensor_type}");
    }
}

#[test]
fn an_iq4_nl_block_of_table_values_keeps_them() {
    let values: Vec<f32> = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
        .into_iter()
        .flat_map(|value| [value as f32; 2])
        .collect();
    let row = encoded(TensorType::Iq4Nl, &values);
    assert_eq!(row[..2], [0, 0x3c], "the scale is 1");
    assert_eq!(row[2..6], [0x80, 0x80, 0x91, 0x91], "elements 0 to 3 are low, 16 to 19 high");
    assert_eq!(decoded(TensorType::Iq4Nl, &row, 32), values);
}

#[test]
fn a_block_of_zeros_reads_as_zeros() {
    for tensor_type in TensorType::ALL {
        assert_eq!(decoded(tensor_type, &encoded(tensor_type, &[0.0; 64]), 64), [0.0; 64], "{tensor_type}");
    }
}

#[test]
fn numbers_that_no_block_can_hold_do_not_panic() {
    for tensor_type in TensorType::ALL {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45] {
            for values in [block(&[1.0, odd]), vec![odd; 32], block(&[odd, -odd])] {
                decoded(tensor_type, &encoded(tensor_type, &values), 32);
            }
        }
    }
}

#[test]
fn rows_of_a_wrong_length_are_refused() {
    let cases = [
        (TensorType::Q8_0, 100, 106, ValuesError::PartialBlock { tensor_type: TensorType::Q8_0, elements: 100 }),
        (
            TensorType::Q8_0,
            64,
            67,
            ValuesError::RowLength { tensor_type: TensorType::Q8_0, elements: 64, needed: 68, given: 67 },
        ),
        (
            TensorType::F16,
            3,
            0,
            ValuesError::RowLength { tensor_type: TensorType::F16, elements: 3, needed: 6, given: 0 },
        ),
        (
            TensorType::F32,
            0,
            4,
            ValuesError::RowLength { tensor_type: TensorType::F32, elements: 0, needed: 0, given: 4 },
        ),
    ];
    for (tensor_type, elements, bytes, error) in cases {
        let (mut row, mut values, mut halves) = (vec![0; bytes], vec![0.0; elements], vec![f16::ZERO; elements]);
        assert_eq!(encode_row(tensor_type, &values, &mut row), Err(error));
        assert_eq!(decode_row(tensor_type, &row, &mut values), Err(error));
        assert_eq!(encode_row_f16(tensor_type, &halves, &mut row), Err(error));
        assert_eq!(decode_row_f16(tensor_type, &row, &mut halves), Err(error));
    }
}

#[test]
fn a_size_that_does_not_divide_the_row_rotates_nothing() {
    for (size, elements) in [(3, 96), (64, 96), (128, 64), (1 << 31, 64)] {
        let mut values = vec![1.0; elements];
        assert_eq!(rotate(&mut values, size), Err(ValuesError::RotationSize { size, elements }));
        assert_eq!(values, vec![1.0; elements]);
    }
}

#[test]
fn a_rotation_is_the_product_with_the_matrix_of_signs() {
    let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 30.0) / 7.0).collect();
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let mut rotated = values.clone();
    rotate(&mut rotated, 64).expect("64 divides the row");
    for (j, found) in rotated.into_iter().enumerate() {
        let product: f32 = values.iter().enumerate().map(|(i, value)| value * sign(i, j)).sum();
        assert!((product / 8.0 - found).abs() < 1e-4, "element {j}: {found} is not {}", product / 8.0);
    }
}

#[test]
fn rotations_follow_type_and_head_size() {
    let cases = [
        (TensorType::Q4_0, 64, 64, 64),
        (TensorType::Q8_0, 96, 0, 0),
        (TensorType::Q8_0, 192, 64, 64),
        (TensorType::Iq4Nl, 256, 256, 64),
        (TensorType::Q5_1, 576, 64, 64),
        (TensorType::Bf16, 128, 0, 0),
        (TensorType::Q8_0, 0, 0, 0),
    ];
    for (tensor_type, head_size, k, v) in cases {
        assert_eq!(key_rotation(tensor_type, head_size), k, "{tensor_type} {head_size}");
        assert_eq!(value_rotation(tensor_type, head_size), v, "{tensor_type} {head_size}");
    }
}

fn any_type() -> impl Strategy<Value = TensorType> {
    proptest::sample::select(TensorType::ALL.to_vec())
}

fn any_row() -> impl Strategy<Value = Vec<f32>> {
    (1..20_usize, 0.01..100.0_f32)
        .prop_flat_map(|(blocks, largest)| proptest::collection::vec(-largest..largest, 32 * blocks))
}

proptest! {
    #[test]
    fn a_row_comes_back_within_its_types_error(tensor_type in any_type(), values in any_row()) {
        let back = decoded(tensor_type, &encoded(tensor_type, &values), values.len());
        for (before, after) in values.chunks(32).zip(back.chunks(32)) {
            let largest = before.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            for (before, after) in before.iter().zip(after) {
                prop_assert!((before - after).abs() <= bound(tensor_type, largest), "{before} became {after}");
            }
        }
    }

    #[test]
    fn f16_numbers_take_the_same_row_as_f32_ones(tensor_type in any_type(), values in any_row()) {
        let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
        let wide: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        let mut row = vec![0; tensor_type.row_bytes(values.len() as u64).expect("whole blocks") as usize];
        encode_row_f16(tensor_type, &halves, &mut row)?;
        prop_assert_eq!(&row, &encoded(tensor_type, &wide));

        let mut back = vec![f16::ZERO; values.len()];
        decode_row_f16(tensor_type, &row, &mut back)?;
        let wide = decoded(tensor_type, &row, values.len());
        prop_assert_eq!(back, wide.into_iter().map(f16::from_f32).collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_decode(tensor_type in any_type(), seed in proptest::collection::vec(any::<u8>(), 1..40)) {
        let bytes = tensor_type.row_bytes(64).expect("whole blocks") as usize;
        let row: Vec<u8> = seed.iter().copied().cycle().take(bytes).collect();
        decoded(tensor_type, &row, 64);
    }

    #[test]
    fn rotating_twice_changes_nothing(values in any_row(), power in 0..6_u32) {
        let mut twice = values.clone();
        rotate(&mut twice, 1 << power)?;
        rotate(&mut twice, 1 << power)?;
        let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        for (before, after) in values.iter().zip(&twice) {
            prop_assert!((before - after).abs() <= 1e-5 * largest);
        }
    }
}
