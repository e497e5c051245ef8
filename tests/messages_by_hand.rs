//! `kvshare-cli send` and `recv` carry a message from files or descriptors to a socket and back, as shell scripts do.

use std::fs::Permissions;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kvshare_tests::eyes::{Cache, Ended, run};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

/// A directory that is only ours, for a socket.
struct Meeting {
    directory: tempfile::TempDir,
}

impl Meeting {
    fn new() -> Self {
        let directory = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        Self { directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("kv.sock")
    }

    /// Runs `recv` with `receive`, and `send` with `send` and `descriptors` once it listens.
    fn hold(&self, receive: &[&str], send: &[&str], descriptors: &[BorrowedFd<'_>]) -> (Ended, Ended) {
        let socket = self.socket();
        let path = text(&socket);
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let (flags, program) =
                    receive.split_at(receive.iter().position(|word| *word == "--").unwrap_or(receive.len()));
                run(PROGRAM, &[&["recv", "--socket", path], flags, program].concat(), &[])
            });
            while !socket.exists() && !received.is_finished() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let sent = run(PROGRAM, &[&["send", "--socket", path], send].concat(), descriptors);
            (received.join().unwrap(), sent)
        })
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn files_cross_as_sealed_memory_and_come_out_as_the_same_files() {
    let (meeting, cache) = (Meeting::new(), Cache::small(9));
    let (file, into) = (cache.path("region.bin"), cache.path("received"));
    std::fs::write(&file, &cache.bytes()[0]).unwrap();
    let header = cache.header_path();
    let send = ["--layout", text(&header), "--files", text(&file)];
    let (received, sent) = meeting.hold(&["--into", text(&into), "--json"], &send, &[]);
    assert_eq!((received.code, sent.code), (Some(0), Some(0)), "{received:?} {sent:?}");
    let report = received.json();
    assert_eq!(report["descriptors"][0]["sealed"], true);
    assert_eq!(report["header"]["regions"][0]["fd"], 0);
    assert!(std::fs::read(into.join("region-0.bin")).unwrap() == cache.bytes()[0]);
    assert_eq!(std::fs::read(into.join("header.json")).unwrap(), std::fs::read(&header).unwrap());
    assert!(!meeting.socket().exists());
}

#[test]
fn a_program_gets_the_senders_own_memory_and_nothing_else() {
    let (meeting, cache) = (Meeting::new(), Cache::small(9));
    let header = cache.header_path();
    let send = ["--layout", text(&header), "--fds", "3"];
    let inspect = ["--", PROGRAM, "inspect", "--json", "--layout", "{layout}", "--fds", "{fds}"];
    let (received, sent) = meeting.hold(&inspect, &send, &cache.borrowed());
    assert_eq!(received.code, Some(0), "{received:?} {sent:?}");
    let report = received.json();
    assert_eq!(report["descriptors"][0]["name"], "kvshare:cache_k_l0..");
    assert_eq!(report["layout"]["tensors"][0]["streams"][0]["written"], 9);
    let us = json!(std::process::id());
    let holders = report["descriptors"][0]["also_open_in"].as_array().unwrap();
    assert!(holders.iter().any(|holder| holder["pid"] == us), "the memory is ours, not a copy: {report}");

    let script = "test -r \"$KVSHARE_LAYOUT\" && echo fds $KVSHARE_FDS && ls /proc/self/fd | wc -l";
    let (received, _) = meeting.hold(&["--", "sh", "-c", script], &send, &cache.borrowed());
    let lines: Vec<&str> = received.text().lines().collect();
    assert!(lines[0].starts_with("fds "), "{received:?}");
    // The standard streams, the region, the header, and what ls reads.
    assert_eq!(lines[1].trim(), "6", "{received:?}");
}

#[test]
fn the_headers_bytes_are_printed_as_they_came() {
    let (meeting, cache) = (Meeting::new(), Cache::small(0));
    let header = cache.header_path();
    let (received, _) = meeting.hold(&[], &["--layout", text(&header), "--fds", "3"], &cache.borrowed());
    assert_eq!(received.stdout, std::fs::read(&header).unwrap());
    assert!(received.stderr.ends_with("with 1 descriptor\n"), "{}", received.stderr);
}

#[test]
fn what_does_not_go_together_is_not_sent_unless_asked_for() {
    let (meeting, cache) = (Meeting::new(), Cache::small(0));
    let header = cache.header_path();
    let twice = [cache.borrowed()[0], cache.borrowed()[0]];
    let socket = meeting.socket();
    let send = ["--socket", text(&socket), "--layout", text(&header), "--fds", "3,4"];
    let ended = run(PROGRAM, &[&["send"], &send[..]].concat(), &twice);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("no region names it (--unchecked"), "{}", ended.stderr);

    let unchecked = ["--layout", text(&header), "--fds", "3,4", "--unchecked"];
    let (received, sent) = meeting.hold(&["--json"], &unchecked, &twice);
    assert_eq!((sent.code, received.code), (Some(0), Some(1)));
    assert!(received.json_error().contains("no region names it"), "{received:?}");
    let (received, _) = meeting.hold(&["--json", "--unchecked"], &unchecked, &twice);
    assert_eq!(received.json()["descriptors"].as_array().unwrap().len(), 2);
}

#[test]
fn memory_that_is_not_sealed_is_refused_by_the_receiver() {
    let (meeting, cache) = (Meeting::new(), Cache::small(0));
    let header = cache.header_path();
    let memory: OwnedFd = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, cache.header.regions[0].size).unwrap();
    let (received, sent) = meeting.hold(&[], &["--layout", text(&header), "--fds", "3"], &[memory.as_fd()]);
    assert_eq!((sent.code, received.code), (Some(0), Some(1)));
    assert!(received.stderr.contains("F_SEAL_SHRINK"), "{}", received.stderr);
}

#[test]
fn nobody_there_is_said_in_words() {
    let (meeting, cache) = (Meeting::new(), Cache::small(0));
    let (header, socket) = (cache.header_path(), meeting.socket());
    let send = ["send", "--socket", text(&socket), "--layout", text(&header), "--fds", "3", "--json"];
    let ended = run(PROGRAM, &send, &cache.borrowed());
    assert_eq!(ended.code, Some(1));
    assert!(ended.json_error().starts_with("nobody listens at"), "{ended:?}");
    let ended = run(PROGRAM, &["recv", "--socket", text(&socket), "--timeout", "0.05"], &[]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("no connection was made"), "{}", ended.stderr);
    assert!(!socket.exists());
    let (received, _) =
        meeting.hold(&["--", "/no/such/program"], &["--layout", text(&header), "--fds", "3"], &cache.borrowed());
    assert!(received.stderr.contains("cannot start /no/such/program"), "{}", received.stderr);
}
