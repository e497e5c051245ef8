//! The rows' promises: every write lands where a naive address says, in the right type, and nowhere else.

use half::f16;
use proptest::prelude::*;

use super::*;
use crate::header::{Header, HeaderError, Params};
use crate::layout::{ALIGNMENT, Geometry, LayerWidths, LayoutError, PlacedTensor, RecurrentWidths, Tensor, TensorType};
use crate::map::{Access, Guard, MapOptions};
use crate::memory::Memfd;
use crate::state_file::{CacheSource as _, CopyError, Half, ReadOptions, Run, Slot, StateFile, StateFileError};

fn geometry(tensor_type: TensorType, cells: u64, streams: u64) -> Geometry {
    let layers = vec![LayerWidths { layer: 2, k: 96, v: 64 }, LayerWidths { layer: 5, k: 64, v: 96 }];
    Geometry { layers, streams, ..Geometry::uniform(0, 0, 0, cells, tensor_type) }
}

fn mapped(geometry: &Geometry, v_trans: bool, rotation: u32, options: &MapOptions) -> MappedCache {
    let params = Params {
        v_trans,
        n_stream: geometry.streams as u32,
        n_rot_k: rotation,
        n_rot_v: rotation,
        ..Params::plain(9, geometry.type_k)
    };
    map_fresh(&Header::describe(&geometry.layout().unwrap(), None, Some(params)), options).unwrap()
}

fn map_fresh(header: &Header, options: &MapOptions) -> Result<MappedCache, RowsError> {
    MappedCache::map(header, &allocate(header, &Memfd::new(), "rows-test")?, options)
}

const WRITABLE: MapOptions = MapOptions {
    access: Access::ReadWrite,
    guard: Guard::None,
    unsealed: crate::map::Unsealed::Refuse,
    transparent_huge: false,
};

/// Every byte of every region.
fn all_bytes(cache: &MappedCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    for region in cache.regions() {
        let start = bytes.len();
        bytes.resize(start + region.size() as usize, 0);
        region.view(0, region.size()).unwrap().copy_to(&mut bytes[start..]).unwrap();
    }
    bytes
}

#[test]
fn a_part_of_a_row_and_a_row_outside_are_refused() {
    let mut cache = mapped(&geometry(TensorType::F16, 4, 1), false, 0, &WRITABLE);
    let mut k = cache.k_mut(2).unwrap();
    assert!(matches!(k.write_f32(0, &[0.0; 95]), Err(RowsError::Length { width: 96, .. })));
    assert!(matches!(k.write_bytes(0, &[0; 100]), Err(RowsError::Length { width: 192, .. })));
    assert!(matches!(k.write_f32(4, &[0.0; 96]), Err(RowsError::Layout(_))));
    assert!(matches!(k.write_f32(3, &[0.0; 192]), Err(RowsError::Layout(_))));
    assert!(matches!(k.write_f32(u64::MAX, &[0.0; 96]), Err(RowsError::Layout(_))));
    assert!(k.stream(1).is_err());
    assert!(cache.k(3).is_err());
    assert!(all_bytes(&cache).iter().all(|byte| *byte == 0));
}

#[test]
fn a_read_only_cache_is_not_written() {
    let mut cache = mapped(&geometry(TensorType::F16, 4, 1), false, 0, &MapOptions::default());
    assert!(matches!(cache.k_mut(2).unwrap().write_f32(0, &[0.0; 96]), Err(RowsError::Map(_))));
    assert!(cache.begin_cpu_access(Access::ReadWrite).is_err());
    cache.begin_cpu_access(Access::ReadOnly).unwrap().end().unwrap();
}

