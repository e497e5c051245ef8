//! The kinds of memory, and which of them this machine has.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvshare::memory::{DmaHeap, Drm, Memfd, Pages, RegionSource, Udmabuf};

use crate::{dma_heap, drm_card, system};

/// A kind of memory, and what differs from kind to kind.
#[derive(Clone)]
pub struct Kind {
    /// What it is called here.
    pub name: &'static str,
    pub source: Arc<dyn RegionSource + Send + Sync>,
    /// Its pages' bytes.
    pub page: u64,
    /// What `exp_name` says of a dma-buf.
    pub exporter: Option<&'static str>,
    /// Memory of at least this size that was exported for reading; none where the kind has no such thing.
    pub read_only: Option<fn(u64) -> OwnedFd>,
}

impl Kind {
    /// Whether a part of it can be mapped by itself.
    pub fn maps_parts(&self) -> bool {
        self.name != "drm"
    }

    pub fn is_dma_buf(&self) -> bool {
        self.exporter.is_some()
    }

    /// A region of so many pages.
    pub fn region(&self, name: &str, pages: u64) -> OwnedFd {
        self.source.allocate(name, pages * self.page).expect("the machine has this kind").descriptor
    }
}

/// A kind that the machine does not have, and why.
pub struct LeftOut {
    name: &'static str,
    why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.name, self.why)
    }
}

/// The kind of this name, whether or not the machine has it.
pub fn named(name: &str) -> Kind {
    all().into_iter().find(|kind| kind.name == name).expect("a kind of the suite")
}

pub fn of_this_machine() -> (Vec<Kind>, Vec<LeftOut>) {
    let (mut kinds, mut left_out) = (Vec::new(), Vec::new());
    for kind in all() {
        match probe(&kind) {
            Ok(()) => kinds.push(kind),
            Err(why) => left_out.push(LeftOut { name: kind.name, why }),
        }
    }
    (kinds, left_out)
}

fn all() -> [Kind; 5] {
    [
        Kind {
            name: "memfd",
            source: Arc::new(Memfd::new()),
            page: 4096,
            exporter: None,
            read_only: Some(system::read_only_memfd),
        },
        Kind {
            name: "memfd-hugetlb",
            source: Arc::new(Memfd::new().pages(Pages::HUGE_2_MIB)),
            page: 2 << 20,
            exporter: None,
            read_only: Some(system::read_only_huge_memfd),
        },
        Kind {
            name: "udmabuf",
            source: Arc::new(Udmabuf::new()),
            page: 4096,
            exporter: Some("udmabuf"),
            // The driver exports for reading and writing, whatever is asked for.
            read_only: None,
        },
        Kind {
            name: "dma-heap",
            source: Arc::new(DmaHeap::system()),
            page: 4096,
            exporter: Some("system"),
            read_only: Some(dma_heap::read_only),
        },
        Kind {
            name: "drm",
            source: Arc::new(Drm::new(drm_card::node())),
            page: 4096,
            exporter: Some("drm"),
            read_only: Some(drm_card::read_only),
        },
    ]
}

/// Whether the machine has this kind, and as many pages of it as the suite takes at once.
fn probe(kind: &Kind) -> Result<(), String> {
    let allocation = kind.source.allocate("probe", 8 * kind.page).map_err(|error| error.to_string())?;
    match allocation.fallbacks.first() {
        Some(fallback) => Err(fallback.to_string()),
        None => Ok(()),
    }
}
