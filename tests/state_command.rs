//! `kvshare-cli state` shows, checks, compares and converts what a stock llama-server saved.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use kvshare::header::Params;
use kvshare::layout::TensorType;
use kvshare_tests::eyes::{Cache, Ended, run, with_m_rope};
use kvshare_tests::sample;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

fn state(arguments: &[&str]) -> Ended {
    run(PROGRAM, &[&["state"], arguments].concat(), &[])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every file that a server saved.
fn samples() -> Vec<PathBuf> {
    let names = ["", "tiny"].into_iter().flat_map(|folder| {
        let entries = std::fs::read_dir(sample(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|ext| ext == "bin"))
    });
    let names: Vec<PathBuf> = names.collect();
    assert!(names.len() > 10);
    names
}

/// A sample's bytes after `change`, as a file.
fn changed(directory: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = std::fs::read(sample("f16-fa-a.bin")).unwrap();
    change(&mut bytes);
    let path = directory.join("changed.bin");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Where things lie in `f16-fa-a.bin`, which has 5 packed tokens in one stream.
const N_WORDS: usize = 8;
const FIRST_TOKEN: usize = 24;
const FIRST_POSITION: usize = FIRST_TOKEN + 5 * 4 + 4 + 4 + 4;
const FIRST_K_ROW: usize = FIRST_POSITION + 5 * 12 + 16 + 12;

#[test]
fn every_file_that_a_server_saved_is_good() {
    let samples = samples();
    let paths: Vec<&str> = samples.iter().map(|path| text(path)).collect();
    let ended = state(&[&["check", "--json", "--n-vocab", "49152"], &paths[..]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.text());
    assert_eq!(ended.json()["good"], true);
    assert_eq!(ended.json()["files"].as_array().unwrap().len(), samples.len());
}

#[test]
fn a_file_that_cannot_be_read_hides_nothing_of_the_others() {
    let good = sample("f16-fa-a.bin");
    for json in [&[][..], &["--json"]] {
        let ended = state(&[&["check"], json, &["/no/such.bin", text(&good), "/no/other.bin"]].concat());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.text().contains("f16-fa-a.bin"), "{ended:?}");
        for name in ["/no/such.bin", "/no/other.bin"] {
            assert!(ended.stderr.contains(name), "{ended:?}");
        }
    }
}

#[test]
fn a_file_with_several_positions_a_token_is_read_when_told_so_and_known_when_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = changed(directory.path(), |bytes| *bytes = with_m_rope(bytes, 5));
    let (path, other) = (text(&path), directory.path().join("other.bin"));
    let commands: [&[&str]; 4] =
        [&["show", path], &["check", path], &["diff", path, path], &["convert", path, text(&other), "--type", "f32"]];
    for command in commands {
        let ended = state(command);
        assert_eq!(ended.code, Some(1), "{command:?}: {ended:?}");
        assert!(ended.stderr.contains("(M-RoPE); give --m-rope"), "{command:?}: {}", ended.stderr);
        let ended = state(&[command, &["--m-rope"]].concat());
        assert_eq!(ended.code, Some(0), "{command:?}: {ended:?}");
    }
}

#[test]
fn check_says_what_is_wrong_and_what_the_server_would_do() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, &str, &str); 10] = [
        (|bytes| bytes.truncate(bytes.len() - 1), "ends inside the V rows of layer 29", "aborts"),
        (|bytes| bytes.truncate(20), "ends inside the token section", "refuses"),
        (|bytes| bytes[0] = 0, "starts with", "refuses"),
        (|bytes| bytes[4] = 3, "version 3", "refuses"),
        (|bytes| bytes.push(0), "1 more follow", "does not notice"),
        (|bytes| bytes[FIRST_POSITION] = 10, "cell 0 of the state file has position 10", "does not notice"),
        (|bytes| bytes[FIRST_TOKEN..][..4].fill(0xff), "outside the model's vocabulary", "refuses"),
        (|bytes| bytes[N_WORDS] = 200, "token section", "not known"),
        (
            |bytes| bytes[FIRST_K_ROW..][..2].copy_from_slice(&[0, 0x7e]),
            "cache_k_l0: row 0 is odd: not a number",
            "does not notice",
        ),
        (|bytes| bytes[FIRST_K_ROW + 384..][..384].fill(0), "cache_k_l0: 1 of 5 rows are all 0", "does not notice"),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (change, message, server) in cases {
        let path = changed(directory.path(), change);
        let ended = state(&["check", "--json", "--n-vocab", "49152", text(&path)]);
        assert_eq!(ended.code, Some(1), "{message}: {ended:?}");
        let report = ended.json();
        let finding = &report["files"][0]["findings"][0];
        assert!(finding["message"].as_str().unwrap().contains(message), "{message}: {report}");
        assert_eq!(finding["stock_server"], server, "{message}");
    }
}

