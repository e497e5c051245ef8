//! Any numbers as a geometry: refused, or a layout whose tensors lie apart and whose addresses lie inside them.
#![no_main]

use kvshare::layout::{ALIGNMENT, Geometry, LayerWidths, Planes, RecurrentWidths, TensorType};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Numbers {
    layers: Vec<(u32, u64, u64)>,
    recurrent: Vec<(u32, u64, u64)>,
    cells: u64,
    streams: u64,
    type_k: u8,
    type_v: u8,
    v_trans: bool,
    asked: (u32, u64, u64, u64, u64),
}

fn tensor_type(number: u8) -> TensorType {
    TensorType::ALL[usize::from(number) % TensorType::ALL.len()]
}

fuzz_target!(|numbers: Numbers| {
    let geometry = Geometry {
        layers: numbers.layers.iter().map(|&(layer, k, v)| LayerWidths { layer, k, v }).collect(),
        recurrent: numbers.recurrent.iter().map(|&(layer, r, s)| RecurrentWidths { layer, r, s }).collect(),
        cells: numbers.cells,
        streams: numbers.streams,
        ..Geometry::uniform(0, 0, 0, 0, tensor_type(numbers.type_k))
    };
    let geometry = Geometry { type_v: tensor_type(numbers.type_v), ..geometry };
    let Ok(layout) = geometry.layout() else { return };
    for chunk in layout.chunks() {
        let mut end = 0;
        for placed in &layout.tensors()[chunk.tensors.clone()] {
            assert!(placed.offset >= end && placed.offset % ALIGNMENT == 0);
            end = placed.end();
        }
        assert!(chunk.size >= end);
    }
    let Ok(planes) = Planes::of(layout.tensors(), numbers.v_trans) else { return };
    let (layer, stream, position, count, channel) = numbers.asked;
    let Ok(layer) = planes.layer(layer) else { return };
    for (plane, name) in [(&layer.k, "cache_k_l"), (&layer.v, "cache_v_l")] {
        let placed = layout
            .tensors()
            .iter()
            .find(|placed| placed.offset == plane.offset && placed.region == plane.region)
            .expect("a plane is a tensor");
        assert!(placed.tensor.name().starts_with(name));
        let is_inside = |(offset, length): (u64, u64)| {
            assert!(offset >= placed.offset && offset.checked_add(length).is_some_and(|end| end <= placed.end()));
        };
        plane.rows(stream, position, count).map(is_inside).ok();
        plane.channel(stream, channel, position, count).map(is_inside).ok();
        plane.element(stream, position, channel).map(|offset| is_inside((offset, 1))).ok();
    }
});
