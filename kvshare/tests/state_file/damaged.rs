//! Damaged files: each is refused by name, and none makes the reader panic.

use kvshare::layout::TensorType;
use kvshare::state_file::{
    Cell, CellExtension, Expected, LayerShape, Medium, Packing, ReadOptions, RowShape, Slot, StateFile, StateFileError,
    StateShape, Stream,
};
use proptest::prelude::*;

use super::support::{sample, shape, written};

const TOKENS: [i32; 3] = [7, 8, 9];

/// Two layers of four f16 elements, three cells. Where its fields lie:
///
/// | offset | field | | offset | field |
/// | --- | --- | --- | --- | --- |
/// | 0 | magic, version | | 84 | v_trans, n_layer, n_rot_k, n_rot_v |
/// | 8 | n_words | | 100 | K of layer 0: type, row size, rows |
/// | 12 | -1, pack version, n_tokens, ids | | 136 | K of layer 1 |
/// | 36 | n_media | | 172 | V of layer 0 |
/// | 40 | n_stream, cell_count | | 208 | V of layer 1 |
/// | 48 | three cells: position, n_seq_id, seq_id | | 244 | the end |
fn small_file() -> Vec<u8> {
    let bytes = written(&small());
    assert_eq!(bytes.len(), 244);
    bytes
}

fn small() -> StateFile {
    StateFile::of_prompt(TOKENS.to_vec(), shape(2, TensorType::F16, 4), Slot::default()).expect("one slot of one")
}

/// The same with a transposed V: from offset 172, each layer has type, element size, width, and four channels.
fn small_transposed_file() -> Vec<u8> {
    let shape = StateShape { v_trans: true, ..shape(2, TensorType::F16, 4) };
    let file = StateFile::of_prompt(TOKENS.to_vec(), shape, Slot::default()).expect("one slot of one");
    written(&file)
}

/// Reads and validates as a decoder would that has exactly the small file's cache.
fn restore(bytes: &[u8]) -> Result<(), StateFileError> {
    let shape = shape(2, TensorType::F16, 4);
    let expected =
        Expected { tokens: Some(&TOKENS), n_vocab: Some(10), n_ctx: Some(3), n_stream: Some(1), shape: Some(&shape) };
    StateFile::parse(bytes, ReadOptions::default())?.validate(&expected)
}

fn refusal(bytes: &[u8]) -> String {
    format!("{:?}", restore(bytes).expect_err("a damaged file"))
}

