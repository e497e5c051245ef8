//! The header's promises: what is read back is what was written, and each refusal is its own.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::layout::{Geometry, LayerWidths, TensorType};

fn small() -> Header {
    static SMALL: LazyLock<Header> = LazyLock::new(describe_small);
    SMALL.clone()
}

fn describe_small() -> Header {
    let layout = Geometry::uniform(2, 64, 64, 256, TensorType::F16).layout().unwrap();
    let model = ModelIdentity { name: "kvshare-tiny".to_owned(), sha256: Some("b0".repeat(32)) };
    Header::describe(&layout, Some(model), Some(Params::plain(256, TensorType::F16)))
}

/// The small header as JSON without its digest, so that an edit meets the check it is meant for.
fn small_json() -> Value {
    static SMALL: LazyLock<Value> = LazyLock::new(|| {
        let mut value: Value = serde_json::from_slice(&small().to_json()).unwrap();
        value.as_object_mut().unwrap().remove("digest");
        value
    });
    SMALL.clone()
}

fn refusal(value: &Value) -> HeaderError {
    Header::parse(value.to_string().as_bytes()).unwrap_err()
}

#[test]
fn a_written_header_reads_back_equal() {
    assert_eq!(Header::parse(&small().to_json()), Ok(small()));
}

#[test]
fn a_header_of_regions_alone_is_enough() {
    let bytes = br#"{"regions":[{"fd":0,"offset":0,"size":4096,"layout":1469598103934665603}]}"#;
    let header = Header::parse(bytes).unwrap();
    assert_eq!(header.descriptor_count(), 1);
    assert!(header.tensors.is_empty() && header.params.is_none());
}

#[test]
fn unknown_fields_are_ignored() {
    let mut value = small_json();
    value["vendor"] = json!({"deep": [[1]]});
    value["regions"][0]["kind"] = json!("dma-buf");
    assert!(Header::parse(value.to_string().as_bytes()).is_ok());
}

#[test]
fn a_hash_may_be_a_number_or_a_string() {
    for hash in [json!(EMPTY), json!(EMPTY.to_string()), json!(format!("{EMPTY:#x}"))] {
        let value = json!({"regions": [{"fd": 0, "size": 4096, "layout": hash}]});
        assert_eq!(Header::parse(value.to_string().as_bytes()).unwrap().regions[0].layout, EMPTY);
    }
    for hash in [json!("0x"), json!("+1"), json!("0x+1"), json!("-1"), json!(1.5), json!("18446744073709551616")] {
        let error = refusal(&json!({"regions": [{"fd": 0, "size": 4096, "layout": hash}]}));
        assert!(matches!(error, HeaderError::WrongValue { .. }), "{hash}: {error}");
    }
}

#[test]
fn a_region_may_say_that_it_is_linear() {
    for (format, modifier) in [("R8", json!(0)), ("R8  ", json!("0")), ("XR24", json!("0x0")), ("R16 ", json!(null))] {
        let region = json!({"fd": 0, "size": 4096, "layout": EMPTY, "format": format, "modifier": modifier});
        assert!(Header::parse(json!({"regions": [region]}).to_string().as_bytes()).is_ok(), "{format}, {modifier}");
    }
}

#[test]
fn a_region_of_another_arrangement_is_refused_by_its_name() {
    let refused = [
        (
            "modifier",
            json!(0x0100_0000_0000_0001_u64),
            "0x100000000000001 (I915_x_tiled), but rows are found by offset",
        ),
        ("modifier", json!("0x0300000000000001"), "0x300000000000001 (Nvidia_tegra_tiled)"),
        ("modifier", json!(0x00ff_ffff_ffff_ffff_u64), "DRM_FORMAT_MOD_INVALID"),
        ("modifier", json!(u64::MAX), "is 0xffffffffffffffff, but"),
        ("modifier", json!("linear"), "but must be a whole number"),
        ("format", json!("????"), "is \"????\", which is no format of DRM"),
        ("format", json!(""), "is \"\", which is no format of DRM"),
        ("format", json!("XR24 and more"), "which is no format of DRM"),
        ("format", json!("\u{20ac}8"), "which is no format of DRM"),
        ("format", json!(7), "but must be a string"),
    ];
    for (field, value, words) in refused {
        let mut region = json!({"fd": 0, "size": 4096, "layout": EMPTY});
        region[field] = value;
        let error = refusal(&json!({"regions": [region]})).to_string();
        assert!(error.starts_with(&format!("header field regions[0].{field} is ")) && error.contains(words), "{error}");
    }
}