#[test]
fn a_header_without_tensors_or_descriptors_is_not_mapped() {
    let layout = geometry(TensorType::F16, 4, 1).layout().unwrap();
    let whole = Header::describe(&layout, None, None);
    let none: [std::os::fd::OwnedFd; 0] = [];
    let error = MappedCache::map(&whole, &none, &WRITABLE).unwrap_err();
    assert!(matches!(error, RowsError::NoDescriptor { index: 0, count: 0 }));
    let bare = Header { tensors: Vec::new(), ..whole };
    assert!(matches!(MappedCache::map(&bare, &none, &WRITABLE), Err(RowsError::NoTensors)));
}

#[test]
fn a_header_that_was_changed_by_hand_is_checked_before_it_is_mapped() {
    type Change = fn(&mut Header);
    type Check = fn(&HeaderError) -> bool;
    let changes: [(Change, Check); 4] = [
        (|header| header.tensors[1].region = 1, |error| matches!(error, HeaderError::NoSuchRegion { .. })),
        (|header| header.tensors[1].offset = 0, |error| matches!(error, HeaderError::TensorsOverlap { .. })),
        (
            |header| header.params.as_mut().unwrap().n_rot_k = 64,
            |error| matches!(error, HeaderError::Rotation { size: 64, width: 96, .. }),
        ),
        (|header| header.params.as_mut().unwrap().n_stream = 2, |error| matches!(error, HeaderError::Streams { .. })),
    ];
    let layout = geometry(TensorType::F16, 4, 1).layout().unwrap();
    for (change, expected) in changes {
        let mut header = Header::describe(&layout, None, Some(Params::plain(4, TensorType::F16)));
        let memory = allocate(&header, &Memfd::new(), "rows-test").unwrap();
        change(&mut header);
        match MappedCache::map(&header, &memory, &WRITABLE) {
            Err(RowsError::Header(error)) => assert!(expected(&error), "{error}"),
            result => panic!("{result:?}"),
        }
    }
}

#[test]
fn memory_is_allocated_by_descriptor_and_not_by_region() {
    let mut header = Header::describe(&geometry(TensorType::F16, 4, 1).layout().unwrap(), None, None);
    let size = header.regions[0].size;
    let second = crate::header::Region { offset: 2 * size, ..header.regions[0].clone() };
    header.regions.push(second);
    let memory = allocate(&header, &Memfd::new(), "rows-test").unwrap();
    let sizes: Vec<_> = memory.iter().map(|descriptor| crate::fd::size(descriptor).unwrap()).collect();
    assert_eq!(sizes, [Some(3 * size)]);
    for fd in [1, 2, usize::MAX - 1] {
        header.regions[0].fd = fd;
        header.regions[1].fd = fd;
        assert!(matches!(allocate(&header, &Memfd::new(), "rows-test"), Err(RowsError::Header(_))), "{fd}");
    }
}

#[test]
fn memory_is_named_after_whose_it_is_and_its_first_tensor() {
    let layout = geometry(TensorType::F16, 4, 1).layout().unwrap();
    let whole = Header::describe(&layout, None, None);
    let [first, second] = [0, 1].map(|index| whole.tensors[index].clone());
    let with = |tensors: Vec<_>| Header { tensors, ..whole.clone() };
    let odd_name = Tensor::new("cache_k\n\0_l2", TensorType::F16, &first.tensor.ne()).unwrap();
    let table = [
        (whole.clone(), "owner:cache_k_l2.."),
        (with(vec![second.clone(), first.clone()]), "owner:cache_k_l2.."),
        (with(vec![second]), "owner:cache_v_l2"),
        (with(vec![PlacedTensor { tensor: odd_name, ..first }]), "owner:cache_k_l2"),
        (with(Vec::new()), "owner:0"),
    ];
    for (header, expected) in table {
        let memory = allocate(&header, &Memfd::new(), "owner").unwrap();
        assert_eq!(crate::fd::Facts::of(&memory[0]).unwrap().name.as_deref(), Some(expected));
    }
}

