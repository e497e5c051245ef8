//! The layout's promises: the test vectors of the design, placement as properties, addresses, and refusals.

use proptest::prelude::*;

use super::*;

fn sizes_and_hashes(layout: &Layout) -> Vec<(u64, u64)> {
    layout.chunks().iter().map(|chunk| (chunk.size, chunk.hash)).collect()
}

#[test]
fn the_vectors_of_the_design_hold() {
    use TensorType::{F16, Q8_0};
    let big = (1_048_576_000, 17_540_425_994_995_006_612);
    let vectors = [
        (Geometry::uniform(28, 1024, 1024, 20480, F16), vec![big, big, (251_658_240, 1_589_745_360_344_459_949)]),
        (Geometry::uniform(30, 192, 192, 4096, F16), vec![(94_371_840, 2_158_479_808_429_355_223)]),
        (Geometry::uniform(30, 192, 192, 4096, Q8_0), vec![(50_135_040, 4_608_154_211_641_418_403)]),
        (Geometry::uniform(2, 36, 36, 100, F16), vec![(32_768, 15_107_967_019_802_935_031)]),
        (Geometry::uniform(32, 1024, 1024, 8192, F16), vec![(1_073_741_824, 5_172_325_350_623_451_203)]),
        (Geometry::uniform(0, 1, 1, 1, F16), vec![(4096, 1_469_598_103_934_665_603)]),
    ];
    for (geometry, expected) in vectors {
        assert_eq!(sizes_and_hashes(&geometry.layout().unwrap()), expected, "{geometry:?}");
    }
    let seven = Tensor::new("seven", TensorType::F32, &[7]).unwrap();
    let layout = Layout::place([vec![seven]]);
    assert_eq!(sizes_and_hashes(&layout), [(4096, 11_308_723_307_010_549_171)]);
}

#[test]
fn a_tensor_over_the_chunk_limit_has_a_chunk_of_its_own() {
    let tensor = |name: &str, elements| Tensor::new(name, TensorType::F32, &[elements]).unwrap();
    let layout = Layout::place([vec![tensor("a", 1), tensor("b", (1 << 28) + 1), tensor("c", 1)]]);
    let sizes: Vec<u64> = layout.chunks().iter().map(|chunk| chunk.size).collect();
    assert_eq!(sizes, [4096, (1 << 30) + 4096, 4096]);
}

#[test]
fn an_allocation_larger_than_the_tensor_takes_its_place() {
    let tensor = |name: &str| Tensor::new(name, TensorType::F16, &[64]).unwrap();
    let layout = Layout::place([vec![tensor("a").with_allocation(5000).unwrap(), tensor("b")]]);
    assert_eq!(layout.tensors()[1].offset, 8192);
    assert_eq!(layout.chunks()[0].size, 12288);
}

#[test]
fn a_recurrent_state_is_a_group_of_its_own() {
    let geometry = Geometry {
        recurrent: vec![RecurrentWidths { layer: 1, r: 30720, s: 786_432 }],
        ..Geometry::uniform(1, 64, 64, 256, TensorType::F16)
    };
    let layout = geometry.layout().unwrap();
    let names: Vec<&str> = layout.tensors().iter().map(|placed| placed.tensor.name()).collect();
    assert_eq!(names, ["cache_k_l0", "cache_v_l0", "cache_r_l1", "cache_s_l1"]);
    let groups: Vec<u32> = layout.chunks().iter().map(|chunk| chunk.group).collect();
    assert_eq!(groups, [0, 1]);
}

#[test]
fn a_shape_that_is_no_tensor_is_refused() {
    let refused: [(TensorType, &[u64], &str); 6] = [
        (TensorType::F16, &[], "one to four dimensions"),
        (TensorType::F16, &[4, 0], "none of them 0"),
        (TensorType::F16, &[1, 1, 1, 1, 1], "one to four dimensions"),
        (TensorType::Q8_0, &[100], "not a multiple of the 32"),
        (TensorType::F32, &[1 << 62], "larger than 2^63 - 1"),
        (TensorType::F32, &[1 << 31, 1 << 31], "larger than 2^63 - 1"),
    ];
    for (tensor_type, ne, words) in refused {
        let error = Tensor::new("t", tensor_type, ne).unwrap_err().to_string();
        assert!(error.contains(words), "{ne:?}: {error}");
    }
}

