//! What a header costs to read and check, beside what serde_json needs to read the same text into a `Value`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};

fn header(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("header");
    for layers in [28, 80, 1000] {
        let layout = Geometry::uniform(layers, 1024, 1024, 4096, TensorType::F16).layout().expect("the shape is fine");
        let text = Header::describe(&layout, None, Some(Params::plain(4096, TensorType::F16))).to_json();
        group.bench_with_input(BenchmarkId::new("parse and check", layers), &text, |bencher, text| {
            bencher.iter(|| Header::parse(black_box(text)).expect("the header is fine"));
        });
        group.bench_with_input(BenchmarkId::new("serde_json Value", layers), &text, |bencher, text| {
            bencher.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(text)).expect("the JSON is fine"));
        });
    }
    group.finish();
}

criterion_group!(benches, header);
criterion_main!(benches);
