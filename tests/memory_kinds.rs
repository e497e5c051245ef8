//! The kinds of memory that tests go over, and which of them this machine has.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use drm::Device as _;
use fake_exporter::memory_kind::MemoryKind;
use kvshare::layout::ALIGNMENT;
use kvshare::memory::{Drm, RegionSource, Reserve};

/// What the command line says for a kind. Of DRM devices it is vgem, which every machine can have; a GPU is left alone.
pub fn argument(kind: &str) -> String {
    match kind {
        "drm" => format!("drm:{}", vgem().display()),
        other => other.to_owned(),
    }
}

/// The card that is vgem.
pub fn vgem() -> PathBuf {
    let is_vgem = |node: &PathBuf| {
        let card = File::options().read(true).write(true).open(node).map(Card);
        card.and_then(|card| card.get_driver()).is_ok_and(|driver| driver.name() == "vgem")
    };
    Drm::nodes().into_iter().find(is_vgem).unwrap_or_else(|| "/dev/dri/card-of-vgem".into())
}

/// An open DRM device.
pub struct Card(pub File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl drm::Device for Card {}
impl drm::control::Device for Card {}

/// A source of a kind of memory, as `--memory` names it; none where this machine has no such memory, and says so.
///
/// # Panics
/// It has none, and `KVSHARE_ALL_KINDS` is set, as `scripts/guest-suite.sh` sets it in a guest machine that has them all.
pub fn source(kind: &str) -> Option<Box<dyn RegionSource + Send + Sync>> {
    let memory: MemoryKind = argument(kind).parse().expect("a kind of memory");
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
