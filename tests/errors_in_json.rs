//! Every command's errors go to standard error, and with `--json` also as an object: what fails as its arguments are
//! read, and what fails as it runs.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

/// A command, arguments with which it fails as it runs, its exit status then, and words of the error.
type Case = (&'static str, &'static str, i32, &'static str);

/// Standard output is full in all of them: some commands cannot fail otherwise.
const CASES: [Case; 21] = [
    ("serve", "-m /no/such.gguf", 2, "there is no model /no/such.gguf"),
    ("demo", "--no-sizes --provider /no/such", 1, "/no/such"),
    ("gate", "--lengths 3 --tokens 1000000", 2, "do not fit the decoder's context"),
    ("layout", "--cells 1 --model /no/such.gguf", 1, "/no/such.gguf"),
    ("inspect", "--pid 4194304", 1, "there is no process 4194304"),
    ("state show", "/no/such.bin", 1, "cannot open /no/such.bin"),
    ("state check", "/no/such.bin", 1, "cannot open /no/such.bin"),
    ("state diff", "/no/such.bin /no/such.bin", 1, "cannot open /no/such.bin"),
    ("state convert", "/no/such.bin /no/other.bin", 1, "cannot open /no/such.bin"),
    ("state into-regions", "/no/such.bin --layout /no/such.json --fds 199", 1, "open at 199"),
    ("state from-regions", "/no/such.bin --tokens /no/such --layout /no/such.json --fds 199", 1, "open at 199"),
    ("verify", "--layout /no/such.json --fds 199 --against /no/such.bin", 1, "open at 199"),
    ("run-provider", "-m /no/such.gguf --token-ids 1 -- true", 1, "/no/such.gguf"),
    ("send", "--socket /no/such.sock --layout /no/such.json --files /no/such", 1, "/no/such.json"),
    ("recv", "--socket /no/such/kv.sock", 1, "/no/such"),
    ("fake-exporter", "--slot-save-path /no/such", 2, "the slot directory /no/such is not a directory"),
    ("reference-provider", "--tokens /no/such --out state.bin", 1, "/no/such"),
    ("doctor", "", 1, "cannot write to standard output"),
    ("split-ceiling", "--factor 2", 1, "cannot write to standard output"),
    ("completions", "bash", 1, "cannot write to standard output"),
    ("man", "no-such", 1, "has no command \"no-such\""),
];

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Runs the program where nothing can be printed.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output: Output = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .env_remove("ONEBIT_KV_SHARE")
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The message of the object on the last line, which is the only one.
fn message(said: &str) -> String {
    let objects: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let last: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or_default();
    assert_eq!(objects, std::slice::from_ref(&last), "{said}");
    last["error"]["message"].as_str().unwrap_or_else(|| panic!("no message: {said}")).to_owned()
}

/// All commands that do something, by their full names, but for the hidden one that becomes another program.
fn commands() -> Vec<String> {
    let program = kvshare_cli::command_line::command();
    let mut names = Vec::new();
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        match command.has_subcommands() {
            true => names.extend(command.get_subcommands().map(|inner| format!("{name} {}", inner.get_name()))),
            false => names.push(name.to_owned()),
        }
    }
    names.sort();
    names
}

#[test]
fn every_command_is_tried_here() {
    let mut tried = CASES.map(|(command, ..)| command.to_owned());
    tried.sort();
    assert_eq!(commands(), tried);
}

#[test]
fn a_command_that_fails_says_so_and_with_json_as_an_object_too() {
    for (command, arguments, status, expected) in CASES {
        let (code, said) = run(&[words(command), words(arguments)].concat());
        assert_eq!(code, Some(status), "{command}: {said}");
        assert!(said.contains(expected) && !said.contains("{\"error\""), "{command}: {said}");
        let (code, said) = run(&[words(command), vec!["--json"], words(arguments)].concat());
        assert_eq!(code, Some(status), "{command} --json: {said}");
        assert!(message(&said).contains(expected), "{command} --json: {said}");
        assert!(said.lines().count() > 1, "a sentence for people, too: {said}");
    }
}

#[test]
fn a_command_that_is_misused_says_so_and_with_json_as_an_object_too() {
    for command in commands() {
        let (code, said) = run(&[words(&command), vec!["--no-such-flag"]].concat());
        assert_eq!(code, Some(2), "{command}: {said}");
        assert!(said.contains("--no-such-flag") && !said.contains("{\"error\""), "{command}: {said}");
        let (code, said) = run(&[words(&command), vec!["--json", "--no-such-flag"]].concat());
        assert_eq!(code, Some(2), "{command} --json: {said}");
        assert_eq!(message(&said), "unexpected argument '--no-such-flag' found", "{command} --json");
    }
}

#[test]
fn the_json_of_other_programs_arguments_is_not_ours() {
    for arguments in [
        "run-provider -m /no/such.gguf --token-ids 1 -- provider --json",
        "recv --socket /no/such/kv.sock -- inspector --json",
        "end-with-parent 1 backend --json",
    ] {
        let (code, said) = run(&words(arguments));
        assert_ne!(code, Some(0), "{said}");
        assert!(!said.is_empty() && !said.contains("{\"error\""), "{arguments}: {said}");
    }
}

#[test]
fn a_servers_last_words_are_in_its_logs_form() {
    let (_, said) = run(&words("serve -m /no/such.gguf --log-format json"));
    let record: Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!(record["event"], "notice");
    assert!(record["message"].as_str().unwrap().starts_with("serve: there is no model"), "{said}");
}