fn with(mut bytes: Vec<u8>, offset: usize, value: u32) -> Vec<u8> {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

const MINUS_ONE: u32 = u32::MAX;

#[test]
fn a_file_whose_form_is_broken_is_refused_by_name() {
    let cases = [
        (0, 0x6767_7370, "Magic { found: 1734833008 }"),
        (4, 3, "Version { found: 3 }"),
        (8, 6, "SectionLength { field: \"n_media\", end: 7, n_words: 6 }"),
        (8, 8, "SectionLength { field: \"the last part\", end: 7, n_words: 8 }"),
        (8, 59, "Truncated { field: \"the token section\", offset: 12, needed: 236, left: 232 }"),
        (8, MINUS_ONE, "Count { field: \"n_words\", count: 4294967295, least: 0, most: 16777216 }"),
        (16, 2, "PackVersion { found: 2 }"),
        (20, 4, "SectionLength { field: \"n_media\", end: 8, n_words: 7 }"),
        (20, MINUS_ONE, "SectionLength { field: \"the token ids\", end: 4294967298, n_words: 7 }"),
        (36, 1, "SectionLength { field: \"the media starts\", end: 8, n_words: 7 }"),
        (36, MINUS_ONE, "SectionLength { field: \"the media starts\", end: 4294967302, n_words: 7 }"),
        (40, 0, "Count { field: \"n_stream\", count: 0, least: 1, most: 256 }"),
        (40, 2, "Truncated { field: \"cell_count\", offset: 244, needed: 4, left: 0 }"),
        (40, MINUS_ONE, "Count { field: \"n_stream\", count: 4294967295, least: 1, most: 256 }"),
        (44, 0, "TrailingBytes { end: 48, extra: 196 }"),
        (44, 2, "ValueLayout { stream: 0, found: 2 }"),
        (44, 4, "CellSequences { stream: 0, cell: 3, count: 2 }"),
        (44, MINUS_ONE, "Truncated { field: \"the cells\", offset: 48, needed: 51539607540, left: 196 }"),
        (52, 0, "CellSequences { stream: 0, cell: 0, count: 0 }"),
        (76, MINUS_ONE, "CellSequences { stream: 0, cell: 2, count: 4294967295 }"),
        (84, 1, "ElementSize { layer: 0, tensor_type: F16, found: 8 }"),
        (84, 2, "ValueLayout { stream: 0, found: 2 }"),
        (88, 0, "Count { field: \"n_layer\", count: 0, least: 1, most: 512 }"),
        (88, 1, "TrailingBytes { end: 172, extra: 72 }"),
        (88, 3, "Truncated { field: \"a layer's type\", offset: 244, needed: 4, left: 0 }"),
        (88, MINUS_ONE, "Count { field: \"n_layer\", count: 4294967295, least: 1, most: 512 }"),
        (100, 4, "UnknownType { layer: 0, half: K, number: 4 }"),
        (208, MINUS_ONE, "UnknownType { layer: 1, half: V, number: -1 }"),
        (100, 8, "RowSize { layer: 0, half: K, tensor_type: Q8_0, found: 8 }"),
        (104, 0, "RowSize { layer: 0, half: K, tensor_type: F16, found: 0 }"),
        (140, 7, "RowSize { layer: 1, half: K, tensor_type: F16, found: 7 }"),
        (108, 1, "RowSize { layer: 0, half: K, tensor_type: F16, found: 4294967304 }"),
        (108, MINUS_ONE, "RowSize { layer: 0, half: K, tensor_type: F16, found: 18446744069414584328 }"),
        (104, 6, "UnknownType { layer: 1, half: K, number: 353637138 }"),
        (212, 10, "TruncatedRows { stream: 0, layer: 1, half: V, needed: 30, left: 24 }"),
        (104, 1 << 20, "TruncatedRows { stream: 0, layer: 0, half: K, needed: 3145728, left: 132 }"),
        (212, 6, "TrailingBytes { end: 238, extra: 6 }"),
    ];
    for (offset, value, error) in cases {
        assert_eq!(refusal(&with(small_file(), offset, value)), error, "{value} at {offset}");
    }
}

#[test]
fn a_transposed_file_whose_form_is_broken_is_refused_by_name() {
    let cases = [
        (172, 8, "ElementSize { layer: 0, tensor_type: Q8_0, found: 2 }"),
        (176, 4, "ElementSize { layer: 0, tensor_type: F16, found: 4 }"),
        (180, 0, "Width { layer: 0, half: V, tensor_type: F16, width: 0 }"),
        (180, MINUS_ONE, "Width { layer: 0, half: V, tensor_type: F16, width: 4294967295 }"),
        (216, 5, "TruncatedRows { stream: 0, layer: 1, half: V, needed: 30, left: 24 }"),
        (216, 3, "TrailingBytes { end: 238, extra: 6 }"),
    ];
    for (offset, value, error) in cases {
        assert_eq!(refusal(&with(small_transposed_file(), offset, value)), error, "{value} at {offset}");
    }
    let quantized = with(with(small_transposed_file(), 172, 8), 176, 34);
    assert_eq!(refusal(&quantized), "QuantizedTransposed { layer: 0, tensor_type: Q8_0 }");
}

#[test]
fn a_file_of_the_right_form_that_restores_to_something_else_is_refused_by_name() {
    let cases = [
        (24, 6, "Token { index: 0, found: 6, expected: 7 }"),
        (48, 1, "Position { cell: 0, found: 1 }"),
        (60, 0, "Position { cell: 1, found: 0 }"),
        (72, MINUS_ONE, "Position { cell: 2, found: -1 }"),
        (68, 1, "MixedSequences { cell: 1, found: 1, first: 0 }"),
        (80, MINUS_ONE, "MixedSequences { cell: 2, found: -1, first: 0 }"),
        (92, 64, "Rotation { half: K, found: 64, expected: 0 }"),
        (96, 64, "Rotation { half: V, found: 64, expected: 0 }"),
        (100, 30, "Type { layer: 0, half: K, found: Bf16, expected: F16 }"),
        (208, 30, "Type { layer: 1, half: V, found: Bf16, expected: F16 }"),
    ];
    for (offset, value, error) in cases {
        assert_eq!(refusal(&with(small_file(), offset, value)), error, "{value} at {offset}");
    }
    assert_eq!(refusal(&small_transposed_file()), "Transposition { found: 1, expected: 0 }");
}

/// How a file that `change` was made to is refused by a decoder that expects the small file.
fn refusal_after(change: impl FnOnce(&mut StateFile)) -> String {
    let mut file = small();
    change(&mut file);
    refusal(&written(&file))
}

fn stream(file: &mut StateFile) -> &mut Stream {
    file.streams[0].as_mut().expect("the small file has cells")
}

#[test]
fn what_the_stock_server_would_restore_wrongly_is_refused() {
    let one_token_more = refusal_after(|file| file.tokens.push(9));
    assert_eq!(one_token_more, "TokenCount { found: 4, expected: 3 }");
    let one_cell_more = refusal_after(|file| {
        let cell = Cell { position: 3, seq_id: 0, extension: None };
        stream(file).cells.push(cell);
    });
    assert_eq!(one_cell_more, "CellCount { cells: 4, tokens: 3 }");
    let one_cell_less = refusal_after(|file| stream(file).cells.truncate(2));
    assert_eq!(one_cell_less, "CellCount { cells: 2, tokens: 3 }");
    let off_by_ten = refusal_after(|file| stream(file).cells.iter_mut().for_each(|cell| cell.position += 10));
    assert_eq!(off_by_ten, "Position { cell: 0, found: 10 }");
    let no_cells = refusal_after(|file| file.streams[0] = None);
    assert_eq!(no_cells, "NoCells");

    let no_tokens = StateFile { tokens: vec![], ..small() };
    let error = no_tokens.validate(&Expected::default()).expect_err("cells without tokens");
    assert_eq!(format!("{error:?}"), "CellCount { cells: 3, tokens: 0 }");
}

#[test]
fn a_file_of_another_decoder_is_refused() {
    let another_stream = refusal_after(|file| file.streams.push(None));
    assert_eq!(another_stream, "StreamCount { found: 2, expected: 1 }");
    let another_layer = refusal_after(|file| {
        let layer = stream(file).shape.layers[0];
        stream(file).shape.layers.push(layer);
    });
    assert_eq!(another_layer, "LayerCount { found: 3, expected: 2 }");
    let wider = refusal_after(|file| stream(file).shape.layers[1].v.width = 8);
    assert_eq!(wider, "RowWidth { layer: 1, half: V, found: 8, expected: 4 }");
    let with_an_image = refusal_after(|file| {
        file.packing = Packing::Packed(vec![Medium { start: 1, bytes: b"image".to_vec() }]);
    });
    assert_eq!(with_an_image, "Media { count: 1 }");

    let file = small();
    let refusal = |expected| format!("{:?}", file.validate(&expected).expect_err("another decoder"));
    let small_vocabulary = Expected { n_vocab: Some(9), ..Expected::default() };
    assert_eq!(refusal(small_vocabulary), "Vocabulary { index: 2, id: 9, n_vocab: 9 }");
    let small_context = Expected { n_ctx: Some(2), ..Expected::default() };
    assert_eq!(refusal(small_context), "Context { cells: 3, n_ctx: 2 }");
    let two_streams = StateFile { streams: [file.streams.clone(), file.streams.clone()].concat(), ..file.clone() };
    let error = two_streams.validate(&Expected::default()).expect_err("two slots");
    assert_eq!(format!("{error:?}"), "SeveralStreams { count: 2 }");
}

#[test]
fn a_file_cut_anywhere_says_where_it_ends() {
    for bytes in [small_file(), small_transposed_file(), sample("f16-fa-np2-slot1-a.bin").bytes] {
        // Every length of a small file, and of a large one every length up to its rows and the last of them.
        for length in (0..bytes.len().min(400)).chain(bytes.len() - 200..bytes.len()) {
            let error = StateFile::parse(&bytes[..length], ReadOptions::default()).expect_err("a cut file");
            assert!(
                matches!(error, StateFileError::Truncated { .. } | StateFileError::TruncatedRows { .. }),
                "cut at {length}: {error}"
            );
        }
    }
}

#[test]
fn a_byte_too_many_is_refused() {
    for bytes in [small_file(), small_transposed_file(), sample("q8-fa-a.bin").bytes] {
        let end = bytes.len() as u64;
        let error = StateFile::parse(&[bytes, vec![0]].concat(), ReadOptions::default()).expect_err("too long");
        assert_eq!(format!("{error:?}"), format!("TrailingBytes {{ end: {end}, extra: 1 }}"));
    }
}

#[test]
fn a_byte_put_in_anywhere_before_the_rows_is_refused() {
    for offset in 0..112 {
        for byte in [0, 1, 0xff] {
            let mut bytes = small_file();
            bytes.insert(offset, byte);
            assert!(restore(&bytes).is_err(), "{byte} put in at {offset}");
        }
    }
}

#[test]
fn a_change_of_any_bit_outside_the_rows_is_refused() {
    let small = small_file();
    restore(&small).expect("the undamaged file");
    let records =
        StateFile::parse(&small, ReadOptions::default()).expect("a good file").records().expect("it was read");
    let is_row =
        |offset: u64| records.iter().any(|record| (record.offset..record.offset + record.length).contains(&offset));
    for offset in (0..small.len()).filter(|offset| !is_row(*offset as u64)) {
        for bit in 0..8 {
            let mut bytes = small.clone();
            bytes[offset] ^= 1 << bit;
            assert!(restore(&bytes).is_err(), "bit {bit} of byte {offset} made no difference");
        }
    }
}

#[test]
fn a_token_section_must_be_filled_up_with_zeros() {
    let mut file = small();
    file.packing = Packing::Packed(vec![Medium { start: 1, bytes: b"image".to_vec() }]);
    let bytes = written(&file);
    // The ids end at 36; n_media, the start and the length follow, then five bytes and three of padding.
    for offset in 53..56 {
        let mut bytes = bytes.clone();
        bytes[offset] = 1;
        let error = StateFile::parse(&bytes, ReadOptions::default()).expect_err("no zero");
        assert_eq!(format!("{error:?}"), "Padding");
    }
}

#[test]
fn a_description_that_no_file_can_hold_is_not_written() {
    type Change<'a> = &'a dyn Fn(&mut StateFile);
    let refusal = |change: Change<'_>| {
        let mut file = small();
        change(&mut file);
        format!("{:?}", file.byte_length().expect_err("nothing a file can hold"))
    };
    let extension = Some(CellExtension { x: 0, y: 0, token: 7 });
    let q8_0 = RowShape { tensor_type: TensorType::Q8_0, width: 32 };
    let cases: [(Change<'_>, &str); 9] = [
        (&|file| file.streams.clear(), "Count { field: \"n_stream\", count: 0, least: 1, most: 256 }"),
        (&|file| file.streams.resize(257, None), "Count { field: \"n_stream\", count: 257, least: 1, most: 256 }"),
        (&|file| stream(file).cells.clear(), "Count { field: \"cell_count\", count: 0, least: 1, most: 4294967295 }"),
        (&|file| stream(file).shape.layers.clear(), "Count { field: \"n_layer\", count: 0, least: 1, most: 512 }"),
        (&|file| stream(file).cells[1].extension = extension, "MixedExtensions { stream: 0 }"),
        (
            &|file| {
                file.tokens[0] = -1;
                file.packing = Packing::Plain;
            },
            "PlainMarker",
        ),
        (&|file| stream(file).shape.layers[1].k.width = 0, "Width { layer: 1, half: K, tensor_type: F16, width: 0 }"),
        (
            &|file| stream(file).shape.layers[1].k = RowShape { width: 33, ..q8_0 },
            "Width { layer: 1, half: K, tensor_type: Q8_0, width: 33 }",
        ),
        (
            &|file| {
                let layers = vec![LayerShape { k: q8_0, v: q8_0 }];
                stream(file).shape = StateShape { layers, v_trans: true, n_rot_k: 0, n_rot_v: 0 };
            },
            "QuantizedTransposed { layer: 0, tensor_type: Q8_0 }",
        ),
    ];
    for (change, error) in cases {
        assert_eq!(refusal(change), error);
    }
    for (id, n_stream) in [(2, 2), (256, 1)] {
        let file = StateFile::of_prompt(vec![1], shape(1, TensorType::F16, 4), Slot { id, n_stream });
        let error = file.expect_err("no such slot");
        assert_eq!(format!("{error:?}"), format!("Slot {{ id: {id}, n_stream: {n_stream} }}"));
    }
}

#[test]
fn a_refusal_says_what_is_wrong_with_which_value_and_what_to_do() {
    let cases = [
        (
            small_file()[..200].to_vec(),
            "the state file ends inside the V rows of layer 0 of stream 0: 24 bytes are needed, 16 are left; it was \
             cut, save it again (the stock server would abort on it)",
        ),
        (
            with(small_file(), 0, 0),
            "the file starts with 0x00000000, a sequence-state file with 0x67677371; pass a slot's saved file",
        ),
        (
            with(small_file(), 104, 7),
            "a K row of layer 0 has 7 bytes; f16 needs a multiple of 2, and no more than 1048576; the file is damaged",
        ),
        (
            with(small_file(), 60, 11),
            "cell 1 of the state file has position 11; cells must have their index as position (the stock server \
             would restore it and answer wrongly)",
        ),
    ];
    for (bytes, message) in cases {
        assert_eq!(restore(&bytes).expect_err("a damaged file").to_string(), message);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), m_rope: bool) {
        let options = ReadOptions { m_rope };
        prop_assert!(StateFile::parse(&bytes, options).is_err());
    }

    #[test]
    fn no_damage_makes_the_reader_panic(
        edits in proptest::collection::vec((0..244_usize, any::<u8>()), 1..8),
        length in 0..=244_usize,
        m_rope: bool,
    ) {
        for mut bytes in [small_file(), small_transposed_file()] {
            for (offset, value) in &edits {
                bytes[*offset] = *value;
            }
            if let Ok(file) = StateFile::parse(&bytes[..length], ReadOptions { m_rope }) {
                prop_assert_eq!(file.byte_length()?, length as u64);
            }
        }
    }
}