#[test]
fn check_compares_with_the_prompt_and_with_a_file_of_the_servers_own() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("prompt.tokens");
    let [a, no_fa, q8] = ["f16-fa-a.bin", "f16-nofa-a.bin", "q8-fa-a.bin"].map(sample);
    std::fs::write(&tokens, "504\n3575\n282\n4649\n314\n").unwrap();
    let check = |more: &[&str]| state(&[&["check", "--json", "--tokens", text(&tokens)], more].concat());
    assert_eq!(check(&["--like", text(&a), text(&a)]).code, Some(0));
    let cases: [(&Path, &[&str], &str); 3] = [
        (&no_fa, &["--like"], "v_trans"),
        (&q8, &["--like"], "rotated by 0, the decoder's by 64"),
        (&a, &["--n-ctx", "4"], "the cache 4"),
    ];
    for (like, arguments, message) in cases {
        let more =
            if arguments.len() == 1 { vec!["--like", text(like), text(&a)] } else { [arguments, &[text(&a)]].concat() };
        let report = check(&more).json();
        assert!(report["files"][0]["findings"].to_string().contains(message), "{message}: {report}");
    }
    std::fs::write(&tokens, "504\n3575\n282\n4649\n315\n").unwrap();
    let report = check(&[text(&a)]).json();
    let finding = &report["files"][0]["findings"][0];
    assert_eq!(finding["message"], "token 4 in the state file is 314, in the prompt 315; prefill exactly the prompt");
    assert_eq!(finding["stock_server"], "does not notice");
}

