//! The kind of memory that the cache lies in, as the command line names it.

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use kvshare::memory::{Allocation, DmaHeap, Drm, Memfd, MemoryError, Pages, RegionSource, Reserve, Udmabuf};

/// The kind of memory that the cache lies in.
///
/// ```
/// use fake_exporter::memory_kind::MemoryKind;
///
/// assert_eq!("dma-heap:linux,cma".parse(), Ok(MemoryKind::DmaHeap { name: "linux,cma".to_owned() }));
/// assert_eq!("dma-heap".parse::<MemoryKind>()?.to_string(), "dma-heap:system");
/// assert!("vram".parse::<MemoryKind>().is_err());
/// # Ok::<(), fake_exporter::memory_kind::UnknownMemory>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// A memfd in base pages.
    #[default]
    Memfd,
    /// A memfd in pages of 2 MiB, if there are enough.
    HugeMemfd,
    /// A dma-buf over a memfd.
    Udmabuf,
    /// A dma-buf of a DMA heap.
    DmaHeap {
        /// The heap's name.
        name: String,
    },
    /// A dma-buf of a DRM device.
    Drm {
        /// The card's node; none for the machine's first.
        node: Option<PathBuf>,
    },
}

/// A kind of memory that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is memfd, memfd-hugetlb, udmabuf, dma-heap[:NAME] and drm[:NODE]")]
pub struct UnknownMemory;

impl MemoryKind {
    /// Whether the memory can be reserved as it is touched: a dma-buf's pages are there from the start.
    pub fn can_reserve_on_touch(&self) -> bool {
        *self == Self::Memfd
    }

    /// Where such memory is allocated. It says on standard error when it had to make do with smaller pages.
    pub fn source(&self, reserve: Reserve) -> Box<dyn RegionSource + Send + Sync> {
        match self {
            Self::Memfd => Box::new(Memfd::new().reserve(reserve)),
            Self::HugeMemfd => Box::new(Outspoken(Memfd::new().pages(Pages::HUGE_2_MIB))),
            Self::Udmabuf => Box::new(Udmabuf::new()),
            Self::DmaHeap { name } => Box::new(DmaHeap::new(name)),
            Self::Drm { node } => {
                let first = || Drm::nodes().into_iter().next().unwrap_or_else(|| "/dev/dri/card0".into());
                Box::new(Drm::new(node.clone().unwrap_or_else(first)))
            }
        }
    }
}

impl FromStr for MemoryKind {
    type Err = UnknownMemory;

    fn from_str(text: &str) -> Result<Self, UnknownMemory> {
        let (kind, detail) = text.split_once(':').map_or((text, None), |(kind, detail)| (kind, Some(detail)));
        match (kind, detail) {
            ("memfd", None) => Ok(Self::Memfd),
            ("memfd-hugetlb", None) => Ok(Self::HugeMemfd),
            ("udmabuf", None) => Ok(Self::Udmabuf),
            ("dma-heap", name) => Ok(Self::DmaHeap { name: name.unwrap_or("system").to_owned() }),
            ("drm", node) => Ok(Self::Drm { node: node.map(PathBuf::from) }),
            _ => Err(UnknownMemory),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memfd => formatter.write_str("memfd"),
            Self::HugeMemfd => formatter.write_str("memfd-hugetlb"),
            Self::Udmabuf => formatter.write_str("udmabuf"),
            Self::DmaHeap { name } => write!(formatter, "dma-heap:{name}"),
            Self::Drm { node: None } => formatter.write_str("drm"),
            Self::Drm { node: Some(node) } => write!(formatter, "drm:{}", node.display()),
        }
    }
}

/// A source whose compromises are told.
struct Outspoken<S>(S);

impl<S: RegionSource> RegionSource for Outspoken<S> {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn allocate(&self, name: &str, size: u64) -> Result<Allocation, MemoryError> {
        let allocation = self.0.allocate(name, size)?;
        for fallback in &allocation.fallbacks {
            let _ = writeln!(std::io::stderr(), "fake-exporter: {fallback}");
        }
        Ok(allocation)
    }
}
