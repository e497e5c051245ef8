//! `kvshare-cli verify` says whether rows are right, which element is wrong, and what was probably done.
//!
//! Each mistake is made here by hand, apart from the code that looks for it, on the demo model's own cache.

use std::io::Cursor;
use std::ops::Range;
use std::path::PathBuf;

use candle_core::quantized::gguf_file::Content;
use fake_exporter::cache_rows::CacheRows;
use fake_exporter::model::{EMBEDDED_GGUF, Model};
use kvshare::header::Params;
use kvshare::layout::TensorType;
use kvshare::provider::format_tokens;
use kvshare::state_file::Half;
use kvshare::values::{encode_row, rotate};
use kvshare_tests::eyes::{Cache, Ended, run, with_m_rope};
use kvshare_tests::sample;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const LAYERS: u32 = 8;
const WIDTH: usize = 64;
const HEAD: usize = 32;
const CELLS: u32 = 101;

/// The tokens of a sample that the stock server saved.
fn tokens(name: &str) -> Vec<i32> {
    let index: Value = serde_json::from_slice(&std::fs::read(sample("tiny/index.json")).unwrap()).unwrap();
    let entry = index.as_array().unwrap().iter().find(|entry| entry["file"] == name).unwrap();
    serde_json::from_value(entry["tokens"].clone()).unwrap()
}

fn short_prompt() -> Vec<i32> {
    tokens("f16-fa-tiny-a.bin")
}

fn f16() -> Params {
    Params::plain(CELLS, TensorType::F16)
}

fn by_channel() -> Params {
    Params { v_trans: true, flash_attn: false, ..f16() }
}

fn rotated() -> Params {
    Params { n_rot_k: 64, n_rot_v: 64, ..Params::plain(CELLS, TensorType::Q8_0) }
}

/// A cache with the demo model's rows of `tokens`.
fn prefilled(params: Params, tokens: &[i32]) -> Cache {
    let cache = Cache::new(LAYERS, WIDTH as u64, CELLS.into(), params);
    let ids: Vec<u32> = tokens.iter().map(|token| token.cast_unsigned()).collect();
    Model::embedded().unwrap().evaluate(&ids, 0, &mut CacheRows::new(&mut cache.mapped())).unwrap();
    cache
}

