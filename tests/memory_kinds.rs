//! The kinds of memory that tests go over, and which of them this machine has.

use std::io::Write as _;

use fake_exporter::memory_kind::MemoryKind;
use kvshare::layout::ALIGNMENT;
use kvshare::memory::{RegionSource, Reserve};

/// A source of a kind of memory, as `--memory` names it; none where this machine has no such memory, and says so.
///
/// # Panics
/// It has none, and `KVSHARE_ALL_KINDS` is set, as `scripts/guest-suite.sh` sets it in a guest machine that has them all.
pub fn source(kind: &str) -> Option<Box<dyn RegionSource + Send + Sync>> {
    let memory: MemoryKind = kind.parse().expect("a kind of memory");
    let source = memory.source(Reserve::Now);
    let missing = match source.allocate("probe", ALIGNMENT) {
        Ok(allocation) => allocation.fallbacks.first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    };
    let Some(reason) = missing else { return Some(source) };
    assert!(std::env::var_os("KVSHARE_ALL_KINDS").is_none(), "{kind} may not be left out here: {reason}");
    // Not eprintln: the test harness keeps that to itself.
    writeln!(std::io::stderr(), "left out: {kind}: {reason}").expect("standard error is open");
    None
}
