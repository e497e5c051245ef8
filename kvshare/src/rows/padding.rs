//! The padding between a tensor's end and the next multiple of 4096, which nobody may write.
//!
//! Filled with a pattern before a cache is handed out and checked when it comes back, it shows a provider that writes past
//! a tensor: its last row too long, a stride too wide. It costs one page a tensor, whatever the prompt's length.

use super::{MappedCache, RowsError};
use crate::layout::ALIGNMENT;

/// What padding is filled with: the byte at offset o of a region is number o modulo 8 of these. None is 0, so that zeros
/// show, and no number of a cache that is all one value looks like it.
pub const PADDING_PATTERN: [u8; 8] = [0xfb, 0x4b, 0x56, 0x53, 0x48, 0x41, 0x52, 0xf7];

const PAGE: usize = ALIGNMENT as usize;

impl MappedCache {
    /// Fills the padding behind each tensor with [`PADDING_PATTERN`].
    ///
    /// # Errors
    /// A cache that is not mapped for writing.
    pub fn fill_padding(&mut self) -> Result<(), RowsError> {
        let page = pattern_page();
        for index in 0..self.tensors().len() {
            let placed = &self.tensors()[index];
            let (region, end, filled) = (placed.region, placed.end(), placed.padding() as usize);
            let pattern = &page[PAGE - filled..];
            self.region_mut(region).view_mut(end, filled as u64)?.copy_from(pattern)?;
        }
        Ok(())
    }

    /// Checks that the padding is as [`fill_padding`](Self::fill_padding) left it.
    ///
    /// # Errors
    /// [`RowsError::PaddingDamaged`] for the first tensor that was written past.
    pub fn check_padding(&self) -> Result<(), RowsError> {
        let page = pattern_page();
        let mut found = [0; PAGE];
        for placed in self.tensors() {
            let filled = placed.padding() as usize;
            let (found, pattern) = (&mut found[..filled], &page[PAGE - filled..]);
            self.regions()[placed.region].view(placed.end(), filled as u64)?.copy_to(found)?;
            if let Some(offset) = found.iter().zip(pattern).position(|(found, filled)| found != filled) {
                let tensor = placed.tensor.name().to_owned();
                return Err(RowsError::PaddingDamaged { tensor, offset: offset as u64 });
            }
        }
        Ok(())
    }
}

fn pattern_page() -> [u8; PAGE] {
    std::array::from_fn(|offset| PADDING_PATTERN[offset % PADDING_PATTERN.len()])
}
