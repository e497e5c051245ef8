//! `kvshare-cli gate` passes what is right, and names the place of what is not.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use kvshare_tests::Stage;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

/// Runs the gate with few tokens and one handoff each, since no test here is about times.
fn gate(arguments: &[&str]) -> Output {
    let quick = ["gate", "--json", "--runs", "1", "--tokens", "12"];
    Command::new(PROGRAM).args(quick).args(arguments).output().unwrap()
}

/// The gate of a running decoder and a provider that is a shell script with the reference provider in `$PROVIDER`.
fn gate_of(stage: &Stage, script: &str, arguments: &[&str]) -> Output {
    let directory = stage.cycle.slot_directory.display().to_string();
    let provider = format!("{directory}/provider");
    std::fs::write(&provider, format!("#!/bin/sh\nPROVIDER='{PROGRAM} reference-provider'\n{script}\n")).unwrap();
    std::fs::set_permissions(&provider, Permissions::from_mode(0o700)).unwrap();
    let model = stage.cycle.provider.model.display().to_string();
    let url = stage.decoder.address();
    let deployment = ["--backend-url", url, "--slot-dir", &directory, "--prefill-provider", &provider, "-m", &model];
    let pid = stage.decoder.id().to_string();
    gate(&[&deployment[..], &["--backend-pid", &pid, "--lengths", "24,80"], arguments].concat())
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Route and prompt of each finding.
fn places(report: &Value) -> Vec<(String, Option<u64>)> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|finding| (finding["route"].as_str().unwrap().to_owned(), finding["prompt_tokens"].as_u64())).collect()
}

fn words(report: &Value) -> String {
    report["findings"].to_string()
}

#[test]
fn the_stand_ins_pass_at_three_lengths() {
    let output = gate(&["--lengths", "24,400,96"]);
    let report = report(&output);
    assert!(output.status.success() && report["passed"] == true, "{report:#}");
    let lengths = report["lengths"].as_array().unwrap();
    let prompts: Vec<u64> = lengths.iter().map(|length| length["prompt_tokens"].as_u64().unwrap()).collect();
    assert_eq!(prompts, [24, 96, 400]);
    for length in lengths {
        let none = &length["none"];
        assert!(length["rows"].as_array().unwrap().iter().all(|pair| pair["farthest"]["error"] == 0.0), "{length:#}");
        assert_eq!(length["rows"].as_array().unwrap().len(), 3);
        assert_eq!(none["evaluated"], length["prompt_tokens"]);
        let [shared, file] = [0, 1].map(|index| &length["handoffs"][index]);
        assert!(shared["route"] == "shared" && file["route"] == "file", "{length:#}");
        for run in [&shared["runs"][0], &file["runs"][0]] {
            assert!(run["text"] == none["text"] && run["evaluated"] == 1, "{length:#}");
        }
        // The message is as long whatever the prompt; the file holds every row, and the decoder reads it.
        assert_eq!(shared["runs"][0]["crossed_bytes"], lengths[0]["handoffs"][0]["runs"][0]["crossed_bytes"]);
        let file_bytes = file["runs"][0]["crossed_bytes"].as_u64().unwrap();
        assert!(file["runs"][0]["decoder_read_bytes"].as_u64().unwrap() >= file_bytes, "{length:#}");
        assert!(shared["runs"][0]["decoder_read_bytes"].as_u64().unwrap() < 4096, "{length:#}");
    }
    assert_eq!(lengths[2]["none"]["text"].as_str().unwrap().trim(), "The puppet was behind the house.");
}

#[test]
fn a_running_decoder_and_its_provider_pass_and_nothing_is_left() {
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "128"], &[]);
    let output = gate_of(&stage, r#"exec $PROVIDER "$@""#, &[]);
    assert!(output.status.success(), "{:#}", report(&output));
    assert_eq!(stage.leftovers(), ["provider"]);
}

/// Sets layer 7's V to zero in the decoder's memory: 128 cells of 128 bytes a tensor, V behind K.
const SPOIL_SHARED: &str = r#"case "$*" in *--fds*)
    dd if=/dev/zero of=/proc/self/fd/3 bs=16384 seek=15 count=1 conv=notrunc 2>/dev/null;; esac"#;
/// The same in the state file, where the last layer's V comes last.
const SPOIL_FILE: &str = r#"case "$*" in *--out*)
    out=$(echo "$*" | sed 's/.*--out \([^ ]*\).*/\1/')
    rows=$(($(wc -l < "$2") * 128))
    start=$(($(wc -c < "$out") - rows))
    dd if=/dev/zero of="$out" bs=1 seek=$start count=$rows conv=notrunc 2>/dev/null;; esac"#;