/// The prompt and the model as files beside a cache.
fn files(cache: &Cache, tokens: &[i32]) -> (String, String) {
    let [model, ids] = ["model.gguf", "prompt.tokens"].map(|name| cache.path(name));
    std::fs::write(&model, EMBEDDED_GGUF).unwrap();
    std::fs::write(&ids, format_tokens(tokens)).unwrap();
    (text(model), text(ids))
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

/// What it printed, on one line.
fn flat(ended: &Ended) -> String {
    ended.text().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn against_the_model(cache: &Cache, tokens: &[i32], more: &[&str]) -> Ended {
    let (model, ids) = files(cache, tokens);
    cache.run(PROGRAM, &[&["verify", "--against", &model, "--tokens", &ids], more].concat())
}

/// The rows of one plane as the model computed them: written by position.
type Rows = Vec<Vec<f32>>;

/// A cache's rows, changed and written again.
struct Editor {
    cache: Cache,
    count: u64,
}

impl Editor {
    fn new(params: Params) -> Self {
        let tokens = short_prompt();
        Self { cache: prefilled(params, &tokens), count: tokens.len() as u64 }
    }

    fn rows(&self, layer: u32, half: Half) -> Rows {
        let mapped = self.cache.mapped();
        let rows = if half == Half::K { mapped.k(layer).unwrap() } else { mapped.v(layer).unwrap() };
        let row = |position| {
            let mut row = vec![0.0; WIDTH];
            rows.read_f32(position, &mut row).unwrap();
            row
        };
        (0..self.count).map(row).collect()
    }

    /// Writes rows from position `first` on.
    fn write(&self, layer: u32, half: Half, first: u64, rows: &[Vec<f32>]) {
        let mut mapped = self.cache.mapped();
        let mut target = if half == Half::K { mapped.k_mut(layer).unwrap() } else { mapped.v_mut(layer).unwrap() };
        target.write_f32(first, &rows.concat()).unwrap();
    }

    /// Writes bytes at a place in a plane's tensor.
    fn write_bytes(&self, layer: u32, half: Half, offset: usize, bytes: &[u8]) {
        let name = format!("cache_{}_l{layer}", if half == Half::K { "k" } else { "v" });
        let placed = self.cache.header.tensors.iter().find(|placed| placed.tensor.name() == name).unwrap();
        assert!(offset + bytes.len() <= placed.tensor.bytes() as usize);
        let descriptor = &self.cache.descriptors[placed.region];
        assert_eq!(rustix::io::pwrite(descriptor, bytes, placed.offset + offset as u64).unwrap(), bytes.len());
    }

    /// Changes each plane's rows.
    fn change(&self, halves: &[Half], change: impl Fn(Rows) -> Rows) {
        for layer in 0..LAYERS {
            for half in halves {
                self.write(layer, *half, 0, &change(self.rows(layer, *half)));
            }
        }
    }

    /// Puts each plane's rows in place again as bytes: `bytes` makes them of one row, which go to `place`.
    fn store(&self, bytes: impl Fn(&[f32]) -> Vec<u8>, place: impl Fn(usize) -> usize) {
        for layer in 0..LAYERS {
            for half in Half::BOTH {
                for (position, row) in self.rows(layer, half).iter().enumerate() {
                    self.write_bytes(layer, half, place(position), &bytes(row));
                }
            }
        }
    }

    fn verify(&self, more: &[&str]) -> Ended {
        against_the_model(&self.cache, &short_prompt(), more)
    }
}

fn encoded(tensor_type: TensorType, row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; tensor_type.row_bytes(row.len() as u64).unwrap() as usize];
    encode_row(tensor_type, row, &mut bytes).unwrap();
    bytes
}

/// Turns the pair (x, y) of a head by `angle` times the pair's own step; the demo model's base is 10000.
fn turned(row: &[f32], positions: f64, pair: impl Fn(usize) -> (usize, usize)) -> Vec<f32> {
    let mut turned = row.to_vec();
    for head in (0..WIDTH).step_by(HEAD) {
        for index in 0..HEAD / 2 {
            let angle = positions * 10000_f64.powf(-2.0 * index as f64 / HEAD as f64);
            let (x, y) = pair(index);
            let (a, b) = (f64::from(row[head + x]), f64::from(row[head + y]));
            turned[head + x] = (a * angle.cos() - b * angle.sin()) as f32;
            turned[head + y] = (a * angle.sin() + b * angle.cos()) as f32;
        }
    }
    turned
}

fn neighbours(index: usize) -> (usize, usize) {
    (2 * index, 2 * index + 1)
}

fn halves(index: usize) -> (usize, usize) {
    (index, index + HEAD / 2)
}

fn each_position(rows: Rows, change: impl Fn(f64, Vec<f32>) -> Vec<f32>) -> Rows {
    rows.into_iter().enumerate().map(|(position, row)| change(position as f64, row)).collect()
}

/// A mistake: its name, what it is made in, how it is made, and which halves it spoils.
type Case = (&'static str, Params, fn(&Editor), &'static [Half]);

const K: &[Half] = &[Half::K];
const V: &[Half] = &[Half::V];
const BOTH: &[Half] = &Half::BOTH;

fn mistakes() -> Vec<Case> {
    vec![
        (
            "other_type q8_0",
            f16(),
            |editor| editor.store(|row| encoded(TensorType::Q8_0, row), |position| position * 34 * 2),
            BOTH,
        ),
        ("rows_late", f16(), rows_late, BOTH),
        ("rows_late", by_channel(), rows_late, BOTH),
        ("rows_early", f16(), |editor| editor.change(BOTH, |rows| [&rows[1..], &rows[..1]].concat()), BOTH),
        ("k_and_v_exchanged", f16(), exchange_halves, BOTH),
        ("k_and_v_exchanged", rotated(), exchange_halves, BOTH),
        ("k_and_v_exchanged", by_channel(), exchange_halves, BOTH),
        ("layers_exchanged", f16(), exchange_all_layers, BOTH),
        ("layers_exchanged", rotated(), exchange_all_layers, BOTH),
        ("v_by_channel", f16(), v_by_channel, V),
        ("v_by_position", by_channel(), v_by_position, V),
        ("before_rope", f16(), |editor| unturn(editor, 1.0), K),
        (
            "other_rope_pairing",
            f16(),
            |editor| {
                editor.change(K, |rows| {
                    each_position(rows, |position, row| turned(&turned(&row, -position, neighbours), position, halves))
                });
            },
            K,
        ),
        ("rope_position_late", f16(), |editor| turn_all(editor, 1.0), K),
        ("rope_position_early", f16(), |editor| turn_all(editor, -1.0), K),
        (
            "other_type bf16",
            f16(),
            |editor| editor.store(|row| encoded(TensorType::Bf16, row), |p| p * 2 * WIDTH),
            BOTH,
        ),
        ("other_type f32", f16(), |editor| editor.store(|row| encoded(TensorType::F32, row), |p| p * 4 * WIDTH), BOTH),
        (
            "other_type f16",
            Params::plain(CELLS, TensorType::F32),
            |editor| {
                editor.store(|row| encoded(TensorType::F16, row), |p| p * 2 * WIDTH);
            },
            BOTH,
        ),
        (
            "other_type bf16",
            Params::plain(CELLS, TensorType::F32),
            |editor| {
                editor.store(|row| [encoded(TensorType::Bf16, row), vec![0; 2 * WIDTH]].concat(), |p| p * 4 * WIDTH);
            },
            BOTH,
        ),
        (
            "other_type f16",
            rotated(),
            |editor| {
                editor.store(|row| encoded(TensorType::F16, row), |p| p * 2 * WIDTH);
            },
            BOTH,
        ),
        (
            "bytes_reversed",
            f16(),
            |editor| {
                editor.store(|row| swapped(encoded(TensorType::F16, row), 2), |p| p * 2 * WIDTH);
            },
            BOTH,
        ),
        (
            "bytes_reversed",
            Params::plain(CELLS, TensorType::F32),
            |editor| {
                editor.store(|row| swapped(encoded(TensorType::F32, row), 4), |p| p * 4 * WIDTH);
            },
            BOTH,
        ),
        (
            "not_rotated",
            rotated(),
            |editor| {
                editor.store(|row| encoded(TensorType::Q8_0, row), |p| p * 34 * 2);
            },
            BOTH,
        ),
        (
            "rotated",
            Params::plain(CELLS, TensorType::Q8_0),
            |editor| {
                editor.change(BOTH, |mut rows| {
                    rows.iter_mut().for_each(|row| rotate(row, 64).unwrap());
                    rows
                });
            },
            BOTH,
        ),
    ]
}

fn rows_late(editor: &Editor) {
    for layer in 0..LAYERS {
        for half in Half::BOTH {
            editor.write(layer, half, 1, &editor.rows(layer, half));
        }
    }
}

fn exchange_halves(editor: &Editor) {
    for layer in 0..LAYERS {
        let [k, v] = Half::BOTH.map(|half| editor.rows(layer, half));
        editor.write(layer, Half::K, 0, &v);
        editor.write(layer, Half::V, 0, &k);
    }
}

fn exchange_layers(editor: &Editor, a: u32, b: u32) {
    for half in Half::BOTH {
        let [of_a, of_b] = [a, b].map(|layer| editor.rows(layer, half));
        editor.write(a, half, 0, &of_b);
        editor.write(b, half, 0, &of_a);
    }
}

fn exchange_all_layers(editor: &Editor) {
    (0..LAYERS / 2).for_each(|layer| exchange_layers(editor, layer, LAYERS - 1 - layer));
}

fn v_by_channel(editor: &Editor) {
    for layer in 0..LAYERS {
        for (position, row) in editor.rows(layer, Half::V).iter().enumerate() {
            for (channel, value) in row.iter().enumerate() {
                let place = 2 * (channel * CELLS as usize + position);
                editor.write_bytes(layer, Half::V, place, &encoded(TensorType::F16, &[*value]));
            }
        }
    }
}

fn v_by_position(editor: &Editor) {
    for layer in 0..LAYERS {
        for (position, row) in editor.rows(layer, Half::V).iter().enumerate() {
            editor.write_bytes(layer, Half::V, position * 2 * WIDTH, &encoded(TensorType::F16, row));
        }
    }
}

fn unturn(editor: &Editor, share: f64) {
    editor.change(K, |rows| each_position(rows, |position, row| turned(&row, -share * position, neighbours)));
}

fn turn_all(editor: &Editor, positions: f64) {
    editor.change(K, |rows| each_position(rows, |_, row| turned(&row, positions, neighbours)));
}

fn swapped(mut bytes: Vec<u8>, element: usize) -> Vec<u8> {
    bytes.chunks_exact_mut(element).for_each(<[u8]>::reverse);
    bytes
}

/// `not_rotated`, or `other_type bf16`, of each explanation.
fn named(report: &Value) -> Vec<String> {
    let of = |explanation: &Value| {
        let name = explanation["mistake"].as_str().unwrap();
        let written = explanation["words"].as_str().unwrap().strip_prefix("the elements are ");
        let written =
            written.and_then(|words| words.split(',').next()).map_or(String::new(), |word| format!(" {word}"));
        format!("{name}{written}")
    };
    report["diagnosis"]["explanations"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn every_mistake_is_named_and_no_other_beside_it() {
    for (name, params, make, spoilt) in mistakes() {
        let editor = Editor::new(params.clone());
        make(&editor);
        let ended = editor.verify(&["--json"]);
        assert_eq!(ended.code, Some(1), "{name} {params:?}: {ended:?}");
        let report = ended.json();
        assert_eq!(named(&report), [name], "{params:?}: {}", editor.verify(&[]).text());
        let diagnosis = &report["diagnosis"];
        let explained = diagnosis["explanations"][0]["explains"].as_array().unwrap();
        assert_eq!(explained.len(), spoilt.len() * LAYERS as usize, "{name} {params:?}: {diagnosis}");
        assert_eq!((&diagnosis["unexplained"], &diagnosis["empty"]), (&json!([]), &json!([])), "{name} {params:?}");
        for plane in report["planes"].as_array().unwrap() {
            let is_spoilt = spoilt.iter().any(|half| plane["half"] == half.to_string());
            assert_eq!(plane["within_tolerance"], !is_spoilt, "{name} {params:?}: {plane}");
        }
    }
}

#[test]
fn what_is_right_is_said_to_be_whatever_its_type_and_however_it_lies() {
    let tokens = tokens("f16-fa-tiny-b.bin");
    for params in [f16(), by_channel(), rotated(), Params::plain(CELLS, TensorType::Bf16)] {
        let cache = prefilled(params.clone(), &tokens);
        let before = cache.bytes();
        let ended = against_the_model(&cache, &tokens, &["--json", "--tolerance", "0"]);
        assert_eq!(ended.code, Some(0), "{params:?}: {ended:?}");
        let report = ended.json();
        assert_eq!((&report["right"], &report["positions"]), (&json!(true), &json!(92)));
        assert_eq!(report["diagnosis"], Value::Null);
        assert_eq!(cache.bytes(), before);
    }
}

#[test]
fn a_right_cache_of_every_type_is_within_the_default_tolerance_of_one_of_f32() {
    let tokens = tokens("f16-fa-tiny-b.bin");
    let exact = prefilled(Params::plain(CELLS, TensorType::F32), &tokens);
    let (header, descriptors) = (text(exact.header_path()), exact.descriptors.len());
    for tensor_type in TensorType::ALL {
        let cache = prefilled(Params::plain(CELLS, tensor_type), &tokens);
        let numbers = |range: Range<usize>| range.map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        let (ours, all) = (3 + cache.descriptors.len(), [cache.borrowed(), exact.borrowed()].concat());
        let (fds, against) = (numbers(3..ours), numbers(ours..ours + descriptors));
        let layout = text(cache.header_path());
        let arguments = ["verify", "--json", "--layout", &layout, "--fds", &fds, "--against-fds", &against];
        let ended = run(PROGRAM, &[&arguments[..], &["--against-layout", &header]].concat(), &all);
        assert_eq!(ended.code, Some(0), "{tensor_type}: {ended:?}");
        assert_eq!(ended.json()["positions"], 92, "as many as were written");
    }
}

#[test]
fn a_state_file_of_the_stock_server_is_within_the_default_tolerance() {
    for (name, params) in
        [("f16-fa-tiny-b.bin", f16()), ("f16-nofa-tiny-b.bin", by_channel()), ("f32-fa-tiny-a.bin", f16())]
    {
        let tokens = tokens(name);
        let cache = prefilled(params, &tokens);
        let file = text(sample(&format!("tiny/{name}")));
        let ended = cache.run(PROGRAM, &["verify", "--json", "--against", &file]);
        assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
        assert_eq!(ended.json()["positions"], tokens.len());
        let strict = cache.run(PROGRAM, &["verify", "--against", &file, "--tolerance", "0.0001"]);
        assert_eq!(strict.code, Some(1), "the server rounds more than that: {}", strict.text());
        assert!(flat(&strict).contains("No mistake that is known here explains"), "{}", strict.text());
    }
}

#[test]
fn a_state_file_with_several_positions_a_token_is_taken_as_well() {
    let tokens = short_prompt();
    let cache = prefilled(f16(), &tokens);
    let path = text(cache.path("m-rope.bin"));
    let file = std::fs::read(sample("tiny/f16-fa-tiny-a.bin")).unwrap();
    std::fs::write(&path, with_m_rope(&file, tokens.len())).unwrap();
    let ended = cache.run(PROGRAM, &["verify", "--json", "--against", &path]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["positions"], tokens.len());
}

#[test]
fn every_stream_is_compared_by_itself() {
    let params = Params { n_stream: 2, ..f16() };
    let tokens = short_prompt();
    let cache = prefilled(params, &tokens);
    let stream = |number: &str, more: &[&str]| {
        against_the_model(&cache, &tokens, &[&["--json", "--stream", number], more].concat())
    };
    assert_eq!(stream("0", &[]).code, Some(0));
    let empty = stream("1", &[]);
    assert_eq!(empty.json()["planes"][0]["rows_empty"], tokens.len(), "{empty:?}");
    // The second stream gets the first one's rows, one place too late.
    let layers = cache.mapped().layers().to_vec();
    for planes in layers {
        for plane in [planes.k, planes.v] {
            let (from, bytes) = plane.rows(0, 0, tokens.len() as u64).unwrap();
            let (to, _) = plane.rows(1, 1, tokens.len() as u64).unwrap();
            let mut rows = vec![0; bytes as usize];
            rustix::io::pread(&cache.descriptors[plane.region], &mut rows, from).unwrap();
            rustix::io::pwrite(&cache.descriptors[plane.region], &rows, to).unwrap();
        }
    }
    let late = stream("1", &[]);
    assert_eq!((late.code, named(&late.json())), (Some(1), vec!["rows_late".to_owned()]));
    assert_eq!(late.json()["stream"], 1);
    assert_eq!(stream("0", &[]).code, Some(0), "the first one is as it was");
    let page = against_the_model(&cache, &tokens, &[]);
    assert!(flat(&page).contains("in stream 0 of 0 to 1 (--stream)"), "{}", page.text());
    let count = cache.descriptors.len();
    let numbers = |range: Range<usize>| range.map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let (fds, again, layout) = (numbers(3..3 + count), numbers(3 + count..3 + 2 * count), text(cache.header_path()));
    let arguments = ["verify", "--stream", "1", "--layout", &layout, "--fds", &fds, "--against-fds", &again];
    let with_itself = run(PROGRAM, &arguments, &[cache.borrowed(), cache.borrowed()].concat());
    assert_eq!(with_itself.code, Some(0), "{with_itself:?}");
    let none = stream("2", &[]);
    assert_eq!(none.json_error(), "there is no stream 2; the cache's streams are 0 to 1");
}

/// The demo model with its heads' channels in another order: pairs of halves become pairs of neighbours.
///
/// Evaluated, and its K put back in order, it is a provider that pairs halves where this architecture pairs neighbours:
/// all that follows from the mistake is in its rows, too.
fn model_that_pairs_halves() -> Model {
    let content = Content::read(&mut Cursor::new(EMBEDDED_GGUF)).unwrap();
    let mut gguf = EMBEDDED_GGUF.to_vec();
    let is_turned = |name: &str| name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
    let turned = content.tensor_infos.iter().filter(|(name, _)| is_turned(name));
    let mut count = 0;
    for (_, info) in turned {
        let [rows, width] = info.shape.dims() else { panic!("a matrix") };
        let row_bytes = width / info.ggml_dtype.block_size() * info.ggml_dtype.type_size();
        let start = (content.tensor_data_offset + info.offset) as usize;
        let weights = &EMBEDDED_GGUF[start..][..rows * row_bytes];
        for row in 0..*rows {
            let (head, channel) = (row / HEAD * HEAD, row % HEAD);
            let source = head + channel / 2 + channel % 2 * (HEAD / 2);
            gguf[start + row * row_bytes..][..row_bytes].copy_from_slice(&weights[source * row_bytes..][..row_bytes]);
        }
        count += 1;
    }
    assert_eq!(count, 2 * LAYERS);
    Model::read(Cursor::new(gguf)).unwrap()
}

#[test]
fn a_whole_prefill_with_the_wrong_rope_pairing_is_told_by_its_first_layer() {
    let tokens = short_prompt();
    let cache = Cache::new(LAYERS, WIDTH as u64, CELLS.into(), f16());
    let ids: Vec<u32> = tokens.iter().map(|token| token.cast_unsigned()).collect();
    model_that_pairs_halves().evaluate(&ids, 0, &mut CacheRows::new(&mut cache.mapped())).unwrap();
    let editor = Editor { cache, count: tokens.len() as u64 };
    editor.change(K, |rows| {
        let in_order = |row: Vec<f32>| {
            let place = |channel: usize| channel / HEAD * HEAD + channel % (HEAD / 2) * 2 + channel % HEAD / (HEAD / 2);
            (0..WIDTH).map(|channel| row[place(channel)]).collect()
        };
        rows.into_iter().map(in_order).collect()
    });
    let report = editor.verify(&["--json"]).json();
    assert_eq!(named(&report), ["other_rope_pairing"], "{}", editor.verify(&[]).text());
    let explanation = &report["diagnosis"]["explanations"][0];
    let explained = explanation["explains"].as_array().unwrap();
    assert_eq!((explained.len(), &explained[0]["layer"], &explained[0]["half"]), (1, &json!(0), &json!("K")));
    assert!(explanation["words"].as_str().unwrap().contains("paired halves"), "{explanation}");
    assert_eq!(report["planes"][1]["within_tolerance"], true, "V of the first layer knows nothing of positions");
    let page = editor.verify(&[]);
    assert!(flat(&page).contains("may follow from that"), "{}", page.text());
}

#[test]
fn the_wrong_element_is_named_with_its_head() {
    let editor = Editor::new(f16());
    let mut row = editor.rows(5, Half::V)[17].clone();
    row[HEAD + 9] = 40.0;
    editor.write(5, Half::V, 17, &[row]);
    let report = editor.verify(&["--json"]).json();
    let worst = &report["worst"];
    let place = json!({"layer": 5, "half": "V", "position": 17, "head": 1, "element": 9});
    for (field, expected) in place.as_object().unwrap() {
        assert_eq!(&worst[field], expected, "{field}: {worst}");
    }
    assert_eq!(worst["found"], 40.0);
    let plane = &report["planes"][11];
    assert_eq!((&plane["rows_off"], &plane["first_row_off"]), (&json!(1), &json!(17)), "{plane}");
    let ended = editor.verify(&[]);
    assert!(flat(&ended).contains("WRONG: V of layer 5."), "{}", ended.text());
    assert!(flat(&ended).contains("in layer 5, V, head 1, element 9, position 17: 40 instead of"), "{}", ended.text());
}

#[test]
fn one_wrong_row_of_many_is_not_lost_in_the_mean() {
    let tokens = tokens("f16-fa-tiny-b.bin");
    let cache = prefilled(f16(), &tokens);
    let mut row = [0.0; WIDTH];
    cache.mapped().v(3).unwrap().read_f32(70, &mut row).unwrap();
    let smaller = row.map(|value| value * 0.4);
    cache.mapped().v_mut(3).unwrap().write_f32(70, &smaller).unwrap();
    let report = against_the_model(&cache, &tokens, &["--json"]).json();
    let plane = &report["planes"][7];
    assert!(plane["relative_error"].as_f64().unwrap() < 0.08, "{plane}");
    assert_eq!((&plane["within_tolerance"], &plane["rows_off"]), (&json!(false), &json!(1)), "{plane}");
}

#[test]
fn rows_that_were_never_written_are_no_mistake_of_arithmetic() {
    let editor = Editor::new(f16());
    for position in 4..9 {
        editor.write(6, Half::K, position, &[vec![0.0; WIDTH]]);
    }
    let ended = editor.verify(&[]);
    assert!(
        flat(&ended).contains("Never written: rows of K of layer 6 are all 0 (5 rows, the first at position 4)."),
        "{}",
        ended.text()
    );
    assert_eq!(editor.verify(&["--json"]).json()["diagnosis"]["empty"], json!([{"layer": 6, "half": "K"}]));
}

#[test]
fn a_number_that_is_none_is_wrong_and_found() {
    let editor = Editor::new(f16());
    let mut row = editor.rows(2, Half::K)[3].clone();
    row[0] = f32::NAN;
    editor.write(2, Half::K, 3, &[row]);
    let ended = editor.verify(&["--json"]);
    assert_eq!(ended.code, Some(1));
    let report = ended.json();
    assert_eq!(report["planes"][4]["relative_error"], Value::Null);
    assert_eq!((&report["worst"]["found_is"], &report["worst"]["layer"]), (&json!("NaN"), &json!(2)));
    assert!(flat(&editor.verify(&[])).contains("NaN instead of"));
}

#[test]
fn two_layers_that_are_exchanged_are_named() {
    let editor = Editor::new(f16());
    exchange_layers(&editor, 2, 5);
    let ended = editor.verify(&[]);
    for words in ["Probably: they are other layers' rows", "K of layer 2 is in cache_k_l5", "K and V of layers 2 and 5"]
    {
        assert!(flat(&ended).contains(words), "{words}: {}", ended.text());
    }
}

#[test]
fn a_mistake_that_explains_only_the_first_layers_is_named_with_what_follows() {
    // As from a provider that turns Q and K wrongly: from layer 1 on its input is another.
    let editor = Editor::new(f16());
    turn_all(&editor, 1.0);
    for layer in 1..LAYERS {
        for half in Half::BOTH {
            let rows = editor.rows(layer, half).into_iter().rev().collect::<Vec<_>>();
            editor.write(layer, half, 0, &rows);
        }
    }
    let ended = editor.verify(&[]);
    for words in ["RoPE turned K by one position too many", "That explains K of layer 0", "may follow from that"] {
        assert!(flat(&ended).contains(words), "{words}: {}", ended.text());
    }
}

#[test]
fn a_mistake_that_begins_midway_is_named_with_its_beginning() {
    let editor = Editor::new(f16());
    for layer in 0..LAYERS {
        for half in Half::BOTH {
            editor.write(layer, half, 11, &editor.rows(layer, half)[10..]);
        }
    }
    let ended = editor.verify(&[]);
    for words in ["each row lies one place too late", "K and V of all 8 layers from position 11 on", "exactly right"] {
        assert!(flat(&ended).contains(words), "{words}: {}", ended.text());
    }
}

#[test]
fn other_tokens_and_another_model_are_honestly_not_explained() {
    let tokens = short_prompt();
    let mut other = tokens.clone();
    other[12] = 500;
    let cache = prefilled(f16(), &other);
    let ended = against_the_model(&cache, &tokens, &[]);
    assert_eq!(ended.code, Some(1));
    assert!(!flat(&ended).contains("Probably"), "{}", ended.text());
    assert!(
        flat(&ended).contains("It is off in 1 of 22 rows") && flat(&ended).contains("the same tokens"),
        "{}",
        ended.text()
    );

    // RoPE's base is not among the mistakes: the key's value in the GGUF, 10000, becomes 20000.
    let editor = Editor::new(f16());
    let (model, ids) = files(&editor.cache, &tokens);
    let mut gguf = EMBEDDED_GGUF.to_vec();
    let key = b"llama.rope.freq_base";
    let at = gguf.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    gguf[at..at + 4].copy_from_slice(&20_000_f32.to_le_bytes());
    std::fs::write(&model, gguf).unwrap();
    let ended = editor.cache.run(PROGRAM, &["verify", "--against", &model, "--tokens", &ids]);
    assert_eq!(ended.code, Some(1));
    assert!(!flat(&ended).contains("Probably"), "{}", ended.text());
    assert!(flat(&ended).contains("V of layer 0 is right") && flat(&ended).contains("base"), "{}", ended.text());
}

#[test]
fn without_the_model_it_is_said_what_was_not_looked_for() {
    let editor = Editor::new(f16());
    let file = text(editor.cache.path("right.bin"));
    let (model, ids) = files(&editor.cache, &short_prompt());
    let saved = editor.cache.run(PROGRAM, &["state", "from-regions", &file, "--tokens", &ids]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    unturn(&editor, 1.0);
    let blind = editor.cache.run(PROGRAM, &["verify", "--against", &file]);
    assert!(flat(&blind).contains("RoPE's mistakes were not looked for"), "{}", blind.text());
    let seeing = editor.cache.run(PROGRAM, &["verify", "--against", &file, "-m", &model]);
    assert!(flat(&seeing).contains("Probably: K was stored before RoPE"), "{}", seeing.text());
}

#[test]
fn the_page_fits_100_columns() {
    let editor = Editor::new(f16());
    exchange_halves(&editor);
    let ended = editor.verify(&[]);
    let table = ended.text().lines().skip_while(|line| !line.contains("K error")).take_while(|line| !line.is_empty());
    let widths: Vec<usize> = table.map(|line| line.trim_end().chars().count()).collect();
    assert_eq!(widths.len(), 9, "{}", ended.text());
    assert!(widths.iter().all(|width| *width <= 100), "{widths:?}");
}

#[test]
fn tokens_come_as_a_file_a_list_or_a_text() {
    let tokens = short_prompt();
    let cache = prefilled(f16(), &tokens);
    let (model, ids) = files(&cache, &tokens);
    let list = tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let prompt =
        "<|im_start|>user\nTell me a story about a robot named Zed and a lamp.<|im_end|>\n<|im_start|>assistant\n";
    for prompt in [["--tokens", &ids], ["--token-ids", &list], ["--prompt", prompt]] {
        let ended = cache.run(PROGRAM, &[&["verify", "--against", &model], &prompt[..]].concat());
        assert_eq!(ended.code, Some(0), "{prompt:?}: {ended:?}");
    }
}

#[test]
fn what_cannot_be_compared_is_refused_with_the_reason() {
    let tokens = short_prompt();
    let cache = prefilled(f16(), &tokens);
    let (model, ids) = files(&cache, &tokens);
    let (tiny, other) = (text(sample("tiny/f16-fa-tiny-a.bin")), text(sample("f16-fa-a.bin")));
    let other_ids = text(cache.path("other.tokens"));
    let mut changed = tokens.clone();
    changed[4] = 7;
    std::fs::write(&other_ids, format_tokens(&changed)).unwrap();
    let long_ids = text(cache.path("long.tokens"));
    std::fs::write(&long_ids, format_tokens(&[300; 102])).unwrap();
    let header = text(cache.header_path());
    let cases: [(&[&str], &str); 11] = [
        (&["--against", &model], "a model needs a prompt"),
        (&["--against", &tiny, "--prompt", "a text"], "--prompt needs a model"),
        (&["--against", &other], "8 layers with a cache, what they are compared with has 30"),
        (&["--against", &tiny, "--tokens", &other_ids], "token 4 in the state file is 385, in the prompt 7"),
        (
            &["--against", &model, "--tokens", &long_ids],
            "102 positions are to be compared, but the regions have only 101 cells",
        ),
        (&["--against", &model, "--token-ids", "5000"], "token id 5000 is not in the model's vocabulary"),
        (&["--against", &header], "is neither a GGUF nor a state file: it starts with [7b"),
        (&["--against", "/no/such.bin"], "cannot read /no/such.bin"),
        (&["--against", "/"], "cannot read /: it is no file"),
        (&["--against-fds", "77"], "no descriptor is open at 77"),
        (&["--against", &tiny, "-m", "/no/such.gguf"], "/no/such.gguf"),
    ];
    for (arguments, reason) in cases {
        let ended = cache.run(PROGRAM, &[&["verify", "--json"], arguments].concat());
        assert_eq!(ended.code, Some(1), "{reason}: {ended:?}");
        assert!(ended.json_error().contains(reason), "{reason}: {}", ended.stderr);
    }
    let closed = run(PROGRAM, &["verify", "--layout", &header, "--fds", "9", "--against", &tiny], &[]);
    assert!(closed.stderr.contains("no descriptor is open at 9"), "{}", closed.stderr);
    for misuse in
        [&["verify", "--layout", "x", "--fds", "3"][..], &["verify", "--against", "x"], &["verify", "--tokens", &ids]]
    {
        assert_eq!(run(PROGRAM, misuse, &[]).code, Some(2), "{misuse:?}");
    }
}

#[test]
fn a_header_of_another_model_is_refused() {
    let cache = Cache::new(2, 64, 100, Params::plain(100, TensorType::F16));
    let ended = against_the_model(&cache, &short_prompt(), &[]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cache_k_l2"), "{}", ended.stderr);
    let narrow = Cache::new(LAYERS, 32, 100, Params::plain(100, TensorType::F16));
    let ended = narrow.run(PROGRAM, &["verify", "--against", &text(sample("tiny/f16-fa-tiny-a.bin"))]);
    assert!(ended.stderr.contains("K rows of layer 0 have 32 elements in the regions, and 64"), "{}", ended.stderr);
    let empty = Cache::small(0);
    let ended = run(
        PROGRAM,
        &["verify", "--layout", &text(empty.header_path()), "--fds", "3", "--against-fds", "4"],
        &[empty.borrowed(), empty.borrowed()].concat(),
    );
    assert!(ended.stderr.contains("nothing was written in the regions to compare with"), "{}", ended.stderr);
}
