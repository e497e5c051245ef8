//! Where SmolLM2-135M lies, a model made by others.
//!
//! It (98 MB) is fetched once by `scripts/fetch-smollm2.sh`. `KVSHARE_SKIP_SMOLLM2=1` skips the tests that need it, where
//! that is not possible; in continuous integration (`CI=true`) they are never skipped.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The model's file, or `None` if its tests are to be skipped.
pub fn path() -> Option<PathBuf> {
    if env::var_os("KVSHARE_SKIP_SMOLLM2").is_some() {
        let ci = env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!ci, "KVSHARE_SKIP_SMOLLM2 has no place in continuous integration");
        // libtest captures what eprintln! prints; this must be seen.
        let _ = writeln!(std::io::stderr(), "SKIPPED: tests with SmolLM2-135M, as KVSHARE_SKIP_SMOLLM2 is set");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fetch-smollm2.sh");
    let output = Command::new(&script).output().expect("the script starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let (status, script) = (output.status, script.display());
    assert!(status.success(), "{script} failed: {stderr}\nSet KVSHARE_SKIP_SMOLLM2=1 to skip these tests");
    Some(PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end()))
}
