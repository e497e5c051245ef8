//! The contract's small print: what arguments, token files and result lines are, and are not.

use super::*;
use crate::header::{Header, Params};
use crate::layout::{Geometry, HeadSizes, LayerWidths, TensorType};

fn parse(line: &str) -> Result<Arguments, ProviderError> {
    Arguments::parse(line.split(' '))
}

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");

#[test]
fn both_routes_are_parsed() {
    let file = parse("--tokens t --out o.bin --model m --elfs e").unwrap();
    assert_eq!(file.route, Route::File { out: "o.bin".into() });
    assert_eq!(file.elfs, Some("e".into()));
    let shared = parse("--tokens=t --layout=l --fds=3,4,15 --model=m").unwrap();
    assert_eq!(shared.route, Route::Shared { layout: "l".into(), fds: vec![3, 4, 15] });
}

#[test]
fn a_wrong_command_line_is_misuse_and_says_which_flag() {
    let wrong = [
        ("--model m --out o", "--tokens is missing"),
        ("--tokens t --out o", "--model is missing"),
        ("--tokens t --model m", "neither --out"),
        ("--tokens t --model m --layout l", "--fds is missing"),
        ("--tokens t --model m --fds 3", "--layout is missing"),
        ("--tokens t --model m --fds 3 --layout l --out o", "together"),
        ("--tokens t --model m --fds 3,,4 --layout l", "no descriptor number"),
        ("--tokens t --model m --fds 2 --layout l", "no descriptor number"),
        ("--tokens t --model m --fds +3 --layout l", "no descriptor number"),
        ("--tokens t --model m --out o --speed", "--speed"),
        ("--tokens", "--tokens"),
    ];
    for (line, words) in wrong {
        let error = parse(line).unwrap_err();
        assert!(error.to_string().contains(words), "{line}: {error}");
        assert!(error.is_misuse(), "{line}");
    }
}

