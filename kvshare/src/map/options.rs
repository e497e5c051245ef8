//! How a region is to be mapped.

/// What a mapping, or a CPU access to it, may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reading only. A write through a stray pointer kills the process instead of changing the cache.
    #[default]
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// Where unmapped pages lie, so that a stray access faults at once (`SIGSEGV`) instead of damaging a neighbour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Nowhere.
    #[default]
    None,
    /// Before and after the region. A dma-buf is mapped from its start, so the page before lies before that.
    Region,
    /// Before and after each tensor. A tensor ends where its last page ends, so an access past its last byte faults
    /// from the next multiple of 4096 on; up to there it meets padding. What lies between tensors is not mapped. Of
    /// dma-bufs only those of udmabuf and of the system heap can be guarded so.
    Tensor,
}

/// What to do with a file that its other holders could truncate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unsealed {
    /// Refuse to map it.
    #[default]
    Refuse,
    /// Map it all the same. If anyone truncates it, the next access to a page that is gone kills this process with
    /// `SIGBUS`.
    AcceptSigbus,
}

/// How a region is to be mapped. The default reads only, guards nothing and refuses what is not sealed.
///
/// ```
/// use kvshare::map::{Access, Guard, MapOptions};
///
/// let options = MapOptions { access: Access::ReadWrite, guard: Guard::Tensor, ..MapOptions::default() };
/// # assert!(!options.transparent_huge);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOptions {
    /// Whether the memory may be written through this mapping.
    pub access: Access,
    /// Where unmapped pages lie.
    pub guard: Guard,
    /// What to do with a file that could be truncated.
    pub unsealed: Unsealed,
    /// Whether the kernel is asked to join this mapping's pages into huge ones (`MADV_HUGEPAGE`, madvise(2)). It is a
    /// wish: where the kernel grants none the mapping works as well. Set it for memory that was got in
    /// [`Pages::TransparentHuge`](crate::memory::Pages::TransparentHuge).
    pub transparent_huge: bool,
}
