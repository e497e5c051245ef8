//! A decoder process, ended with the test.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Answer, get, post};

/// A checker's cache small enough to write it whole: 2 layers, rows of 64 and 32 channels, 256 cells.
pub const CHECKER: [&str; 9] = ["--checker", "--layers", "2", "--k-width", "64", "--v-width", "32", "-c", "256"];

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fake-exporter"))
}

/// A running decoder with a slot directory.
pub struct Server {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
    descriptors_at_start: usize,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let slots = directory.path().to_str().unwrap().to_owned();
        Self::spawn(&[arguments, &["--slot-save-path", &slots]].concat(), directory)
    }

    pub fn without_directory(arguments: &[&str]) -> Self {
        Self::spawn(arguments, tempfile::tempdir().unwrap())
    }

    fn spawn(arguments: &[&str], directory: TempDir) -> Self {
        let mut child = command()
            .args(arguments)
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect("it says where").parse().unwrap();
        let descriptors_at_start = descriptors(child.id()).len();
        Self { child, address, directory, descriptors_at_start }
    }

    pub fn checker(more: &[&str]) -> Self {
        Self::start(&[&CHECKER, more].concat())
    }

    pub fn get(&self, path: &str) -> Answer {
        get(self.address, path)
    }

    pub fn post(&self, path: &str, body: Value) -> Answer {
        // Nothing at all, as a client sends that has nothing to say.
        let body = if body.is_null() { String::new() } else { body.to_string() };
        post(self.address, path, &body)
    }

    /// Posts what must succeed.
    pub fn ok(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// Posts what must be refused, and returns the error.
    pub fn refused(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body);
        assert_ne!(answer.status, 200, "{}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], answer.status);
        error
    }

    pub fn action(&self, action: &str, body: Value) -> Value {
        self.ok(&format!("/slots/0?action={action}"), body)
    }

    /// A greedy completion of some tokens.
    pub fn complete(&self, tokens: &[i32]) -> Value {
        self.ok("/completion", json!({"prompt": tokens, "return_tokens": true}))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until the process has as many descriptors as at its start: a connection closes a little after its answer.
    pub fn assert_no_descriptor_leaked(&self) {
        let patience = Instant::now() + Duration::from_secs(30);
        while descriptors(self.pid()).len() != self.descriptors_at_start {
            let (before, now) = (self.descriptors_at_start, descriptors(self.pid()));
            assert!(Instant::now() < patience, "{before} descriptors became {now:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What the descriptors of a process are.
fn descriptors(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
