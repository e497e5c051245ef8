//! Right numbers, stored in another form than the cache's.

use kvshare::header::MAX_ROTATION;
use kvshare::layout::TensorType;
use kvshare::state_file::Half;

use super::{Hypothesis, Mistake, Suspect};
use crate::inspect::reader::CacheTensor;
use crate::verify::side::Reading;

/// The smallest rotation that llama.cpp has (`llama_kv_cache`'s constructor in `src/llama-kv-cache.cpp`).
const SMALLEST_ROTATION: u32 = 64;

pub(super) fn of<'a>(suspect: &Suspect<'a>) -> Vec<Hypothesis<'a>> {
    let right = suspect.right();
    let mut hypotheses = Vec::new();
    if suspect.place.half == Half::V {
        hypotheses.extend(other_order(&right));
    }
    hypotheses.extend(TensorType::ALL.into_iter().flat_map(|written| other_type(&right, written)));
    hypotheses.extend(bytes_reversed(&right));
    hypotheses.extend(other_rotations(&right));
    hypotheses
}

fn of_tensor<'a>(right: &Reading<'a>, tensor: CacheTensor) -> Reading<'a> {
    Reading { elements: tensor.plane.tensor_type, tensor, ..right.clone() }
}

fn other_order<'a>(right: &Reading<'a>) -> Option<Hypothesis<'a>> {
    let mut tensor = right.tensor.clone();
    if tensor.plane.tensor_type.is_quantized() {
        return None;
    }
    tensor.plane.transposed = !tensor.plane.transposed;
    let mistake = if tensor.plane.transposed { Mistake::ByChannel } else { Mistake::ByPosition };
    Some((mistake, of_tensor(right, tensor)))
}

/// Elements of `written`: in rows one after the other, as long as they then are; and in each row's own place.
fn other_type<'a>(right: &Reading<'a>, written: TensorType) -> Vec<Hypothesis<'a>> {
    let plane = &right.tensor.plane;
    // Up to the tensor's end: rows that are too long reach into the streams behind theirs.
    let bytes = right.tensor.placed.end().saturating_sub(plane.offset);
    let Some(row_bytes) = written.row_bytes(plane.width).filter(|_| written != plane.tensor_type) else {
        return Vec::new();
    };
    let mut tensor = right.tensor.clone();
    // Whoever writes floats into a quantized cache has not rotated them.
    if !written.is_quantized() {
        tensor.rotation = 0;
    }
    let mut readings = Vec::new();
    if !plane.transposed && row_bytes < plane.row_bytes() {
        readings.push(Reading { elements: written, ..of_tensor(right, tensor.clone()) });
    }
    tensor.plane.tensor_type = written;
    if !plane.transposed {
        tensor.plane.cells = bytes / row_bytes;
        readings.push(of_tensor(right, tensor));
    } else if !written.is_quantized() && plane.cells.checked_mul(row_bytes).is_some_and(|end| end <= bytes) {
        readings.push(of_tensor(right, tensor));
    }
    let mistake = Mistake::OtherType { written, wanted: plane.tensor_type };
    readings.into_iter().map(|reading| (mistake, reading)).collect()
}

fn bytes_reversed<'a>(right: &Reading<'a>) -> Option<Hypothesis<'a>> {
    // The elements of a block are single bytes or less.
    let is_float = !right.tensor.plane.tensor_type.is_quantized();
    is_float.then(|| (Mistake::BytesReversed, Reading { bytes_reversed: true, ..right.clone() }))
}

fn other_rotations<'a>(right: &Reading<'a>) -> Vec<Hypothesis<'a>> {
    let (width, wanted) = (right.tensor.plane.width, right.tensor.rotation);
    let sizes = (SMALLEST_ROTATION.ilog2()..=MAX_ROTATION.ilog2()).map(|power| 1 << power);
    let sizes = sizes.filter(|size| width.is_multiple_of((*size).into()));
    let others = [0].into_iter().chain(sizes).filter(|written| *written != wanted);
    others
        .map(|written| {
            let tensor = CacheTensor { rotation: written, ..right.tensor.clone() };
            (Mistake::OtherRotation { written, wanted }, of_tensor(right, tensor))
        })
        .collect()
}
