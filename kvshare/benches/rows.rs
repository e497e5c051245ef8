//! Writing rows into warm shared pages, beside memcpy of the same bytes to the same kind of pages.

mod paired;

use half::f16;
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::{Access, Extent, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::rows::{MappedCache, allocate};
use paired::{Way, compare, stay_on_one_core};

const WIDTH: usize = 1024;
const ROW_BYTES: usize = 2 * WIDTH;
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
    let zeros = vec![0; ROW_BYTES];
    for position in 0..CELLS {
        cache.k_mut(0).and_then(|mut k| k.write_bytes(position, &zeros)).expect("written");
        cache.v_mut(0).and_then(|mut v| v.write_bytes(position, &zeros)).expect("written");
    }
    cache
}

fn main() {
    stay_on_one_core();
    let bytes = CELLS as usize * ROW_BYTES;
    let batch = BATCH as usize * WIDTH;
    let source = vec![0x55_u8; bytes];
    let narrow = vec![f16::from_f32(0.5); bytes / 2];
    let wide = vec![0.5_f32; bytes / 2];

    let extent = Extent { offset: 0, size: bytes as u64 };
    let memory = Memfd::new().allocate("bench", extent.size).expect("memory").descriptor;
    let mut region = MappedRegion::map(&memory, extent, &[], &OPTIONS).expect("mapped");
    region.view_mut(0, extent.size).expect("a view").fill(0);
    let plain = region.view_mut(0, extent.size).expect("a view").as_mut_ptr();
    let memcpy = |length: usize| {
        for (index, part) in source.chunks_exact(length).enumerate() {
            // SAFETY: the view has as many bytes as the source, and no other process has this memory.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), plain.add(index * length), part.len()) };
        }
    };

    let mut cache = warm_cache(false);
    compare(
        "8 MiB of rows of the cache's own type, one call each",
        1000,
        [
            Way::new("memcpy of each row", || memcpy(ROW_BYTES)),
            Way::new("kvshare", || {
                let mut k = cache.k_mut(0).expect("a layer");
                for (position, row) in (0..).zip(source.chunks_exact(ROW_BYTES)) {
                    k.write_bytes(position, row).expect("written");
                }
            }),
        ],
    );

    let (mut own, mut from_f16, mut from_f32) = (warm_cache(false), warm_cache(false), warm_cache(false));
    let mut transposed = warm_cache(true);
    compare(
        "8 MiB of f16 rows, 512 a call",
        200,
        [
            Way::new("memcpy of 512 rows each", || memcpy(batch * 2)),
            Way::new("own type", || {
                for (index, rows) in (0..).zip(source.chunks_exact(batch * 2)) {
                    own.k_mut(0).and_then(|mut k| k.write_bytes(index * BATCH, rows)).expect("written");
                }
            }),
            Way::new("f16 to f16", || {
                for (index, rows) in (0..).zip(narrow.chunks_exact(batch)) {
                    from_f16.k_mut(0).and_then(|mut k| k.write_f16(index * BATCH, rows)).expect("written");
                }
            }),
            Way::new("f32 to f16", || {
                for (index, rows) in (0..).zip(wide.chunks_exact(batch)) {
                    from_f32.k_mut(0).and_then(|mut k| k.write_f32(index * BATCH, rows)).expect("written");
                }
            }),
            Way::new("f32 to f16, transposed", || {
                for (index, rows) in (0..).zip(wide.chunks_exact(batch)) {
                    transposed.v_mut(0).and_then(|mut v| v.write_f32(index * BATCH, rows)).expect("written");
                }
            }),
        ],
    );
}