#[test]
fn a_tensor_without_rows_is_reached_by_name() {
    let geometry =
        Geometry { recurrent: vec![RecurrentWidths { layer: 1, r: 100, s: 3000 }], ..geometry(TensorType::F16, 4, 1) };
    for guard in [Guard::None, Guard::Tensor] {
        let header = Header::describe(&geometry.layout().unwrap(), None, None);
        let mut cache = map_fresh(&header, &MapOptions { guard, ..WRITABLE }).unwrap();
        let state: Vec<u8> = (0..12_000).map(|index| index as u8).collect();
        cache.tensor_mut("cache_s_l1").unwrap().copy_from(&state).unwrap();
        let mut back = vec![0; 12_000];
        cache.tensor("cache_s_l1").unwrap().copy_to(&mut back).unwrap();
        assert_eq!(back, state);
        assert_eq!(cache.tensor("cache_r_l1").unwrap().len(), 400);
        assert_eq!(cache.tensor("cache_k_l2").unwrap().len(), 4 * 96 * 2);
        let error = cache.tensor("cache_s_l2").unwrap_err();
        assert!(matches!(&error, RowsError::NoSuchTensor { name } if name == "cache_s_l2"), "{error}");
    }
}

#[test]
fn a_write_past_a_tensor_shows_in_its_padding() {
    let mut cache = mapped(&geometry(TensorType::F16, 5, 1), false, 0, &WRITABLE);
    cache.fill_padding().unwrap();
    for layer in [2, 5] {
        let (k, v) = (cache_width(&cache, layer, true) as usize, cache_width(&cache, layer, false) as usize);
        cache.k_mut(layer).unwrap().write_f32(0, &vec![1.0; 5 * k]).unwrap();
        cache.v_mut(layer).unwrap().write_f32(0, &vec![1.0; 5 * v]).unwrap();
    }
    cache.check_padding().unwrap();
    let tensors: Vec<(String, u64)> =
        cache.tensors().iter().map(|placed| (placed.tensor.name().to_owned(), placed.end())).collect();
    for (tensor, end) in tensors {
        let padding = end.next_multiple_of(ALIGNMENT) - end;
        for past in [0, 1, padding - 1] {
            // Zeros are what a too long row of an empty cell would be.
            cache.region_mut(0).view_mut(end + past, 1).unwrap().fill(0);
            match cache.check_padding() {
                Err(RowsError::PaddingDamaged { tensor: found, offset }) => {
                    assert_eq!((found, offset), (tensor.clone(), past))
                }
                result => panic!("{result:?}"),
            }
            cache.fill_padding().unwrap();
        }
    }
}

#[test]
fn a_tensor_that_fills_its_last_page_has_no_padding() {
    for guard in [Guard::None, Guard::Tensor] {
        let full = Geometry::uniform(2, 64, 64, 32, TensorType::F16);
        let mut cache = mapped(&full, false, 0, &MapOptions { guard, ..WRITABLE });
        cache.fill_padding().unwrap();
        cache.check_padding().unwrap();
        assert!(guard == Guard::Tensor || all_bytes(&cache).iter().all(|byte| *byte == 0));
    }
    let read_only = &mut mapped(&geometry(TensorType::F16, 5, 1), false, 0, &MapOptions::default());
    assert!(matches!(read_only.fill_padding(), Err(RowsError::Map(_))));
}

