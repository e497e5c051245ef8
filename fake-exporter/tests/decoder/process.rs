//! The program's life: it starts or says why not, and ends when told to.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Output, Stdio};

use serde_json::json;

use super::server::{Server, command};

fn output(arguments: &[&str]) -> Output {
    command().args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn what_cannot_be_started_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let garbage = directory.path().join("garbage.gguf");
    std::fs::write(&garbage, "this is no model").unwrap();
    let garbage = garbage.to_str().unwrap();
    let server = Server::checker(&[]);
    let port = server.address().port().to_string();
    let refused: [(&[&str], i32, &str); 18] = [
        (&["-m", "/no/such/model.gguf"], 1, "/no/such/model.gguf could not be opened"),
        (&["-m", garbage], 1, "GGUF"),
        (&["-m", "/"], 1, "is not a file"),
        (&["-c", "64", "--port", &port], 1, "cannot be listened on"),
        (&["-c", "4096"], 2, "trained for 2048 positions"),
        (&["-c", "1"], 2, "no room"),
        (&["-np", "2"], 2, "--parallel"),
        (&["-ctk", "f13"], 2, "f13"),
        (&["-fa", "maybe"], 2, "on or off"),
        (&["--layers", "3"], 2, "--checker"),
        (&["--checker", "-ctv", "q8_0"], 2, "q8_0 does not hold"),
        (&["--slot-save-path", "/no/such/directory"], 2, "/no/such/directory is not a directory"),
        (&["-ctv", "q8_0", "-fa", "off"], 2, "q8_0"),
        (&["--share-lifetime", "18446744073709551615"], 2, "--share-lifetime"),
        (&["--misbehave", "sulks"], 2, "never-connects"),
        (&["--memory", "vram"], 2, "there is memfd, memfd-hugetlb, udmabuf, dma-heap[:NAME] and drm[:NODE]"),
        (&["--memory", "dma-heap:none", "-c", "64"], 1, "the heaps of this machine are the files in /dev/dma_heap"),
        (&["--memory", "udmabuf", "--reserve", "touch"], 2, "leave out --reserve touch"),
    ];
    for (arguments, code, expected) in refused {
        let output = output(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn a_signal_ends_it_cleanly() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server = Server::checker(&[]);
        let pid = rustix::process::Pid::from_raw(server.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_client_that_never_finishes_its_request_does_not_keep_it() {
    let mut server = Server::checker(&[]);
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.write_all(b"POST /completion HTTP/1.1\r\nHost: decoder\r\nContent-Length: 100\r\n\r\n{").unwrap();
    // An answer to another client: by now the first one's request is being read.
    assert_eq!(server.get("/health").status, 200);
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn without_a_slot_directory_slots_are_neither_saved_nor_shared() {
    let server = Server::without_directory(&["-c", "64"]);
    for action in ["save", "restore", "erase", "share", "adopt"] {
        let error = server.refused(&format!("/slots/0?action={action}"), json!({"filename": "a.bin"}));
        let expected = "This server does not support slots action. Start it with `--slot-save-path`";
        assert_eq!(error, json!({"code": 501, "message": expected, "type": "not_supported_error"}));
    }
}