#[test]
fn only_names_that_llama_cpp_gives_name_a_layer() {
    let part = |name: &str| Tensor::new(name, TensorType::F16, &[1]).unwrap().part_and_layer();
    assert_eq!(part("cache_v_l12"), Some((Part::V, 12)));
    assert_eq!(part("cache_s_l0"), Some((Part::S, 0)));
    for name in ["cache_k_l+3", "cache_k_l03", "cache_k_l", "cache_x_l1", "k_l1", "cache_k_l4294967296"] {
        assert_eq!(part(name), None, "{name}");
    }
}

#[test]
fn planes_are_found_by_name_and_not_by_order() {
    let layout = Geometry::uniform(3, 64, 32, 256, TensorType::F16).layout().unwrap();
    let mut shuffled = layout.tensors().to_vec();
    shuffled.reverse();
    let planes = Planes::of(&shuffled, false).unwrap();
    assert_eq!(planes, Planes::of(layout.tensors(), false).unwrap());
    assert_eq!(planes.layer(2).unwrap().v.width, 32);
    assert_eq!((planes.cells(), planes.streams()), (256, 1));
    assert!(planes.layer(3).unwrap_err().to_string().contains("3 layers from 0 to 2"));
}

#[test]
fn unpaired_and_uneven_planes_are_refused() {
    let tensor = |name: &str, tensor_type, cells| PlacedTensor {
        tensor: Tensor::new(name, tensor_type, &[32, cells]).unwrap(),
        region: 0,
        offset: 0,
    };
    let f16 = TensorType::F16;
    let refused = [
        (vec![tensor("cache_k_l0", f16, 8)], false, "no cache_v"),
        (vec![tensor("cache_v_l0", f16, 8)], false, "no cache_k"),
        (vec![tensor("cache_k_l0", f16, 8), tensor("cache_k_l0", f16, 8)], false, "comes twice"),
        (vec![tensor("cache_k_l0", f16, 8), tensor("cache_v_l0", f16, 9)], false, "9 cells, but 8"),
        (vec![tensor("cache_k_l0", f16, 8), tensor("cache_v_l0", TensorType::Q8_0, 8)], true, "flash attention"),
    ];
    for (tensors, v_trans, words) in refused {
        let error = Planes::of(&tensors, v_trans).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn addresses_beyond_the_cache_are_refused() {
    let layout = Geometry::uniform(1, 64, 64, 256, TensorType::F16).layout().unwrap();
    let planes = Planes::of(layout.tensors(), true).unwrap();
    let v = planes.layer(0).unwrap().v;
    assert!(v.row(0, 256).is_err());
    assert!(v.row(1, 0).is_err());
    assert!(v.element(0, 0, 64).is_err());
    assert!(v.check_positions(0, 255, 2).is_err());
    assert!(v.check_positions(0, u64::MAX, 2).is_err());
    assert!(v.check_positions(1, 0, 0).is_err());
    assert!(v.channel(0, 64, 0, 1).is_err());
    assert!(v.channel(0, 63, 255, 2).is_err());
    assert_eq!(v.channel(0, 1, 3, 2), Ok((v.offset + (256 + 3) * 2, 4)));
    let k = planes.layer(0).unwrap().k;
    assert!(k.rows(0, 255, 2).is_err());
    assert_eq!(k.rows(0, 255, 1), Ok((255 * 128, 128)));
}

#[test]
fn a_plane_is_addressed_only_the_way_it_lies() {
    let layout = Geometry::uniform(1, 64, 64, 256, TensorType::F16).layout().unwrap();
    let planes = Planes::of(layout.tensors(), true).unwrap();
    let LayerPlanes { k, v, .. } = planes.layer(0).unwrap();
    assert_eq!(v.rows(0, 0, 1), Err(LayoutError::Transposed));
    assert_eq!(k.channel(0, 0, 0, 1), Err(LayoutError::NotTransposed));
}

#[test]
#[cfg_attr(miri, ignore = "a whole vocabulary takes minutes; the tests below read files of the same form")]
fn a_gguf_tells_its_geometry() {
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf")).unwrap();
    let metadata = GgufMetadata::read(&file[..]).unwrap();
    let geometry = metadata.geometry(2048, TensorType::F16, TensorType::F16).unwrap();
    assert_eq!(geometry, Geometry::uniform(8, 64, 64, 2048, TensorType::F16));
    for end in [0, 3, 4, 7, 8, 23, 24, 100, 1000] {
        assert!(GgufMetadata::read(&file[..end]).is_err(), "cut at {end}");
    }
}

/// The metadata of a GGUF file with no tensors and these keys, each with its type's number and its value's bytes.
fn gguf(pairs: &[(&str, u32, &[u8])]) -> Result<GgufMetadata, GgufError> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0_u64.to_le_bytes());
    file.extend((pairs.len() as u64).to_le_bytes());
    for (key, kind, value) in pairs {
        file.extend(text(key));
        file.extend(kind.to_le_bytes());
        file.extend(*value);
    }
    GgufMetadata::read(&file[..])
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// An array of `u32`.
fn array(numbers: &[u32]) -> Vec<u8> {
    let head = [U32.to_le_bytes().to_vec(), (numbers.len() as u64).to_le_bytes().to_vec()].concat();
    [head, numbers.iter().flat_map(|number| number.to_le_bytes()).collect()].concat()
}

const U32: u32 = 4;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

#[test]
fn a_gguf_that_announces_too_much_is_refused_at_once() {
    let announced = |count: u64| count.to_le_bytes();
    let of_array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let refused: [(u32, &[u8], &str); 5] = [
        (TEXT, &announced(u64::MAX), "at most 16777216"),
        (TEXT, &announced(1 << 24), "ends inside"),
        (ARRAY, &of_array(U32, u64::MAX), "18446744073709551615 elements"),
        (ARRAY, &of_array(U32, 1 << 24), "ends inside"),
        (ARRAY, &[&of_array(TEXT, 1)[..], &announced(1 << 40)].concat(), "1099511627776 bytes"),
    ];
    for (kind, value, words) in refused {
        let error = gguf(&[("x", kind, value)]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let long_key = gguf(&[(&"k".repeat(65536), U32, &[0; 4])]).unwrap_err();
    assert!(matches!(long_key, GgufError::TooLong { length: 65536, limit: 65535, .. }), "{long_key}");
    // A key may be long, but a message about it is not.
    let unknown = gguf(&[(&"k".repeat(65535), 13, &[])]).unwrap_err();
    assert!(matches!(unknown, GgufError::UnknownType { number: 13, .. }));
    assert!(unknown.to_string().len() < 200);
}

#[test]
fn head_sizes_are_those_of_the_metadata_or_follow_from_the_heads() {
    let number = u32::to_le_bytes;
    let llama = ("general.architecture", TEXT, &text("llama")[..]);
    let layers = ("llama.block_count", U32, &number(3)[..]);
    let embedding = ("llama.embedding_length", U32, &number(1024)[..]);
    let heads = array(&[8, 0, 16]);
    let heads = ("llama.attention.head_count", ARRAY, &heads[..]);
    let derived = gguf(&[llama, layers, embedding, heads]).unwrap();
    assert_eq!(derived.head_sizes().unwrap(), HeadSizes { k: 64, v: 64 });
    let geometry = derived.geometry(1, TensorType::F16, TensorType::F16).unwrap();
    let widths = geometry.layers.iter().map(|widths| (widths.layer, widths.k, widths.v)).collect::<Vec<_>>();
    assert_eq!(widths, [(0, 512, 512), (2, 1024, 1024)]);

    let (k, v) = (number(192), number(128));
    let given = [("llama.attention.key_length", U32, &k[..]), ("llama.attention.value_length", U32, &v[..])];
    let given = gguf(&[&[llama, layers, heads], &given[..]].concat()).unwrap();
    assert_eq!(given.head_sizes().unwrap(), HeadSizes { k: 192, v: 128 });
}

#[test]
fn a_gguf_without_a_plain_cache_or_a_possible_one_is_refused() {
    let number = u32::to_le_bytes;
    let (one, zero, many) = (number(1), number(0), number(1 << 20));
    let name = text("gemma3");
    let other = text("three");
    let uneven = array(&[1, 2]);
    let too_many = array(&[1 << 20]);
    let good = [
        ("general.architecture", TEXT, &name[..]),
        ("gemma3.block_count", U32, &one[..]),
        ("gemma3.attention.head_count", U32, &one[..]),
        ("gemma3.embedding_length", U32, &one[..]),
    ];
    let geometry = |pairs: &[(&str, u32, &[u8])]| {
        gguf(pairs).unwrap().geometry(1, TensorType::F16, TensorType::F16).map_err(|error| error.to_string())
    };
    assert_eq!(geometry(&good), Ok(Geometry::uniform(1, 1, 1, 1, TensorType::F16)));
    let special = ["attention.sliding_window", "ssm.state_size", "attention.kv_lora_rank", "wkv.head_size"];
    for key in special.map(|key| format!("gemma3.{key}")) {
        let error = geometry(&[&good[..], &[(&key, U32, &one)]].concat()).unwrap_err();
        assert!(error.contains("no plain K/V cache") && error.contains(&key), "{error}");
    }
    let refused: [(usize, u32, &[u8], &str); 6] = [
        (1, U32, &zero, "is 0; it must be a positive number"),
        (1, U32, &many, "is 1048576; it must be a positive number"),
        (1, TEXT, &other, "it must be a whole number"),
        (2, ARRAY, &uneven, "an array of 2; it must have one number a layer"),
        (2, ARRAY, &too_many, "is 1048576; each must be between 0 and 65536"),
        (0, U32, &one, "does not say \"general.architecture\""),
    ];
    for (index, kind, value, words) in refused {
        let mut pairs = good;
        pairs[index] = (pairs[index].0, kind, value);
        let error = geometry(&pairs).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

/// The hash written a second time, from the design's words alone.
fn hash_by_the_words(tensors: &[Tensor]) -> u64 {
    let mut h: u128 = 1_469_598_103_934_665_603;
    for tensor in tensors {
        for number in [u64::from(tensor.tensor_type().ggml_number())].into_iter().chain(tensor.ne()) {
            h = ((h ^ u128::from(number)) * 1_099_511_628_211) % (1 << 64);
        }
    }
    h as u64
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    (0..TensorType::ALL.len(), 1_u64..64, 1_u64..4_000_000, 1_u64..3, 0_u64..10_000_000).prop_map(
        |(kind, blocks, cells, streams, allocation)| {
            let tensor_type = TensorType::ALL[kind];
            let ne = [blocks * tensor_type.block_elements(), cells, streams];
            Tensor::new("t", tensor_type, &ne).unwrap().with_allocation(allocation).unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn tensors_lie_in_order_aligned_and_apart(groups in prop::collection::vec(prop::collection::vec(any_tensor(), 0..12), 0..4)) {
        let layout = Layout::place(groups.clone());
        prop_assert_eq!(layout.tensors().len(), groups.iter().map(Vec::len).sum::<usize>());
        for chunk in layout.chunks() {
            let tensors = &layout.tensors()[chunk.tensors.clone()];
            let mut end = 0;
            for placed in tensors {
                prop_assert_eq!(placed.offset % ALIGNMENT, 0);
                prop_assert_eq!(placed.offset, end);
                end += placed.tensor.reserved();
                prop_assert!(placed.end() <= end);
            }
            prop_assert_eq!(chunk.size, end.max(ALIGNMENT));
            prop_assert!(chunk.size <= CHUNK_LIMIT || tensors.len() == 1);
            let of_chunk: Vec<Tensor> = tensors.iter().map(|placed| placed.tensor.clone()).collect();
            prop_assert_eq!(chunk.hash, hash_by_the_words(&of_chunk));
        }
    }

    #[test]
    fn rows_and_channels_address_each_element_once(
        kind in 0..3_usize, width in 1_u64..12, cells in 1_u64..12, streams in 1_u64..3, transposed: bool,
    ) {
        let tensor_type = [TensorType::F32, TensorType::F16, TensorType::Bf16][kind];
        let tensor = Tensor::new("t", tensor_type, &[width, cells, streams]).unwrap();
        let plane = Plane::new(&PlacedTensor { tensor, region: 0, offset: 4096 }, transposed).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for stream in 0..streams {
            for position in 0..cells {
                for channel in 0..width {
                    let offset = plane.element(stream, position, channel).unwrap();
                    let index = if transposed { channel * cells + position } else { position * width + channel };
                    let expected = 4096 + (stream * width * cells + index) * tensor_type.block_bytes();
                    prop_assert_eq!(offset, expected);
                    prop_assert!(seen.insert(offset));
                }
            }
        }
    }
}
