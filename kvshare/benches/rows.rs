//! Writing rows into warm shared pages, beside memcpy of the same bytes to the same kind of pages.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::{Access, Extent, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::rows::{MappedCache, allocate};

const WIDTH: usize = 1024;
const CELLS: u64 = 4096;
/// Tokens that a prefill hands over together.
const BATCH: u64 = 512;

const OPTIONS: MapOptions = MapOptions {
    access: Access::ReadWrite,
    guard: kvshare::map::Guard::None,
    unsealed: kvshare::map::Unsealed::Refuse,
    transparent_huge: false,
};

/// A cache of one layer, every page of it touched.
fn warm_cache(v_trans: bool) -> MappedCache {
    let layout = Geometry::uniform(1, WIDTH as u64, WIDTH as u64, CELLS, TensorType::F16).layout().expect("a layout");
    let params = Params { v_trans, ..Params::plain(CELLS as u32, TensorType::F16) };
    let header = Header::describe(&layout, None, Some(params));
    let memory = allocate(&header, &Memfd::new(), "bench").expect("memory");
    let mut cache = MappedCache::map(&header, &memory, &OPTIONS).expect("mapped");
    let zeros = vec![0; WIDTH * 2];
    for position in 0..CELLS {
        cache.k_mut(0).and_then(|mut k| k.write_bytes(position, &zeros)).expect("written");
        cache.v_mut(0).and_then(|mut v| v.write_bytes(position, &zeros)).expect("written");
    }
    cache
}

fn rows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rows");
    let bytes = CELLS as usize * WIDTH * 2;
    group.throughput(Throughput::Bytes(bytes as u64));
    let source = vec![0x55_u8; bytes];
    let narrow = vec![f16::from_f32(0.5); bytes / 2];
    let wide = vec![0.5_f32; bytes / 2];

    let extent = Extent { offset: 0, size: bytes as u64 };
    let memory = Memfd::new().allocate("bench", extent.size).expect("memory").descriptor;
    let mut region = MappedRegion::map(&memory, extent, &[], &OPTIONS).expect("mapped");
    region.view_mut(0, extent.size).expect("a view").fill(0);
    group.bench_function("memcpy, all at once", |bencher| {
        bencher.iter(|| region.view_mut(0, extent.size).and_then(|mut view| view.copy_from(&source)).expect("copied"));
    });
    group.bench_function("memcpy, row by row", |bencher| {
        let mut view = region.view_mut(0, extent.size).expect("a view");
        let start = view.as_mut_ptr();
        bencher.iter(|| {
            for (index, row) in source.chunks_exact(WIDTH * 2).enumerate() {
                // SAFETY: the view has as many bytes as the source, and no other process has this memory.
                unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), start.add(index * WIDTH * 2), row.len()) };
            }
        });
    });

    let mut cache = warm_cache(false);
    let row = WIDTH * 2;
    group.bench_function("own type, row by row", |bencher| {
        bencher.iter(|| {
            let mut k = cache.k_mut(0).expect("a layer");
            for (position, row) in (0..).zip(source.chunks_exact(row)) {
                k.write_bytes(position, row).expect("written");
            }
        });
    });
    group.bench_function("own type, a batch at a time", |bencher| {
        bencher.iter(|| {
            for (batch, rows) in (0..).zip(source.chunks_exact(row * BATCH as usize)) {
                cache.k_mut(0).and_then(|mut k| k.write_bytes(batch * BATCH, rows)).expect("written");
            }
        });
    });
    group.bench_function("f16 to f16, a batch at a time", |bencher| {
        bencher.iter(|| {
            for (batch, rows) in (0..).zip(narrow.chunks_exact(WIDTH * BATCH as usize)) {
                cache.k_mut(0).and_then(|mut k| k.write_f16(batch * BATCH, rows)).expect("written");
            }
        });
    });
    group.bench_function("f32 to f16, a batch at a time", |bencher| {
        bencher.iter(|| {
            for (batch, rows) in (0..).zip(wide.chunks_exact(WIDTH * BATCH as usize)) {
                cache.k_mut(0).and_then(|mut k| k.write_f32(batch * BATCH, rows)).expect("written");
            }
        });
    });
    let mut transposed = warm_cache(true);
    group.bench_function("f32 to f16 transposed, a batch at a time", |bencher| {
        bencher.iter(|| {
            for (batch, rows) in (0..).zip(wide.chunks_exact(WIDTH * BATCH as usize)) {
                transposed.v_mut(0).and_then(|mut v| v.write_f32(batch * BATCH, rows)).expect("written");
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = rows
}
criterion_main!(benches);
