//! Runs one test in a process of its own, for what a whole process has only once: its descriptor table, its limits, the
//! descriptors that it was started with.

use kvshare::fd::Program;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const ROLE: &str = "KVSHARE_TEST_IN_A_PROCESS_OF_ITS_OWN";

/// Runs `body` in a new process, started with `descriptors` at 3 and up. `test` is the calling test's name: the new
/// process runs this test alone and so arrives here again.
pub fn in_a_process_of_its_own(test: &str, descriptors: &[BorrowedFd<'_>], body: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        return body();
    }
    let status = Program::new(std::env::current_exe().expect("a test knows its own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .descriptors(descriptors.iter().copied())
        .spawn()
        .expect("the test program starts")
        .wait(Instant::now() + Duration::from_secs(120))
        .expect("nobody else waits for it");
    assert!(status.is_some_and(|status| status.success()), "{test}, in a process of its own: {status:?}");
}