#[test]
fn a_state_file_of_the_other_orientation_is_refused_and_nothing_is_written() {
    for (in_file, in_cache) in [(true, false), (false, true)] {
        let from = &mut mapped(&geometry(TensorType::F16, 7, 1), in_file, 0, &WRITABLE);
        from.v_mut(2).unwrap().write_f32(0, &[1.0; 64 * 3]).unwrap();
        let file = StateFile::of_prompt(vec![1, 2, 3], from.state_shape(), Slot::default()).unwrap();
        let mut bytes = Vec::new();
        file.write(from, &mut bytes).unwrap();
        let into = &mut mapped(&geometry(TensorType::F16, 7, 1), in_cache, 0, &WRITABLE);
        let error = file.scatter(std::io::Cursor::new(&bytes), into).unwrap_err();
        assert!(matches!(error, CopyError::File(StateFileError::Transposition { .. })), "{error}");
        assert!(all_bytes(into).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_channel_of_a_plane_that_is_not_transposed_and_a_layer_that_is_not_there_are_refused() {
    let cache = mapped(&geometry(TensorType::F16, 4, 1), false, 0, &WRITABLE);
    let run = |layer| Run { stream: 0, layer, half: Half::V, cells: 0..1 };
    let error = cache.read_channel(&run(0), 0, &mut [0; 2]).unwrap_err();
    assert!(matches!(error, RowsError::Layout(LayoutError::NotTransposed)), "{error}");
    let error = cache.read_rows(&run(2), &mut [0; 128]).unwrap_err();
    assert!(matches!(error, RowsError::LayerIndex { index: 2, count: 2 }), "{error}");
}

#[test]
fn guards_around_tensors_leave_every_row_reachable() {
    for v_trans in [false, true] {
        let options = MapOptions { guard: Guard::Tensor, ..WRITABLE };
        let mut cache = mapped(&geometry(TensorType::F16, 50, 2), v_trans, 0, &options);
        for stream in 0..2 {
            for layer in [2, 5] {
                let width = cache.v(layer).unwrap().plane().width as usize;
                let rows = vec![1.5; width * 50];
                cache.v_mut(layer).unwrap().stream(stream).unwrap().write_f32(0, &rows).unwrap();
                let mut back = vec![0.0; width * 50];
                cache.v(layer).unwrap().stream(stream).unwrap().read_f32(0, &mut back).unwrap();
                assert_eq!(back, rows);
            }
        }
    }
}

#[test]
fn a_rotated_cache_holds_rotated_rows_and_gives_back_the_models() {
    let geometry = Geometry::uniform(1, 64, 64, 8, TensorType::F32);
    let mut cache = mapped(&geometry, false, 64, &WRITABLE);
    let mut row = [0.0; 64];
    row[3] = 8.0;
    cache.k_mut(0).unwrap().write_f32(1, &row).unwrap();
    let mut stored = [0; 256];
    cache.k(0).unwrap().read_bytes(1, &mut stored).unwrap();
    let stored: Vec<f32> = stored.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let signs = |j: u32| if (3 & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    assert_eq!(stored, (0..64).map(signs).collect::<Vec<f32>>());
    let mut back = [0.0; 64];
    cache.k(0).unwrap().read_f32(1, &mut back).unwrap();
    assert_eq!(back, row);
}

#[test]
fn a_mapped_cache_goes_through_a_state_file_and_back() {
    for (tensor_type, v_trans) in [(TensorType::F16, false), (TensorType::F16, true), (TensorType::Q8_0, false)] {
        let from = &mut mapped(&geometry(tensor_type, 7, 1), v_trans, 0, &WRITABLE);
        for layer in [2, 5] {
            for position in 0..5 {
                let row = |width: u64| (0..width).map(|i| (i * 7 + position) as f32 - 99.0).collect::<Vec<f32>>();
                let (k, v) = (cache_width(from, layer, true), cache_width(from, layer, false));
                from.k_mut(layer).unwrap().write_f32(position, &row(k)).unwrap();
                from.v_mut(layer).unwrap().write_f32(position, &row(v)).unwrap();
            }
        }
        let file = StateFile::of_prompt(vec![1, 2, 3, 4, 5], from.state_shape(), Slot::default()).unwrap();
        let mut bytes = Vec::new();
        file.write(from, &mut bytes).unwrap();
        let read = StateFile::parse(&bytes, ReadOptions::default()).unwrap();
        // Into a cache with more cells, whose rows lie elsewhere.
        let into = &mut mapped(&geometry(tensor_type, 50, 1), v_trans, 0, &WRITABLE);
        read.scatter(std::io::Cursor::new(&bytes), into).unwrap();
        for layer in [2, 5] {
            let width = cache_width(from, layer, false) as usize;
            let (mut a, mut b) = (vec![0.0; width * 5], vec![1.0; width * 5]);
            from.v(layer).unwrap().read_f32(0, &mut a).unwrap();
            into.v(layer).unwrap().read_f32(0, &mut b).unwrap();
            assert_eq!(a, b);
            assert!(a.iter().any(|value| *value != 0.0));
        }
    }
}

fn cache_width(cache: &MappedCache, layer: u32, k: bool) -> u64 {
    if k { cache.k(layer).unwrap().plane().width } else { cache.v(layer).unwrap().plane().width }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// The row writer against a naive one: an encoded row, copied element by element to its own address.
    #[test]
    fn rows_land_where_their_addresses_say(
        kind in 0..TensorType::ALL.len(), v_trans: bool, streams in 1_u64..3, stream_pick: bool, of_v: bool,
        first in 0_u64..30, count in prop_oneof![1_usize..9, tile::POSITIONS - 1..tile::POSITIONS + 9], narrow: bool,
        seed in any::<u32>(),
    ) {
        let tensor_type = TensorType::ALL[kind];
        let v_trans = v_trans && !tensor_type.is_quantized();
        let mut cache = mapped(&geometry(tensor_type, 200, streams), v_trans, 0, &WRITABLE);
        let stream = if stream_pick { streams - 1 } else { 0 };
        let plane = { let rows = if of_v { cache.v(5) } else { cache.k(5) }; *rows.unwrap().plane() };
        let width = plane.width as usize;
        let values: Vec<f32> = (0..width * count)
            .map(|i| f16::from_f32((i as u32).wrapping_mul(seed | 1) as f32 / 4e8 - 5.0).to_f32())
            .collect();

        let rows = if of_v { cache.v_mut(5) } else { cache.k_mut(5) };
        let mut rows = rows.unwrap().stream(stream).unwrap();
        if narrow {
            let narrow: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            rows.write_f16(first, &narrow).unwrap();
        } else {
            rows.write_f32(first, &values).unwrap();
        }

        let mut naive = vec![0; all_bytes(&cache).len()];
        let block = tensor_type.block_bytes() as usize;
        let mut encoded = Vec::new();
        for (row, position) in values.chunks_exact(width).zip(first..) {
            let mut bytes = vec![0; plane.row_bytes() as usize];
            crate::values::encode_row(tensor_type, row, &mut bytes).unwrap();
            for (index, block_bytes) in bytes.chunks_exact(block).enumerate() {
                let channel = index as u64 * tensor_type.block_elements();
                let at = plane.element(stream, position, channel).unwrap() as usize;
                naive[at..at + block].copy_from_slice(block_bytes);
            }
            encoded.extend(bytes);
        }
        prop_assert!(all_bytes(&cache) == naive, "a byte lies elsewhere");

        let rows = if of_v { cache.v(5) } else { cache.k(5) };
        let rows = rows.unwrap().stream(stream).unwrap();
        let (mut bytes, mut back) = (vec![0; encoded.len()], vec![0.0; values.len()]);
        rows.read_bytes(first, &mut bytes).unwrap();
        prop_assert_eq!(&bytes, &encoded);
        rows.read_f32(first, &mut back).unwrap();
        let mut expected = vec![0.0; values.len()];
        crate::values::decode_row(tensor_type, &encoded, &mut expected).unwrap();
        prop_assert_eq!(back, expected);

        let mut again = mapped(&geometry(tensor_type, 200, streams), v_trans, 0, &WRITABLE);
        let rows = if of_v { again.v_mut(5) } else { again.k_mut(5) };
        rows.unwrap().stream(stream).unwrap().write_bytes(first, &encoded).unwrap();
        prop_assert!(all_bytes(&again) == naive, "write_bytes differs from write_f32");
    }
}