#[test]
fn a_spoiled_layer_is_named_with_the_route_where_it_was_spoiled_whether_or_not_the_text_shows_it() {
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "128"], &[]);
    let both = format!("{SPOIL_SHARED}\n{SPOIL_FILE}");
    let cases = [
        (SPOIL_SHARED, "shared", "are not those of the file"),
        (SPOIL_FILE, "file", "the state file holds other rows"),
        (&both, "shared", "--ignore-none"),
    ];
    for (spoil, route, probably) in cases {
        let output = gate_of(&stage, &format!("$PROVIDER \"$@\"\n{spoil}"), &[]);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(1), "{report:#}");
        assert_eq!(places(&report), [24, 80].map(|length| (route.to_owned(), Some(length))), "{report:#}");
        let words = words(&report);
        assert!(words.contains("layer 7's V differs by 100 %") && words.contains(probably), "{report:#}");
    }
    // What is the same on both routes may be the provider's arithmetic, and is let pass where that is said.
    assert!(gate_of(&stage, &format!("$PROVIDER \"$@\"\n{both}"), &["--ignore-none"]).status.success());
    assert_eq!(stage.leftovers(), ["provider"]);
}

#[test]
fn a_provider_that_writes_nothing_does_not_pass_on_the_rows_of_an_answer_before() {
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "128"], &[]);
    let script = r#"case "$*" in *--fds*) echo "{\"n_tokens\": $(wc -l < "$2"), \"argmax\": 0}";; *) exec $PROVIDER "$@";; esac"#;
    let output = gate_of(&stage, script, &[]);
    let report = report(&output);
    assert_eq!(places(&report), [24, 80].map(|length| ("shared".to_owned(), Some(length))), "{report:#}");
}

#[test]
fn a_handoff_that_fails_is_named_with_the_words_of_whoever_failed() {
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "128"], &[]);
    let output =
        gate_of(&stage, r#"case "$*" in *--fds*) echo 'no such device' >&2; exit 3;; esac; exec $PROVIDER "$@""#, &[]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(places(&report), [24, 80].map(|length| ("shared".to_owned(), Some(length))), "{report:#}");
    assert!(words(&report).contains("no such device"), "{report:#}");
}

#[test]
fn a_decoder_that_cannot_share_passes_only_where_the_file_route_alone_is_asked_for() {
    for sharing in ["unknown", "off"] {
        let stage = Stage::start(PROGRAM, None, &["--ctx-size", "128", "--sharing", sharing], &[]);
        let output = gate_of(&stage, r#"exec $PROVIDER "$@""#, &[]);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(1), "{report:#}");
        assert_eq!(places(&report), [("shared".to_owned(), None)], "{report:#}");
        assert!(words(&report).contains("--file-only"), "{report:#}");
        assert!(gate_of(&stage, r#"exec $PROVIDER "$@""#, &["--file-only"]).status.success());
    }
}

#[test]
fn the_page_says_what_was_found() {
    let passed = Command::new(PROGRAM).args(["gate", "--lengths", "24,48", "--runs", "1"]).output().unwrap();
    let text = String::from_utf8(passed.stdout).unwrap();
    assert!(passed.status.success() && text.contains("PASSED: every route gave the same text"), "{text}");
    assert!(text.lines().count() < 40, "one page:\n{text}");
}

#[test]
fn misuse_exits_with_2_and_says_what_to_do() {
    let nowhere =
        ["--backend-url", "http://127.0.0.1:1", "--slot-dir", "/no/such", "--prefill-provider", "p", "-m", "m"];
    let cases: [(&[&str], &str); 7] = [
        (&["--lengths", "1"], "2 or more"),
        (&["--lengths", "24,x"], "2 or more"),
        (&["--lengths", "4000"], "smaller --lengths"),
        (&["--flat", "0.5"], "at least 1"),
        (&["--file-only", "--flat", "2"], "--flat"),
        (&["--backend-url", "http://127.0.0.1:1"], "--slot-dir"),
        (&nowhere, "/no/such is not a directory"),
    ];
    for (arguments, words) in cases {
        let output = gate(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let directory = tempfile::tempdir().unwrap();
    let [directory, model] =
        [directory.path().to_path_buf(), PathBuf::from("m")].map(|path| path.display().to_string());
    let output = gate(&[
        "--backend-url",
        "http://127.0.0.1:1",
        "--slot-dir",
        &directory,
        "--prefill-provider",
        "p",
        "-m",
        &model,
    ]);
    assert_eq!(output.status.code(), Some(1), "a decoder that does not answer is a failure");
}
