//! What one descriptor is, and what can be done with it.

use std::os::fd::{AsFd, OwnedFd};

use kvshare::fd::{Facts, FdError, Kind, PageUse};
use kvshare::layout::ALIGNMENT;
use kvshare::map::{Access, Extent, MapError, MapOptions, MappedRegion};

use super::holders::Holders;
use super::taken::{Holder, TakeError};

/// One of the descriptors that were asked for.
#[derive(Debug)]
pub struct Inspected {
    /// Its number where it was taken from.
    pub number: i32,
    /// What it is, or why nobody knows.
    pub outcome: Result<Descriptor, InspectError>,
}

/// Why a descriptor cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// It could not be taken.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The kernel does not say what it is.
    #[error(transparent)]
    Facts(#[from] FdError),
}

/// A descriptor that was looked at.
#[derive(Debug)]
pub struct Descriptor {
    /// Our own descriptor of the same file.
    pub own: OwnedFd,
    /// What the kernel says of it.
    pub facts: Facts,
    /// Its pages, where it is made of some.
    pub pages: Option<PageUse>,
    /// Whether the CPU may map it for reading.
    pub cpu_read: Result<(), CpuRefusal>,
    /// Whether the CPU may map it for writing.
    pub cpu_write: Result<(), CpuRefusal>,
    /// Who else has it; `None` where nobody can tell it from others, as one CUDA allocation.
    pub holders: Option<Holders>,
}

/// Why the CPU may not map a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuRefusal {
    /// It is no memory.
    #[error("a {kind} is no memory")]
    NoMemory {
        /// What it is.
        kind: Kind,
    },
    /// There is not even one page.
    #[error("it has {size} bytes, and a region at least {ALIGNMENT}")]
    TooSmall {
        /// Its size.
        size: u64,
    },
    /// What kvshare or the kernel answers to the attempt.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Inspected {
    /// Takes descriptor `number` and looks at it, changing nothing about it.
    pub fn take(holder: &Holder, number: i32) -> Self {
        let outcome = holder.take(number).map_err(InspectError::from).and_then(|own| {
            let closes = holder.closes_on_exec(number);
            Ok(Descriptor::of(own, closes)?)
        });
        Self { number, outcome }
    }

    /// Looks at a descriptor of this program's own, which others have at `number`.
    pub(super) fn own(own: OwnedFd, number: i32) -> Self {
        Self { number, outcome: Descriptor::of(own, true).map_err(InspectError::from) }
    }
}

impl Descriptor {
    fn of(own: OwnedFd, close_on_exec: bool) -> Result<Self, FdError> {
        let mut facts = Facts::of(&own)?;
        // Ours closes on exec as all of Rust's do; the question is about the one it was taken from.
        facts.close_on_exec = close_on_exec;
        let pages = PageUse::of(&own)?;
        let cpu_read = may_map(&own, &facts, Access::ReadOnly);
        let cpu_write = may_map(&own, &facts, Access::ReadWrite);
        let is_told_apart = matches!(facts.kind, Kind::Memfd | Kind::DmaBuf | Kind::RegularFile);
        let holders = is_told_apart.then(|| Holders::of(facts.identity));
        Ok(Self { own, facts, pages, cpu_read, cpu_write, holders })
    }
}

/// What kind of memory the exporter of a dma-buf makes, where its name is known: the module's (the kernel's
/// `DEFINE_DMA_BUF_EXPORT_INFO`), or the heap's (drivers/dma-buf/heaps).
pub(super) fn exporter_in_words(exporter: &str) -> Option<&'static str> {
    match exporter {
        "udmabuf" => Some("a memfd as a dma-buf"),
        "system" | "reserved" | "linux,cma" | "default_cma_region" => Some("a DMA heap"),
        "nv_dmabuf" => Some("an NVIDIA GPU's own memory"),
        "drm" | "vgem" | "i915" | "xe" | "amdgpu" | "radeon" | "nouveau" | "msm" => Some("a DRM driver"),
        _ => None,
    }
}

/// Tries to map all of it, and touches nothing: the kernel's own answer is the only one that counts.
fn may_map(descriptor: impl AsFd, facts: &Facts, access: Access) -> Result<(), CpuRefusal> {
    if facts.check_region().is_err() {
        return Err(CpuRefusal::NoMemory { kind: facts.kind });
    }
    // What does not tell its size, as CUDA memory, is asked for its first page.
    let size = facts.size.unwrap_or(ALIGNMENT);
    let whole = size / ALIGNMENT * ALIGNMENT;
    if whole == 0 {
        return Err(CpuRefusal::TooSmall { size });
    }
    let options = MapOptions { access, ..MapOptions::default() };
    MappedRegion::map(descriptor, Extent { offset: 0, size: whole }, &[], &options)?;
    Ok(())
}