#[test]
fn a_file_is_shown_in_words() {
    let ended = run(PROGRAM, &["state", "show", text(&sample("kq8-nofa-a.bin"))], &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (words, table) = ended.text().split_once("\n\n tensor").unwrap();
    let (_, words) = words.split_once(": ").unwrap();
    snapbox::assert_data_eq!(
        words,
        snapbox::str![[r#"
a llama.cpp sequence state, version 4, 89052 bytes (87 KiB)

tokens    5 (packed, no media): 504 3575 282 4649 314
streams   1
stream 0  5 cells, positions 0 to 4, sequence 0
rows      30 layers, K q8_0 x 192, V f16 x 192; V lies by channel (no flash attention)
rotation  K by 64, V none
"#]]
    );
    assert_eq!(table.lines().count(), 61);

    let report = state(&["show", "--json", text(&sample("f16-fa-np2-slot1-a.bin"))]).json();
    assert_eq!((&report["n_stream"], &report["streams"][0]["stream"]), (&json!(2), &json!(1)));
    assert_eq!(report["tokens"], json!([504, 3575, 282, 4649, 314]));
}

#[test]
fn a_conversion_there_and_back_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let chains: [(&str, &[&[&str]]); 6] = [
        ("f16-fa-a.bin", &[&["--type", "f32"], &["--type", "f16"]]),
        ("f16-fa-a.bin", &[&["--v-trans", "1"], &["--v-trans", "0"]]),
        ("f16-nofa-b.bin", &[&["--type", "f32", "--v-trans", "0"], &["--type", "f16", "--v-trans", "1"]]),
        ("f16-fa-np2-slot1-a.bin", &[&["--v-trans", "1"], &["--v-trans", "0"]]),
        ("kq8-nofa-a.bin", &[&["--v-trans", "0"], &["--v-trans", "1"]]),
        ("tiny/f32-fa-tiny-a.bin", &[&["--v-trans", "1"], &["--v-trans", "0"]]),
    ];
    for (name, steps) in chains {
        let mut from = sample(name);
        for (index, step) in steps.iter().enumerate() {
            let to = path(&format!("step-{index}.bin"));
            let ended = state(&[&["convert", text(&from), text(&to)], *step].concat());
            assert_eq!(ended.code, Some(0), "{name} {step:?}: {ended:?}");
            assert_eq!(state(&["check", text(&to)]).code, Some(0), "{name} {step:?}");
            from = to;
        }
        assert!(std::fs::read(&from).unwrap() == std::fs::read(sample(name)).unwrap(), "{name} came back changed");
    }
}

#[test]
fn a_conversion_changes_no_number_by_more_than_its_type_does() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("converted.bin");
    for (name, arguments, tolerance) in [
        ("f16-fa-b.bin", ["--type", "f32"], "0"),
        ("f16-fa-b.bin", ["--type", "bf16"], "0.005"),
        ("q8-fa-b.bin", ["--type", "f16"], "0.001"),
        ("kq8-nofa-b.bin", ["--type", "f32"], "0"),
        ("f16-nofa-b.bin", ["--v-trans", "0"], "0"),
    ] {
        let from = sample(name);
        assert_eq!(state(&[&["convert", text(&from), text(&to)], &arguments[..]].concat()).code, Some(0));
        let diff = state(&["diff", text(&from), text(&to), "--tolerance", tolerance]);
        assert_eq!(diff.code, Some(0), "{name} {arguments:?}: {}", diff.text());
    }
}

#[test]
fn a_quantized_v_cannot_lie_by_channel() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("never.bin");
    let ended = state(&["convert", text(&sample("q8-fa-a.bin")), text(&to), "--v-trans", "1"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("flash attention"), "{}", ended.stderr);
    assert!(!to.exists());
}

#[test]
fn a_difference_is_found_and_placed() {
    let directory = tempfile::tempdir().unwrap();
    let right = sample("f16-fa-a.bin");
    let same = state(&["diff", "--json", text(&right), text(&right)]);
    assert_eq!((same.code, &same.json()["equal"]), (Some(0), &json!(true)));

    // Channel 7 of row 2 of K in layer 0.
    let other = changed(directory.path(), |bytes| bytes[FIRST_K_ROW + 2 * 384 + 15] ^= 0x80);
    let differs = state(&["diff", "--json", text(&right), text(&other)]);
    let report: Value = differs.json();
    assert_eq!(differs.code, Some(1));
    assert_eq!(report["layers"][0]["k"]["first"], json!([2, 7]));
    assert_eq!(report["layers"][0]["v"]["first"], Value::Null);
    assert_eq!(report["layers"][1]["k"]["relative_error"], 0.0);

    let report = state(&["diff", "--json", text(&right), text(&sample("f16-fa-b.bin"))]).json();
    assert!(report["differences"].to_string().contains("5 tokens against 14"), "{report}");
    let report = state(&["diff", text(&right), text(&sample("tiny/f16-fa-tiny-a.bin"))]);
    assert!(report.text().contains("another model") && report.text().contains("DIFFER"), "{}", report.text());

    // A quantized cache of the same prompt holds about the same numbers.
    let near = state(&["diff", text(&right), text(&sample("q8-fa-a.bin")), "--tolerance", "0.08"]);
    assert_eq!(near.code, Some(0), "{}", near.text());
}

#[test]
fn rows_go_from_a_file_into_regions_and_back() {
    let file = sample("f16-fa-a.bin");
    for params in [
        Params::plain(64, TensorType::F16),
        Params { v_trans: true, flash_attn: false, ..Params::plain(64, TensorType::F16) },
        Params::plain(64, TensorType::F32),
    ] {
        let cache = Cache::new(30, 192, 64, params.clone());
        let tokens = cache.path("tokens");
        std::fs::write(&tokens, "504\n3575\n282\n4649\n314\n").unwrap();
        let written = cache.run(PROGRAM, &["state", "into-regions", text(&file)]);
        assert_eq!((written.code, written.text()), (Some(0), "wrote 5 cells of 30 layers\n"), "{written:?}");
        let back = cache.path("back.bin");
        let read = cache.run(PROGRAM, &["state", "from-regions", text(&back), "--tokens", text(&tokens)]);
        assert_eq!(read.code, Some(0), "{read:?}");
        let diff = state(&["diff", text(&file), text(&back)]);
        assert_eq!(diff.code, Some(0), "{params:?}: {}", diff.text());
        if params == Params::plain(64, TensorType::F16) {
            assert!(std::fs::read(&file).unwrap() == std::fs::read(&back).unwrap());
        }
    }
}

#[test]
fn plain_files_are_taken_as_regions_only_when_told_so() {
    let cache = Cache::new(30, 192, 64, Params::plain(64, TensorType::F16));
    let region = cache.path("region.bin");
    std::fs::write(&region, &cache.bytes()[0]).unwrap();
    let region = std::fs::File::options().read(true).write(true).open(&region).unwrap();
    let (file, header) = (sample("f16-fa-a.bin"), cache.header_path());
    let arguments = ["state", "into-regions", text(&file), "--layout", text(&header), "--fds", "3"];
    let refused = run(PROGRAM, &arguments, &[region.as_fd()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("not sealed"), "{}", refused.stderr);
    let taken = run(PROGRAM, &[&arguments[..], &["--unsealed"]].concat(), &[region.as_fd()]);
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let inspected =
        run(PROGRAM, &["inspect", "--json", "--layout", text(&header), "--fds", "3"], &[region.as_fd()]).json();
    assert_eq!(inspected["layout"]["tensors"][0]["streams"][0]["written"], 5);
}

#[test]
fn regions_that_do_not_fit_the_file_stay_as_they_are() {
    let file = sample("f16-fa-a.bin");
    for (layers, width, cells, reason) in
        [(29, 192, 64, "30 layers"), (30, 256, 64, "192 elements on the one side, 256"), (30, 192, 4, "only 4 cells")]
    {
        let cache = Cache::new(layers, width, cells, Params::plain(u32::try_from(cells).unwrap(), TensorType::F16));
        let before = cache.bytes();
        let ended = cache.run(PROGRAM, &["state", "into-regions", text(&file)]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(reason), "{}", ended.stderr);
        assert!(cache.bytes() == before);
    }
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    for (path, reason) in
        [(text(&pipe), "is no file"), (text(directory.path()), "is no file"), ("/no/such.bin", "cannot open")]
    {
        let ended = state(&["check", "--json", path]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.json_error().contains(reason), "{ended:?}");
        assert!(state(&["show", path]).stderr.starts_with("kvshare-cli: "), "{path}");
    }
}
