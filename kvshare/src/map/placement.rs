//! Where the pieces of a region come to lie in address space. Numbers only; nothing is mapped here.

use super::{Extent, Guard, MapError};
use crate::layout::ALIGNMENT;

/// A plan for one range of address space: pieces of a file, and unmapped pages between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// How much address space the plan takes.
    pub bytes: usize,
    /// The start of the range must be a multiple of this power of two.
    pub alignment: usize,
    /// What is mapped, in ascending order.
    pub pieces: Vec<Piece>,
}

/// A part of a region that is mapped in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The bytes of the region that may be looked at here.
    pub visible: Extent,
    /// The whole pages of the file that hold them.
    pub file: Extent,
    /// Where the first of those pages lies, from the start of the range.
    pub at: usize,
    /// Where the first visible byte lies, from the start of the range.
    pub first: usize,
}

/// From where in a file pieces of it are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapFrom {
    /// From where they begin.
    Offset,
    /// From its first byte, and in one piece: its driver would show its first page wherever a mapping begins.
    Start,
}

/// Plans a region that [`Extent::check_region`] has passed, of a file with pages of `page_bytes`.
///
/// A piece starts at an address that differs from its file offset by a multiple of `alignment`, which is what huge
/// pages need to be mapped as such.
pub(super) fn place(
    region: Extent,
    tensors: &[Extent],
    guard: Guard,
    from: MapFrom,
    page_bytes: u64,
    alignment: u64,
) -> Result<Placement, MapError> {
    let whole = Extent { offset: 0, size: region.size };
    let (parts, gap) = match guard {
        Guard::None => (vec![whole], 0),
        Guard::Region => (vec![whole], page_bytes),
        Guard::Tensor => (tensor_pages(region, tensors)?, page_bytes),
    };
    let mut cursor = gap;
    let mut pieces = Vec::with_capacity(parts.len());
    for visible in parts {
        let start = region.offset + visible.offset;
        let end = start + visible.size;
        let first_page = if from == MapFrom::Start { 0 } else { start - start % page_bytes };
        let file = Extent { offset: first_page, size: end.next_multiple_of(page_bytes) - first_page };
        if gap > 0 && [start, end].iter().any(|edge| !edge.is_multiple_of(page_bytes)) {
            return Err(MapError::GuardNeedsSmallerPages { offset: start, size: visible.size, page_bytes });
        }
        let at = cursor + (first_page.wrapping_sub(cursor) & (alignment - 1));
        pieces.push(Piece { visible, file, at: address(at)?, first: address(at + (start - first_page))? });
        cursor = at + file.size + gap;
    }
    Ok(Placement { bytes: address(cursor)?, alignment: address(alignment)?, pieces })
}

/// The tensors of a region, each rounded up to whole units of [`ALIGNMENT`], which no two of them share.
fn tensor_pages(region: Extent, tensors: &[Extent]) -> Result<Vec<Extent>, MapError> {
    let mut previous_end = 0;
    let mut pages = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let Extent { offset, size } = *tensor;
        if size == 0 || tensor.end().is_none_or(|end| end > region.size) {
            return Err(MapError::TensorOutside { offset, size, region: region.size });
        }
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(MapError::TensorUnaligned { offset });
        }
        if offset < previous_end {
            return Err(MapError::TensorsOverlap { offset, previous_end });
        }
        let padded = Extent { offset, size: size.next_multiple_of(ALIGNMENT) };
        previous_end = offset + padded.size;
        pages.push(padded);
    }
    Ok(pages)
}

fn address(bytes: u64) -> Result<usize, MapError> {
    isize::try_from(bytes).map(isize::unsigned_abs).map_err(|_| MapError::TooLarge { size: bytes })
}