#[test]
fn tokens_are_one_decimal_id_a_line() {
    assert_eq!(parse_tokens(b"1\n325\n\n2147483647").unwrap(), [1, 325, i32::MAX]);
    assert_eq!(parse_tokens(format_tokens(&[1, 2, 3]).as_bytes()).unwrap(), [1, 2, 3]);
    for (text, line) in [("1\n-2", 2), ("x", 1), ("1 2", 1), ("2147483648", 1), ("+1", 1), ("1\n2\n0x3", 3)] {
        match parse_tokens(text.as_bytes()) {
            Err(ProviderError::TokenLine { line: found, .. }) => assert_eq!(found, line, "{text:?}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn a_token_file_that_is_empty_or_missing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    assert!(matches!(read_tokens(&path), Err(ProviderError::Read { .. })));
    std::fs::write(&path, "\n\n").unwrap();
    assert!(matches!(read_tokens(&path), Err(ProviderError::NoTokens { .. })));
}

#[test]
fn a_result_line_has_a_count_and_an_argmax() {
    let right = r#"{"n_tokens": 2, "argmax": 7, "device": "npu"}"#.parse::<ResultLine>().unwrap();
    assert_eq!(right, ResultLine { n_tokens: 2, argmax: 7, prefill_ms: None });
    let wrong = [
        "",
        "done",
        "{}",
        "[2, 7]",
        "[2, 7, 3.5]",
        r#"{"n_tokens": -1, "argmax": 7}"#,
        r#"{"n_tokens": 2}"#,
        r#"{"n_tokens": 2, "argmax": 7, "prefill_ms": -1}"#,
    ];
    for line in wrong {
        assert!(line.parse::<ResultLine>().is_err(), "{line:?}");
    }
}

#[test]
fn a_fence_that_ends_with_its_provider_is_refused_and_not_passed_over() {
    let with = |fence: &str| format!(r#"{{"n_tokens": 2, "argmax": 7, "fence_fd": {fence}}}"#).parse::<ResultLine>();
    assert!(with("null").is_ok());
    for fence in ["5", "-1", "\"sync_file\""] {
        let words = with(fence).unwrap_err().to_string();
        assert!(words.contains("attach the fence to the regions"), "{words}");
    }
}

#[test]
fn a_header_of_regions_alone_is_completed_by_trying_what_fits() {
    for (tensor_type, cells) in [(TensorType::F16, 2048), (TensorType::F32, 100), (TensorType::Q8_0, 300)] {
        let layout = Geometry::uniform(8, 64, 64, cells, tensor_type).layout().unwrap();
        let mut header = Header { tensors: Vec::new(), ..Header::describe(&layout, None, None) };
        geometry::complete(&mut header, TINY.as_ref(), &AssumedCache::default()).unwrap();
        assert_eq!(header.tensors, layout.tensors());
        let params = header.params.as_ref().unwrap();
        assert_eq!((params.type_k, u64::from(params.n_ctx)), (tensor_type, cells));
    }
    let other = Geometry::uniform(9, 64, 64, 2048, TensorType::F16).layout().unwrap();
    let mut header = Header { tensors: Vec::new(), ..Header::describe(&other, None, None) };
    let error = geometry::complete(&mut header, TINY.as_ref(), &AssumedCache::default()).unwrap_err();
    assert!(matches!(error, ProviderError::NoGeometry), "{error}");
}

/// 200 bytes a row, so that several cell counts take the same pages and only the hash tells them apart.
#[test]
fn cell_counts_that_take_the_same_bytes_are_told_apart_by_the_hash() {
    let widths = vec![LayerWidths { layer: 0, k: 100, v: 100 }];
    let cache = AssumedCache { layers: Some(AssumedLayers { widths, head_sizes: None }), ..AssumedCache::default() };
    for cells in [1, 20, 21, 40, 41, 1000] {
        let layout = Geometry::uniform(1, 100, 100, cells, TensorType::F16).layout().unwrap();
        let mut header = Header { tensors: Vec::new(), ..Header::describe(&layout, None, None) };
        geometry::complete(&mut header, "no file".as_ref(), &cache).unwrap();
        assert_eq!(header.tensors, layout.tensors());
    }
}

#[test]
fn a_strange_model_costs_a_bounded_search() {
    let widths = (0..65536).map(|layer| LayerWidths { layer, k: 2, v: 2 }).collect();
    let cache = AssumedCache { layers: Some(AssumedLayers { widths, head_sizes: None }), ..AssumedCache::default() };
    // As many pages as its tensors take with any cell count from 1 to 1024, but another hash.
    let layout = Geometry::uniform(65536, 1, 1, 512, TensorType::F16).layout().unwrap();
    let mut header = Header { tensors: Vec::new(), ..Header::describe(&layout, None, None) };
    let error = geometry::complete(&mut header, "no file".as_ref(), &cache).unwrap_err();
    assert!(matches!(error, ProviderError::NoGeometry), "{error}");
}

#[test]
fn a_quantized_cache_is_rotated_by_the_models_heads_and_refused_without_them() {
    let widths = vec![LayerWidths { layer: 0, k: 128, v: 128 }];
    let layout = Geometry::uniform(1, 128, 128, 256, TensorType::Q8_0).layout().unwrap();
    let completed = |head_sizes| {
        let layers = Some(AssumedLayers { widths: widths.clone(), head_sizes });
        let cache = AssumedCache { layers, ..AssumedCache::default() };
        let mut header = Header { tensors: Vec::new(), ..Header::describe(&layout, None, None) };
        geometry::complete(&mut header, "no file".as_ref(), &cache).map(|()| header.params.unwrap())
    };
    let cases = [((64, 64), (64, 64)), ((128, 128), (128, 64)), ((128, 32), (128, 0)), ((32, 128), (0, 64))];
    for ((k, v), expected) in cases {
        let params = completed(Some(HeadSizes { k, v })).unwrap();
        assert_eq!((params.n_rot_k, params.n_rot_v), expected, "heads of {k} and {v}");
    }
    let error = completed(None).unwrap_err();
    assert!(matches!(error, ProviderError::RotationUnknown { tensor_type: TensorType::Q8_0 }), "{error}");
}

#[test]
fn a_header_with_tensors_is_compared_with_a_known_model_only() {
    let header = |width| {
        let layout = Geometry { streams: 2, ..Geometry::uniform(8, width, width, 2048, TensorType::F16) };
        Header::describe(&layout.layout().unwrap(), None, None)
    };
    geometry::compare(&header(64), TINY.as_ref()).unwrap();
    let error = geometry::compare(&header(128), TINY.as_ref()).unwrap_err().to_string();
    assert!(error.contains("cache_k_l0 (f16 of 128 x 2048 x 2)"), "{error}");
    assert!(error.contains("cache_k_l0 (f16 of 64 x 2048 x 2)"), "{error}");
    for no_model in ["/no/such/model.gguf", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        geometry::compare(&header(128), no_model.as_ref()).unwrap();
    }
}

#[test]
fn a_header_with_parameters_is_completed_from_them() {
    let geometry = Geometry { streams: 2, ..Geometry::uniform(8, 64, 64, 512, TensorType::F16) };
    let layout = geometry.layout().unwrap();
    let params = Params { n_stream: 2, ..Params::plain(1024, TensorType::F16) };
    let mut header = Header { tensors: Vec::new(), ..Header::describe(&layout, None, Some(params)) };
    geometry::complete(&mut header, TINY.as_ref(), &AssumedCache::default()).unwrap();
    assert_eq!(header.tensors, layout.tensors());
}

#[test]
fn a_model_that_is_missing_or_no_gguf_is_named() {
    let missing = read_metadata("/no/such/model.gguf".as_ref()).unwrap_err().to_string();
    assert!(missing.contains("/no/such/model.gguf"), "{missing}");
    let source = read_metadata(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").as_ref()).unwrap_err().to_string();
    assert!(source.contains("not a GGUF file"), "{source}");
}
