//! Address space: one reserved range, the pieces of a file mapped into it, and the windows on them.
//!
//! All the unsafe calls that make and unmake mappings are here. The range has one owner, so whatever fails after it
//! was reserved, dropping the owner gives all of it back.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::placement::{Piece, Placement};
use super::{Access, View, ViewMut};

/// Pieces of a file, mapped as a [`Placement`] plans.
#[derive(Debug)]
pub(super) struct Mapping {
    range: Reservation,
    pieces: Vec<Piece>,
    access: Access,
}

impl Mapping {
    pub fn new(
        descriptor: BorrowedFd<'_>,
        placement: Placement,
        access: Access,
        transparent_huge: bool,
    ) -> Result<Self, Errno> {
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let mut range = Reservation::new(placement.bytes, placement.alignment)?;
        for piece in &placement.pieces {
            range.map_file(piece, descriptor, protection)?;
            if transparent_huge {
                range.wish_for_huge_pages(piece);
            }
        }
        Ok(Self { range, pieces: placement.pieces, access })
    }

    pub fn access(&self) -> Access {
        self.access
    }

    /// A window on the bytes of the region from `offset` on, if one piece holds all of them.
    #[inline]
    pub fn view(&self, offset: u64, len: u64) -> Option<View<'_>> {
        let (start, len) = self.find(offset, len)?;
        // SAFETY: `find` answers only for bytes of a mapped piece, which stay mapped while `self` is borrowed. Another
        // process may write them meanwhile, which `View` expects.
        Some(unsafe { View::new(start, len) })
    }

    /// The same for writing, if the mapping allows that.
    #[inline]
    pub fn view_mut(&mut self, offset: u64, len: u64) -> Option<ViewMut<'_>> {
        if self.access != Access::ReadWrite {
            return None;
        }
        let (start, len) = self.find(offset, len)?;
        // SAFETY: as in `view`; the pages are mapped for writing, and `self` is borrowed exclusively, so no other view
        // of this mapping exists. Another process may read and write the bytes meanwhile, which `ViewMut` expects.
        Some(unsafe { ViewMut::new(start, len) })
    }

    #[inline]
    fn find(&self, offset: u64, len: u64) -> Option<(NonNull<u8>, usize)> {
        let end = offset.checked_add(len)?;
        let after = self.pieces.partition_point(|piece| piece.visible.offset <= offset);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        if end > piece.visible.offset + piece.visible.size {
            return None;
        }
        // Both fit: they are at most the piece's size, which the placement has checked against the address space.
        let into_piece = usize::try_from(offset - piece.visible.offset).ok()?;
        Some((self.range.address(piece.first + into_piece), usize::try_from(len).ok()?))
    }
}

/// A range of address space that nothing else of this process is put into. It starts out inaccessible.
#[derive(Debug)]
struct Reservation {
    start: NonNull<u8>,
    bytes: usize,
    /// From `start` to the first address with the alignment asked for; plans count from there.
    to_aligned: usize,
}

// SAFETY: a reservation is an address and a length that it alone unmaps, when it is dropped; no thread is tied to
// them. Through a shared reference it only computes addresses. What other processes do with the memory behind them is
// the concern of those who access it.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `bytes` from an address that is a multiple of `alignment` on, a power of two.
    fn new(bytes: usize, alignment: usize) -> Result<Self, Errno> {
        let slack = alignment.saturating_sub(rustix::param::page_size());
        let bytes = bytes.checked_add(slack).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel picks a range that is free, so no existing mapping changes. The range is private and
        // inaccessible: no other process sees it.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let to_aligned = start.addr().get().wrapping_neg() & (alignment - 1);
        Ok(Self { start, bytes, to_aligned })
    }

    /// The address `at` bytes into the plan.
    fn address(&self, at: usize) -> NonNull<u8> {
        let offset = self.to_aligned + at;
        assert!(offset <= self.bytes, "a placement lies in the range that was reserved for it");
        // SAFETY: the result is in the reserved range or just after it. Only this process can unmap it.
        unsafe { self.start.add(offset) }
    }

    /// Puts a piece of the file in its place.
    fn map_file(&mut self, piece: &Piece, descriptor: BorrowedFd<'_>, protection: ProtFlags) -> Result<(), Errno> {
        let (start, length) = self.pages_of(piece);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: MAP_FIXED replaces what is at the address: pages of this reservation, which nobody has a pointer to
        // yet. The length is a multiple of the file's page size, so the kernel does not round it up past the end.
        // Another process may write the pages, which views expect. One that truncates the file makes later accesses
        // raise SIGBUS, which ends this process and corrupts nothing; seals rule it out unless the user accepts it.
        unsafe { rustix::mm::mmap(start, length, protection, flags, descriptor, piece.file.offset) }?;
        Ok(())
    }

    /// Tells the kernel that huge pages are welcome. A kernel that has none refuses, and nothing is lost.
    fn wish_for_huge_pages(&mut self, piece: &Piece) {
        let (start, length) = self.pages_of(piece);
        // SAFETY: the advice changes neither contents nor addresses, for this process or any other.
        let _ = unsafe { rustix::mm::madvise(start, length, Advice::LinuxHugepage) };
    }

    fn pages_of(&self, piece: &Piece) -> (*mut c_void, usize) {
        let (start, end) = (self.address(piece.at), self.address(piece.at + piece.file.size as usize));
        (start.as_ptr().cast(), end.addr().get() - start.addr().get())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the whole range is ours, guard pages and mapped pieces alike, and all views borrow its owner, so
        // none is left. Mappings of the same memory in other processes are not affected.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "a whole range can always be unmapped");
    }
}
