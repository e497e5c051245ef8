//! The commands of the README, as a stranger types them: what they print, and what they exit with.

use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_demo_gives_one_answer_by_every_route_and_the_checker_finds_every_element_right() {
    let output = run(&["demo", "--json"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let answers = report["story"]["answers"].as_array().unwrap();
    let routes: Vec<&str> = answers.iter().map(|answer| answer["route"].as_str().unwrap()).collect();
    assert_eq!(routes, ["shared", "file", "none"]);
    for answer in answers {
        assert_eq!(answer["text"], "The puppet was behind the house.");
    }
    let rows = report["sizes"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(row["verdict"].as_str().unwrap().ends_with("is right"), "{row}");
        assert_eq!(row["evaluated"], 1);
        let (crossed, copied) = (row["crossed_bytes"].as_u64().unwrap(), row["copied_bytes"].as_u64().unwrap());
        let tokens = row["prompt_tokens"].as_u64().unwrap();
        if row["route"] == "shared" {
            assert!(crossed < 10_000 && copied == 0, "{row}");
        } else {
            assert!(crossed > tokens * 114_688 * 99 / 100, "28 layers of 2 x 1024 halves a token: {row}");
        }
    }
    assert_eq!(report["sizes"]["region_bytes"], 2240_u64 << 20);
    // One copy: the cells in use, which are 12722 of 20480, and what a small program takes besides.
    let peak = report["sizes"]["decoder_peak_bytes"].as_u64().unwrap();
    assert!(peak < 12_722 * 114_688 + (100 << 20), "{peak}");
}

#[test]
fn the_readmes_provider_is_the_one_that_is_compiled() {
    let example = include_str!("../kvshare/examples/provider.rs");
    let readme = include_str!("../README.md");
    assert!(readme.contains(&format!("```rust\n{example}```\n")));
}

#[test]
fn the_layout_of_the_design_is_printed() {
    let shape = ["layout", "--layers", "28", "--k-width", "1024", "--v-width", "1024", "--cells", "20480"];
    let text = run(&shape);
    assert!(text.status.success());
    for number in ["1048576000", "251658240", "17540425994995006612", "1589745360344459949", "cache_v_l27"] {
        assert!(stdout(&text).contains(number), "{number}");
    }
    let json = run(&[&shape[..], &["--type", "f16", "--json"]].concat());
    let layout: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(layout["regions"][2]["layout"], 1_589_745_360_344_459_949_u64);
    assert_eq!(layout["tensors"].as_array().unwrap().len(), 56);
}

#[test]
fn a_layout_is_taken_from_a_model() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");
    let output = run(&["layout", "--model", model, "--cells", "2048", "--json"]);
    let layout: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(layout["bytes"], 4 << 20);
    assert_eq!(layout["tensors"].as_array().unwrap().len(), 16);
}

#[test]
fn misuse_exits_with_2_and_failure_with_1_and_both_say_why() {
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 2, "Usage"),
        (&["no-such-command"], 2, "no-such-command"),
        (&["layout", "--cells", "1"], 2, "--layers"),
        (&["layout", "--layers", "1", "--k-width", "1", "--v-width", "1", "--cells", "1", "--type", "f17"], 2, "f17"),
        (&["layout", "--layers", "1", "--k-width", "33", "--v-width", "32", "--cells", "1", "--type", "q8_0"], 1, "33"),
        (&["layout", "--model", "/no/such.gguf", "--cells", "1"], 1, "/no/such.gguf"),
        (&["demo", "--model", "/no/such.gguf"], 1, "/no/such.gguf"),
        (&["demo", "--model", "/etc/passwd"], 1, "GGUF"),
        (&["reference-provider", "--tokens", "x"], 2, "neither --out"),
    ];
    for (arguments, code, words) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in ["demo", "layout", "fake-exporter", "reference-provider"] {
        let output = run(&[command, "--help"]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("Example"), "{command}");
        assert!(stdout(&output).contains(&format!("{command} ")), "{command}");
    }
}
