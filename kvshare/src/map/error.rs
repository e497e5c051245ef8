//! What can go wrong while a region is mapped or looked at.

use rustix::io::Errno;

use crate::layout::ALIGNMENT;

/// Why a region could not be mapped, or a part of it not be viewed.
///
/// Offsets of a *region* count from the start of its descriptor, those of a *tensor* or a view from the start of its
/// region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The region has no bytes.
    #[error("the region has 0 bytes; the smallest has {ALIGNMENT}")]
    Empty,
    /// The region's size or offset is not a multiple of [`ALIGNMENT`].
    #[error("the region's {field} is {value}, which is no multiple of {ALIGNMENT}; check the header that names it")]
    Unaligned {
        /// `size` or `offset`.
        field: &'static str,
        /// Its value, in bytes.
        value: u64,
    },
    /// The region, with the guard pages asked for, is more than a process can address.
    #[error("the region takes {size} bytes; a process can address at most {} in one piece", isize::MAX)]
    TooLarge {
        /// The bytes of address space it would take.
        size: u64,
    },
    /// The region's end is no file offset.
    #[error("the region at offset {offset} of {size} bytes ends after the last possible file offset, {}", i64::MAX)]
    Overflow {
        /// The region's offset.
        offset: u64,
        /// The region's size.
        size: u64,
    },
    /// The descriptor holds fewer bytes than the region claims.
    #[error(
        "the region at offset {offset} of {size} bytes ends after its descriptor, which holds {held} bytes; the \
         header and the descriptor do not belong together"
    )]
    PastEnd {
        /// The region's offset.
        offset: u64,
        /// The region's size.
        size: u64,
        /// How many bytes the kernel says the descriptor holds.
        held: u64,
    },
    /// Whoever else holds the file could truncate it.
    #[error(
        "the memory is not sealed, so its other holders could truncate it and kill this process; seal it with \
         F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL, or accept unsealed memory"
    )]
    Unsealed,
    /// The descriptor cannot be read through, and a mapping always reads.
    #[error("the descriptor is not open for reading; send one that is open for reading and writing")]
    NotReadable,
    /// A dma-buf that was exported for reading is to be mapped for writing.
    #[error("the dma-buf was exported read-only; export it with DRM_RDWR, or map it for reading")]
    DmaBufReadOnly,
    /// A file that is open for reading is to be mapped for writing.
    #[error("the descriptor is open for reading only; send one that is open for writing, too, or map it for reading")]
    FileReadOnly,
    /// A memfd that is sealed against writing is to be mapped for writing.
    #[error(
        "the memory is sealed against writing; leave F_SEAL_WRITE and F_SEAL_FUTURE_WRITE off, or map it for reading"
    )]
    SealedAgainstWriting,
    /// The memory is a device's own, such as a CUDA allocation.
    #[error(
        "this memory cannot be mapped by the CPU; it can still be passed on to a program that gives it to its device"
    )]
    NotByCpu,
    /// The pool has fewer free huge pages than the memory takes.
    #[error("the pool has too few free pages of {page_bytes} bytes; raise nr_hugepages in /sys/kernel/mm/hugepages")]
    HugePoolTooSmall {
        /// The size of one page.
        page_bytes: u64,
    },
    /// A tensor that is to be guarded has no bytes, or is not inside its region.
    #[error("the tensor at offset {offset} of {size} bytes does not lie in its region of {region} bytes")]
    TensorOutside {
        /// The tensor's offset in the region.
        offset: u64,
        /// The tensor's size.
        size: u64,
        /// The region's size.
        region: u64,
    },
    /// A tensor that is to be guarded does not start at a multiple of [`ALIGNMENT`].
    #[error("the tensor at offset {offset} does not start at a multiple of {ALIGNMENT}; it cannot have guard pages")]
    TensorUnaligned {
        /// The tensor's offset in the region.
        offset: u64,
    },
    /// Tensors that are to be guarded overlap, share a page, or are not in the order of their offsets.
    #[error("the tensor at offset {offset} starts before the pages of the one before it end, at {previous_end}")]
    TensorsOverlap {
        /// The later tensor's offset in the region.
        offset: u64,
        /// Where the pages of the tensor before it end.
        previous_end: u64,
    },
    /// A guard page must follow the last byte at once, and the memory's pages are too large for that.
    #[error(
        "what lies at file offset {offset} of {size} bytes cannot have guard pages, since the memory's own pages have \
         {page_bytes} bytes; use smaller pages, or no guard"
    )]
    GuardNeedsSmallerPages {
        /// Where the guarded part starts in the file.
        offset: u64,
        /// Its size, rounded up to [`ALIGNMENT`].
        size: u64,
        /// The size of the memory's pages.
        page_bytes: u64,
    },
    /// Guard pages between tensors were asked for in a dma-buf whose driver may map parts of it wrongly.
    #[error(
        "a dma-buf of the driver {exporter:?} cannot have guard pages between tensors: many drivers show a buffer's start \
         wherever a part of it is mapped; guard the region, or nothing"
    )]
    GuardOfParts {
        /// What `exp_name` says in its fdinfo; empty where `/proc` tells none.
        exporter: String,
    },
    /// A view was asked for that is not inside its region or view.
    #[error("{len} bytes at offset {offset} were asked for, of {size}")]
    OutOfBounds {
        /// The offset asked for.
        offset: u64,
        /// The bytes asked for.
        len: u64,
        /// The bytes there are.
        size: u64,
    },
    /// A view was asked for that no tensor's pages hold, in a region whose tensors are guarded.
    #[error(
        "{len} bytes at offset {offset} are not within one tensor, and this region has guard pages between tensors"
    )]
    AcrossGuard {
        /// The offset asked for.
        offset: u64,
        /// The bytes asked for.
        len: u64,
    },
    /// Writing was asked for in a region that is mapped for reading.
    #[error("the region is mapped for reading only; map it with read-write access to write")]
    MappedReadOnly,
    /// A buffer and the view it is copied from or to differ in length.
    #[error("the view has {view} bytes and the buffer {buffer}; they must be equal")]
    Length {
        /// The view's bytes.
        view: usize,
        /// The buffer's bytes.
        buffer: usize,
    },
    /// Strided elements do not lie in the view, overlap, or do not fill the buffer.
    #[error(
        "a buffer of {buffer} bytes does not hold elements of {element_bytes} bytes that lie {stride} bytes apart in a \
         view of {view} bytes"
    )]
    Stride {
        /// The bytes of one element.
        element_bytes: usize,
        /// The bytes from one element's start to the next one's.
        stride: usize,
        /// The buffer's bytes.
        buffer: usize,
        /// The view's bytes.
        view: usize,
    },
    /// A device has not finished with a dma-buf by the deadline.
    #[error("a device was still at work on the dma-buf at the deadline; the work may never have been submitted")]
    DeviceBusy,
    /// A device's work on a dma-buf has failed.
    #[error("a device's work on the dma-buf failed: {errno}; do not use what it was to write")]
    DeviceFailed {
        /// What the device's driver said.
        errno: Errno,
    },
    /// Fences were asked for of memory that has none.
    #[error(
        "this memory keeps no fences; only a dma-buf does, since Linux 6.0: wait for the device before the memory is \
         handed on"
    )]
    NoFences,
    /// A descriptor was given as a fence that is none.
    #[error("the descriptor is no fence; give a sync_file, as a device's driver makes it")]
    NotAFence,
    /// A system call failed that seldom does.
    #[error("{call} failed: {errno}")]
    System {
        /// The system call's name.
        call: &'static str,
        /// What it answered.
        errno: Errno,
    },
}

impl MapError {
    /// For `map_err`: names the call that failed.
    pub(super) fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}
