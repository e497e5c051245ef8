//! Our numbers against a stock server's: the same prompt saved from an f16 cache and from a q8_0 cache.

use kvshare::layout::TensorType;
use kvshare::state_file::{Half, ReadOptions};
use kvshare::values::{decode_row, encode_row, key_rotation, rotate, value_rotation};

use super::support::{MemoryCache, sample};

const WIDTH: usize = 192;
const HEAD_SIZE: u32 = 64;
const N_LAYER: usize = 30;

fn cache(name: &str) -> MemoryCache {
    MemoryCache::read_from(&sample(name).bytes, ReadOptions::default(), 14).1
}

fn decoded(tensor_type: TensorType, row: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; WIDTH];
    decode_row(tensor_type, row, &mut values).expect("whole rows");
    values
}

fn length(values: impl Iterator<Item = f32>) -> f32 {
    values.map(|value| value * value).sum::<f32>().sqrt()
}

/// |a - b| / |a|.
fn relative_difference(a: &[f32], b: &[f32]) -> f32 {
    length(a.iter().zip(b).map(|(a, b)| a - b)) / length(a.iter().copied())
}

#[test]
fn quantized_rows_rotated_back_agree_with_the_f16_rows_of_the_same_prompt() {
    for (prompt, n_cells) in [("a", 5), ("b", 14)] {
        let f16 = cache(&format!("f16-fa-{prompt}.bin"));
        let q8_0 = cache(&format!("q8-fa-{prompt}.bin"));
        // The first layer sees the same input in both, so that only the rounding to 8 bits differs; the later ones see
        // what attention made of the rounded cache.
        for (layers, most) in [(0..1, 0.01), (1..N_LAYER, 0.08)] {
            for layer in layers {
                for (half, size) in [
                    (Half::K, key_rotation(TensorType::Q8_0, HEAD_SIZE)),
                    (Half::V, value_rotation(TensorType::Q8_0, HEAD_SIZE)),
                ] {
                    for cell in 0..n_cells {
                        let plain = decoded(TensorType::F16, f16.row(layer, half, cell));
                        let mut rotated = decoded(TensorType::Q8_0, q8_0.row(layer, half, cell));
                        rotate(&mut rotated, size).expect("64 divides the row");
                        let difference = relative_difference(&plain, &rotated);
                        assert!(difference < most, "{half} of layer {layer}, cell {cell}: {difference}");
                    }
                }
            }
        }
    }
}

#[test]
fn f16_rows_rotated_and_encoded_are_nearly_the_servers_quantized_bytes() {
    let (f16, q8_0) = (cache("f16-fa-b.bin"), cache("q8-fa-b.bin"));
    let (mut equal, mut total) = (0, 0);
    for half in Half::BOTH {
        for cell in 0..14 {
            let mut values = decoded(TensorType::F16, f16.row(0, half, cell));
            rotate(&mut values, 64).expect("64 divides the row");
            let mut ours = [0; 204];
            encode_row(TensorType::Q8_0, &values, &mut ours).expect("whole rows");
            let theirs = q8_0.row(0, half, cell);
            for (ours, theirs) in ours.chunks(34).zip(theirs.chunks(34)) {
                for (ours, theirs) in ours[2..].iter().zip(&theirs[2..]) {
                    let steps = i32::from(ours.cast_signed()) - i32::from(theirs.cast_signed());
                    assert!(steps.abs() <= 1, "{half} of cell {cell} is {steps} levels off");
                    equal += usize::from(steps == 0);
                    total += 1;
                }
            }
        }
    }
    println!("{equal} of {total} levels are equal");
    // The server rounds numbers that were never f16; the rest are ties that this turned over.
    assert!(equal * 100 > total * 99, "{equal} of {total} levels are equal");
}