const EMPTY: u64 = crate::layout::EMPTY_HASH;

type Check = fn(&HeaderError) -> bool;

#[test]
fn text_that_is_no_header_is_refused() {
    let too_long = vec![b' '; MAX_BYTES + 1];
    let deep = "[".repeat(9);
    let refused: [(&[u8], Check); 10] = [
        (b"", |error| matches!(error, HeaderError::NotJson { .. })),
        (b"{", |error| matches!(error, HeaderError::NotJson { .. })),
        (b"{} {}", |error| matches!(error, HeaderError::NotJson { .. })),
        (b"\xff", |error| matches!(error, HeaderError::NotUtf8 { position: 0 })),
        (b"[]", |error| matches!(error, HeaderError::WrongValue { .. })),
        (
            br#"{"regions":[],"regions":[]}"#,
            |error| matches!(error, HeaderError::RepeatedKey { key } if key == "regions"),
        ),
        (br#"{"x":{"a":1,"a":2}}"#, |error| matches!(error, HeaderError::RepeatedKey { key } if key == "a")),
        (deep.as_bytes(), |error| matches!(error, HeaderError::TooDeep { .. })),
        (&too_long, |error| matches!(error, HeaderError::TooLong { .. })),
        (br#"{"version":2,"regions":[]}"#, |error| matches!(error, HeaderError::UnknownVersion { value: 2, .. })),
    ];
    for (bytes, expected) in refused {
        let error = Header::parse(bytes).unwrap_err();
        assert!(expected(&error), "{:?}: {error}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
    }
}

/// Replaces what `pointer` names in the small header, or removes it with `null`.
fn edited(pointer: &str, with: Value) -> Value {
    let mut value = small_json();
    *value.pointer_mut(pointer).unwrap() = with;
    value
}

#[test]
fn each_wrong_field_has_its_own_refusal() {
    let refused: [(&str, Value, &str); 34] = [
        ("/regions", json!([]), "names no regions"),
        ("/regions", json!(null), "regions is missing"),
        ("/regions", json!({}), "must be a list"),
        ("/regions", json!(vec![json!({}); 4097]), "4097 regions"),
        ("/regions/0", json!(3), "regions[0] is 3, but must be an object"),
        ("/regions/0/fd", json!(-1), "regions[0].fd is -1"),
        ("/regions/0/size", json!(0), "regions[0].size is 0"),
        ("/regions/0/size", json!(4097), "regions[0].size is 4097"),
        ("/regions/0/offset", json!(1), "regions[0].offset is 1"),
        ("/regions/0/offset", json!(9223372036854771712_u64), "ends past 2^63 - 1"),
        ("/regions/0/layout", json!(7), "hash 7, but its tensors hash to"),
        ("/regions/0/layout", json!(null), "regions[0].layout is missing"),
        ("/regions/0/group", json!(4294967296_u64), "regions[0].group is 4294967296"),
        ("/tensors/1/type", json!("f17"), "tensors[1].type is \"f17\""),
        ("/tensors/1/type", json!("f32"), "is f32, but params.type_v is f16"),
        ("/tensors/1/ne", json!([64, 256, 1, 1, 1]), "tensors[1].ne is 5"),
        ("/tensors/1/ne", json!([64, 0]), "none of them 0"),
        ("/tensors/1/ne/0", json!("64"), "tensors[1].ne[0] is \"64\""),
        ("/tensors/1/ne", json!([4294967296_u64, 4294967296_u64]), "larger than 2^63 - 1"),
        ("/tensors/1/region", json!(1), "tensors[1].region is 1"),
        ("/tensors/1/offset", json!(33), "tensors[1].offset is 33"),
        ("/tensors/3/offset", json!(102_400), "ends at byte 135168 of region 0"),
        ("/tensors/1/offset", json!(28672), "\"cache_k_l0\" and \"cache_v_l0\" overlap"),
        ("/tensors/1/name", json!("cache_k_l0"), "comes twice"),
        ("/params/n_ctx", json!("many"), "params.n_ctx is \"many\""),
        ("/params/v_trans", json!(0), "params.v_trans is 0"),
        ("/params/n_stream", json!(2), "\"cache_k_l0\" has 1 streams (its third dimension), but params.n_stream is 2"),
        ("/params/n_rot_k", json!(48), "params.n_rot_k is 48, by which rows of tensor \"cache_k_l0\" (64 elements)"),
        ("/params/n_rot_k", json!(128), "params.n_rot_k is 128"),
        ("/params/n_rot_v", json!(128), "params.n_rot_v is 128, by which rows of tensor \"cache_v_l0\""),
        ("/params/n_rot_v", json!(2048), "a power of two up to 1024"),
        ("/params/n_rot_v", json!(4294967295_u64), "params.n_rot_v is 4294967295"),
        ("/tensors/1/name", json!("v".repeat(64)), "tensors[1].name has 64 bytes; a tensor's name has at most 63"),
        ("/model/name", json!(1), "model.name is 1"),
    ];
    for (pointer, with, words) in refused {
        let message = refusal(&edited(pointer, with)).to_string();
        assert!(message.contains(words), "{pointer}: {message}");
    }
}

#[test]
fn rows_are_rotated_by_what_divides_every_one_of_them() {
    // (widths of K, n_rot_k, whether they go together)
    let cases: [(&[u64], u32, bool); 6] = [
        (&[64, 192], 0, true),
        (&[64, 192], 64, true),
        (&[128, 192], 128, false),
        (&[96, 96], 64, false),
        (&[1056], 64, false),
        (&[2048], 2048, false),
    ];
    for (widths, n_rot_k, fits) in cases {
        let layers = (0..).zip(widths).map(|(layer, k)| LayerWidths { layer, k: *k, v: 64 }).collect();
        let geometry = Geometry { layers, ..Geometry::uniform(0, 0, 0, 256, TensorType::Q8_0) };
        let params = Params { n_rot_k, ..Params::plain(256, TensorType::Q8_0) };
        let header = Header::describe(&geometry.layout().unwrap(), None, Some(params));
        match Header::parse(&header.to_json()) {
            Ok(_) => assert!(fits, "{widths:?} by {n_rot_k}"),
            Err(HeaderError::Rotation { param: "n_rot_k", size, .. }) => {
                assert!(!fits && size == n_rot_k, "{widths:?}")
            }
            Err(error) => panic!("{widths:?} by {n_rot_k}: {error}"),
        }
    }
}

#[test]
fn a_transposed_v_whose_elements_share_blocks_is_refused() {
    let layout = Geometry::uniform(2, 64, 64, 256, TensorType::Q8_0).layout().unwrap();
    let params = Params { v_trans: true, ..Params::plain(256, TensorType::Q8_0) };
    let error = Header::parse(&Header::describe(&layout, None, Some(params)).to_json()).unwrap_err();
    assert!(matches!(error, HeaderError::TransposedBlocks { .. }), "{error}");
}

#[test]
fn what_a_peer_sends_does_not_flood_a_message() {
    let long = "k".repeat(if cfg!(miri) { 1000 } else { 100_000 });
    let refused = [
        format!(r#"{{"{long}": 1, "{long}": 2}}"#),
        format!(r#"{{"version": "{long}"}}"#),
        format!(r#"{{"regions": [{{"fd": 0, "size": 4096, "layout": {EMPTY}}}], "digest": "{long}"}}"#),
        edited("/tensors/0/name", json!(long)).to_string(),
        edited("/tensors/0/type", json!(long)).to_string(),
    ];
    for text in refused {
        let message = Header::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(message.len() < 400, "{} bytes: {}", message.len(), &message[..400]);
    }
}

#[test]
fn a_row_that_blocks_do_not_fill_is_refused() {
    let mut value = small_json();
    value.as_object_mut().unwrap().remove("params");
    value["tensors"][0]["type"] = json!("q8_0");
    value["tensors"][0]["ne"] = json!([65, 256]);
    let error = refusal(&value);
    assert!(matches!(error, HeaderError::Tensor { .. }), "{error}");
}

#[test]
fn regions_of_one_descriptor_may_not_overlap() {
    let region = |fd: u32, offset: u64| json!({"fd": fd, "offset": offset, "size": 8192, "layout": EMPTY});
    let apart = json!({"regions": [region(0, 8192), region(0, 0), region(1, 4096)]});
    assert!(Header::parse(apart.to_string().as_bytes()).is_ok());
    let error = refusal(&json!({"regions": [region(0, 8192), region(1, 0), region(0, 4096)]}));
    assert_eq!(error, HeaderError::RegionsOverlap { first: 2, second: 0, fd: 0 });
}

#[test]
fn swapped_regions_hash_alike_and_only_the_digest_tells() {
    // Three tensors of 320 MiB fill a chunk: chunk 0 starts with a K and chunk 1 with a V of the same shape, so that the
    // hashes are equal.
    let layout = Geometry::uniform(3, 1024, 1024, 163_840, TensorType::F16).layout().unwrap();
    assert_eq!(layout.chunks()[0].hash, layout.chunks()[1].hash);
    let header = Header::describe(&layout, None, None);
    let mut swapped: Value = serde_json::from_slice(&header.to_json()).unwrap();
    swapped["regions"][0]["fd"] = json!(1);
    swapped["regions"][1]["fd"] = json!(0);
    assert!(matches!(refusal(&swapped), HeaderError::DigestMismatch { .. }));
    swapped.as_object_mut().unwrap().remove("digest");
    assert!(Header::parse(swapped.to_string().as_bytes()).is_ok());
}

#[test]
fn every_part_of_a_header_is_in_its_digest() {
    let edits = [
        ("/model/name", json!("other")),
        ("/model/sha256", json!("b1")),
        ("/params/n_batch", json!(1)),
        ("/params/n_rot_k", json!(64)),
        ("/params/flash_attn", json!(false)),
        ("/regions/0/group", json!(1)),
        ("/tensors/0/name", json!("cache_k_l9")),
        ("/tensors", json!(null)),
    ];
    for (pointer, with) in edits {
        let mut value: Value = serde_json::from_slice(&small().to_json()).unwrap();
        *value.pointer_mut(pointer).unwrap() = with;
        assert!(matches!(refusal(&value), HeaderError::DigestMismatch { .. }), "{pointer}");
    }
}

#[test]
fn a_header_is_compared_with_the_descriptors_that_came() {
    let header = small();
    let size = header.regions[0].size;
    assert_eq!(header.check_descriptors(&[Some(size)]), Ok(()));
    assert_eq!(header.check_descriptors(&[None]), Ok(()));
    let missing = header.check_descriptors(&[]);
    assert_eq!(missing, Err(HeaderError::NoSuchDescriptor { field: "regions[0].fd".to_owned(), value: 0, count: 0 }));
    let unused = header.check_descriptors(&[Some(size), Some(size)]);
    assert_eq!(unused, Err(HeaderError::UnusedDescriptor { index: 1, count: 2 }));
    let short = header.check_descriptors(&[Some(size - 1)]);
    assert_eq!(short, Err(HeaderError::BeyondDescriptor { region: 0, end: size, fd: 0, size: size - 1 }));
}

#[test]
fn a_foreign_header_is_completed_from_the_providers_own_geometry() {
    let geometry = Geometry::uniform(2, 64, 64, 256, TensorType::F16);
    let layout = geometry.layout().unwrap();
    let mut header = Header { tensors: Vec::new(), ..small() };
    header.complete(&layout).unwrap();
    assert_eq!(header, small());

    let other = |geometry: Geometry| {
        let mut header = Header { tensors: Vec::new(), ..small() };
        header.complete(&geometry.layout().unwrap()).unwrap_err()
    };
    for cells in [128, 512] {
        let resized = other(Geometry { cells, ..geometry.clone() });
        assert!(matches!(resized, HeaderError::RegionSize { .. }), "{resized}");
    }
    let reshaped = other(Geometry::uniform(2, 32, 32, 512, TensorType::F16));
    assert!(matches!(reshaped, HeaderError::HashMismatch { .. }), "{reshaped}");
    let more = other(Geometry::uniform(28, 1024, 1024, 20480, TensorType::F16));
    assert!(matches!(more, HeaderError::RegionCount { found: 1, expected: 3 }), "{more}");
}

#[test]
fn a_headers_tensors_are_compared_with_the_providers_model_by_name() {
    let model = Geometry::uniform(2, 64, 64, 256, TensorType::F16);
    let mut elsewhere = small();
    elsewhere.tensors.reverse();
    elsewhere.tensors[0].offset += 4096;
    assert_eq!(elsewhere.compare(&model), Ok(()), "neither order nor place matters");

    let refusal = |model: &Geometry| small().compare(model).unwrap_err().to_string();
    let cases = [
        (
            Geometry::uniform(2, 64, 32, 256, TensorType::F16),
            "has cache_v_l0 (f16 of 64 x 256 x 1), but this model's has cache_v_l0 (f16 of 32 x 256 x 1)",
        ),
        (Geometry { type_k: TensorType::Q8_0, ..model.clone() }, "but this model's has cache_k_l0 (q8_0 of"),
        (Geometry { cells: 512, ..model.clone() }, "this model's has cache_k_l0 (f16 of 64 x 512 x 1)"),
        (Geometry::uniform(3, 64, 64, 256, TensorType::F16), "this model's cache has cache_k_l2"),
        (Geometry::uniform(1, 64, 64, 256, TensorType::F16), "the decoder's cache has cache_k_l1"),
        (Geometry::uniform(2, 33, 64, 256, TensorType::Q8_0), "this model cannot have a cache such as the decoder's"),
    ];
    for (model, words) in cases {
        let message = refusal(&model);
        assert!(message.contains(words), "{message}");
    }
}

const MOST_LAYERS: u32 = if cfg!(miri) { 3 } else { 40 };

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_header_of_ours_reads_back_equal(
        layers in 0_u32..MOST_LAYERS, width in 1_u64..40, cells in 1_u64..5000, kind in 0..TensorType::ALL.len(), name in ".{0,20}",
    ) {
        let tensor_type = TensorType::ALL[kind];
        let geometry = Geometry::uniform(layers, width * 32, width * 32, cells, tensor_type);
        let model = ModelIdentity { name, sha256: None };
        let header =
            Header::describe(&geometry.layout().unwrap(), Some(model), Some(Params::plain(9, tensor_type)));
        prop_assert_eq!(Header::parse(&header.to_json()), Ok(header));
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..4000) {
        let _ = Header::parse(&bytes);
        let mut whole = small().to_json();
        whole.truncate(cut);
        if let (Some(last), Some(byte)) = (whole.last_mut(), bytes.first()) {
            *last = *byte;
        }
        let _ = Header::parse(&whole);
    }
}
