//! A part of a file or of a region.

use super::MapError;
use crate::layout::ALIGNMENT;

/// A run of bytes: where it starts and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first byte, counted from the start of what holds it: a region in its file, a tensor in its region.
    pub offset: u64,
    /// How many bytes.
    pub size: u64,
}

impl Extent {
    /// The offset after the last byte, or `None` where it does not fit into 64 bits.
    ///
    /// ```
    /// use kvshare::map::Extent;
    ///
    /// assert_eq!(Extent { offset: 4096, size: 100 }.end(), Some(4196));
    /// assert_eq!(Extent { offset: 4096, size: u64::MAX }.end(), None);
    /// ```
    pub const fn end(self) -> Option<u64> {
        self.offset.checked_add(self.size)
    }

    /// Checks what a region must be whatever descriptor it lies in.
    pub(super) fn check_region(self) -> Result<(), MapError> {
        let Self { offset, size } = self;
        if size == 0 {
            return Err(MapError::Empty);
        }
        if size > isize::MAX as u64 {
            return Err(MapError::TooLarge { size });
        }
        for (field, value) in [("size", size), ("offset", offset)] {
            if !value.is_multiple_of(ALIGNMENT) {
                return Err(MapError::Unaligned { field, value });
            }
        }
        // The kernel's file offsets are signed 64-bit numbers.
        match self.end() {
            Some(end) if i64::try_from(end).is_ok() => Ok(()),
            _ => Err(MapError::Overflow { offset, size }),
        }
    }
}
