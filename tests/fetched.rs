//! What others made and some tests need: a stock llama-server, and OpenAI's own Python client.
//!
//! The scripts that fetch them do so once. Where one fails, its tests are left out and that is said; in continuous
//! integration (`CI=true`) they fail.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program `llama-server`, or `None` if its tests are to be left out. The first time it is compiled, which takes a
/// quarter of an hour; `KVSHARE_SKIP_LLAMA_SERVER=1` leaves its tests out.
pub fn llama_server() -> Option<PathBuf> {
    fetched("fetch-llama-server.sh", "KVSHARE_SKIP_LLAMA_SERVER")
}

/// The folder with the Python package `openai`, or `None` if its tests are to be left out, as they are where
/// `KVSHARE_SKIP_OPENAI_CLIENT` is set.
pub fn openai_client() -> Option<PathBuf> {
    fetched("fetch-openai-client.sh", "KVSHARE_SKIP_OPENAI_CLIENT")
}

fn fetched(script: &str, skip: &str) -> Option<PathBuf> {
    if env::var_os(skip).is_some() {
        return left_out(&format!("{skip} is set"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(script);
    // What it says is worth seeing while it works: it may take long.
    let output = Command::new(&path).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("scripts/{script} does not start: {error}"));
    if !output.status.success() {
        return left_out(&format!("scripts/{script} failed ({}); its reasons stand above", output.status));
    }
    Some(PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end()))
}

fn left_out(reason: &str) -> Option<PathBuf> {
    let ci = env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci, "nothing is left out in continuous integration, but {reason}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // libtest captures what eprintln! prints; this must be seen.
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {test}, since {reason}");
    None
}
