//! What every source asks of a region's size and name, before it asks the system for anything.

use super::{MemoryError, machine};
use crate::layout::ALIGNMENT;

/// A memfd's name has at most this many bytes (memfd_create(2)).
const NAME_MAX: usize = 249;

pub(super) fn check(name: &str, size: u64) -> Result<(), MemoryError> {
    if size == 0 {
        return Err(MemoryError::Empty);
    }
    if size > isize::MAX as u64 {
        return Err(MemoryError::TooLarge { size });
    }
    if !size.is_multiple_of(ALIGNMENT) {
        return Err(MemoryError::Unaligned { size });
    }
    if name.len() > NAME_MAX || name.contains('\0') {
        return Err(MemoryError::Name { name: name.to_owned() });
    }
    Ok(())
}

/// Refuses what the machine does not have. A driver that is asked for more would take all there is first, and the
/// kernel end processes to free some: for the system heap, the one that asks.
pub(super) fn check_available(size: u64) -> Result<(), MemoryError> {
    match machine::available_memory() {
        Some(available) if size > available => Err(MemoryError::NotEnoughMemory { size, available }),
        _ => Ok(()),
    }
}
