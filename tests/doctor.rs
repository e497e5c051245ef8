//! `kvshare-cli doctor`, and what the program says about itself: help, completions, manual pages, errors.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kvshare_tests::eyes::{Ended, run};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

fn kvshare(arguments: &[&str]) -> Ended {
    run(PROGRAM, arguments, &[])
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// A program that runs `script`.
fn program(directory: &Path, script: &str) -> PathBuf {
    let path = directory.join("llama-server");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_default_route_works_wherever_these_tests_run() {
    let ended = kvshare(&["doctor", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    assert_eq!(report["default_route_works"], true);
    assert_eq!(check(&report, "default route")["state"], "good");
    let states = ["good", "limited", "absent", "broken"];
    for check in report["checks"].as_array().unwrap() {
        assert!(states.contains(&check["state"].as_str().unwrap()), "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
    }
    let text = kvshare(&["doctor"]);
    assert_eq!(text.code, Some(0));
    for check in report["checks"].as_array().unwrap() {
        assert!(text.text().contains(check["name"].as_str().unwrap()), "{check}");
    }
    assert!(text.text().ends_with("handed over in shared memory.\n"), "{}", text.text());
}

#[test]
fn a_llama_server_is_asked_its_version_and_looked_into() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        ("echo loading >&2; echo 'version: 7 (abc)' >&2 # share_id", "good", "version: 7 (abc)", "good"),
        ("echo version 8", "good", "version 8", "limited"),
        ("echo 'no libggml.so' >&2; exit 127", "broken", "no libggml.so", "limited"),
        ("exit 0", "broken", "said nothing", "limited"),
    ];
    for (script, state, words, sharing) in cases {
        let path = program(directory.path(), script);
        let report = kvshare(&["doctor", "--json", "--llama-server", path.to_str().unwrap()]).json();
        let server = check(&report, "llama-server");
        assert_eq!(server["state"], state, "{server}");
        assert!(server["found"].as_str().unwrap().contains(words), "{server}");
        assert_eq!(check(&report, "llama-server shares")["state"], sharing, "{script}");
    }
    let report = kvshare(&["doctor", "--json", "--llama-server", "/no/such/llama-server"]).json();
    assert_eq!(check(&report, "llama-server")["state"], "absent");
}

#[test]
fn every_command_that_looks_has_help_with_an_example_a_page_and_completions() {
    let commands: [&[&str]; 13] = [
        &["inspect"],
        &["state"],
        &["state", "show"],
        &["state", "check"],
        &["state", "diff"],
        &["state", "convert"],
        &["state", "into-regions"],
        &["state", "from-regions"],
        &["send"],
        &["recv"],
        &["doctor"],
        &["completions"],
        &["man"],
    ];
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    assert_eq!(kvshare(&["man", "--into", pages.to_str().unwrap()]).code, Some(0));
    let completions = kvshare(&["completions", "bash"]);
    for command in commands {
        let help = kvshare(&[command, &["--help"]].concat());
        assert_eq!(help.code, Some(0));
        assert!(help.text().contains("Example"), "{command:?}: {}", help.text());
        let page = kvshare(&[&["man"], command].concat());
        let name = format!("kvshare-cli-{}", command.join("-"));
        assert!(page.text().contains(&format!(".TH {name} ")), "{command:?}: {}", page.text());
        assert_eq!(std::fs::read(pages.join(format!("{name}.1"))).unwrap(), page.stdout, "{command:?}");
        let (last, name) = (command[command.len() - 1], command.join(" "));
        assert!(completions.text().contains(last), "{name}");
    }
    for shell in ["zsh", "fish"] {
        assert!(kvshare(&["completions", shell]).text().contains("into-regions"), "{shell}");
    }
    assert!(kvshare(&["man", "no-such"]).stderr.contains("has no command \"no-such\""));
}

#[test]
fn an_error_is_a_sentence_and_with_json_an_object_as_well() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&["inspect", "--pid", "4194304"], 1, "there is no process 4194304"),
        (&["inspect", "--fds", "x"], 2, "invalid value 'x'"),
        (&["inspect"], 2, "--fds"),
        (&["state", "show", "/no/such.bin"], 1, "cannot open /no/such.bin"),
        (&["layout", "--cells", "1", "--model", "/no/such.gguf"], 1, "/no/such.gguf"),
        (&["doctor", "--no-such-flag"], 2, "--no-such-flag"),
    ];
    for (arguments, code, words) in cases {
        let plain = kvshare(arguments);
        assert_eq!(plain.code, Some(code), "{plain:?}");
        assert!(plain.stderr.contains(words) && !plain.stderr.contains("{\"error\""), "{plain:?}");
        let json = kvshare(&[arguments, &["--json"]].concat());
        assert_eq!(json.code, Some(code), "{json:?}");
        assert!(json.json_error().contains(words), "{json:?}");
        assert!(json.stdout.is_empty(), "{json:?}");
    }
}
