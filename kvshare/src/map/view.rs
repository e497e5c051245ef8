//! Windows on mapped memory, which copy bytes in and out.
//!
//! A `&[u8]` promises that its bytes do not change while it lives, a promise that memory shared with other processes
//! cannot keep. So a view is an address and a length, and all access goes through the copies at the end of this file.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, compiler_fence};

use super::MapError;

/// A window on a region, for reading.
///
/// Another process may write the bytes at any time. Each copy sees some mixture of old and new bytes then; order is a
/// matter of the protocol (the writer says when it has finished).
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    start: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a ()>,
}

// SAFETY: a view only reads, by copies that allow for a writer: another process, or this one through another mapping
// of the same memory. Through this mapping nobody writes, since the region is borrowed.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// # Safety
    ///
    /// The bytes must be mapped for reading throughout `'a`, and nobody may write them through the same mapping
    /// meanwhile. Other processes may.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, region: PhantomData }
    }

    /// How many bytes the view has.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the view has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfBounds`] where it is not inside this view.
    pub fn sub(&self, offset: usize, len: usize) -> Result<Self, MapError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(MapError::OutOfBounds { offset: offset as u64, len: len as u64, size: self.len as u64 });
        }
        // SAFETY: the part lies in this view, whose bytes are mapped for `'a`, and ends no later than it.
        Ok(unsafe { Self::new(self.start.add(offset), len) })
    }

    /// Copies all of the view into a buffer of the same length.
    ///
    /// # Errors
    ///
    /// [`MapError::Length`] where the lengths differ.
    #[inline]
    pub fn copy_to(&self, buffer: &mut [u8]) -> Result<(), MapError> {
        check_length(self.len, buffer.len())?;
        // SAFETY: both have `len` bytes; the view's are mapped for reading, and no safe code has a slice of mapped
        // memory, so they do not overlap. Another process may write meanwhile: any mixture of bytes is a valid `u8`.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), buffer.as_mut_ptr(), self.len) };
        settle_reads();
        Ok(())
    }

    /// Gathers elements of `element_bytes` that start `stride` bytes apart, and fills the buffer with them.
    ///
    /// This is how the V row of a position is read from a transposed cache: element (channel, position) lies at
    /// `(channel * kv_size + position) * element_bytes`, so a view from the position's first element on is read with
    /// a stride of `kv_size * element_bytes`.
    ///
    /// # Errors
    ///
    /// [`MapError::Stride`] where an element has no bytes, elements overlap, the buffer is no whole number of
    /// elements, or the last one ends after the view.
    pub fn copy_strided_to(&self, element_bytes: usize, stride: usize, buffer: &mut [u8]) -> Result<(), MapError> {
        let count = count_strided(element_bytes, stride, buffer.len(), self.len)?;
        let (source, target) = (self.as_ptr(), buffer.as_mut_ptr());
        // SAFETY: `count_strided` has checked that the last element ends in the view, and that the buffer has room for
        // exactly `count`. They do not overlap, and another process may write, as in `copy_to`.
        unsafe { copy_elements(source, stride, target, element_bytes, element_bytes, count) };
        settle_reads();
        Ok(())
    }

    /// The address of the first byte, for a device's interface or a foreign function.
    ///
    /// It is valid while the region is borrowed and for as many bytes as the view has. Make no reference from it:
    /// other processes may write there.
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

/// A window on a region, for writing.
///
/// It borrows the region exclusively, so that safe code of one process cannot race with itself. Nothing keeps other
/// processes out.
#[derive(Debug)]
pub struct ViewMut<'a> {
    view: View<'a>,
    exclusive: PhantomData<&'a mut ()>,
}

impl ViewMut<'_> {
    /// # Safety
    ///
    /// The bytes must be mapped for reading and writing throughout the lifetime, and nobody may access them through
    /// the same mapping meanwhile. Other processes may.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: what `View::new` asks for is part of what this function asks for.
        Self { view: unsafe { View::new(start, len) }, exclusive: PhantomData }
    }

    /// How many bytes the view has.
    pub const fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether the view has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The same window for reading, while this one is not written.
    pub const fn as_view(&self) -> View<'_> {
        self.view
    }

    /// The part of `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfBounds`] where it is not inside this view.
    pub fn sub(&mut self, offset: usize, len: usize) -> Result<ViewMut<'_>, MapError> {
        Ok(ViewMut { view: self.view.sub(offset, len)?, exclusive: PhantomData })
    }

    /// Overwrites all of the view with a buffer of the same length.
    ///
    /// # Errors
    ///
    /// [`MapError::Length`] where the lengths differ.
    #[inline]
    pub fn copy_from(&mut self, buffer: &[u8]) -> Result<(), MapError> {
        check_length(self.len(), buffer.len())?;
        // SAFETY: both have the same length; the view's bytes are mapped for writing and borrowed exclusively, and no
        // safe code has a slice of mapped memory, so they do not overlap. Another process may read or write the same
        // bytes meanwhile; nothing here depends on what they are.
        unsafe { ptr::copy_nonoverlapping(buffer.as_ptr(), self.as_mut_ptr(), buffer.len()) };
        Ok(())
    }

    /// Scatters the buffer's elements of `element_bytes` so that they start `stride` bytes apart, and leaves what
    /// lies between them as it is. It is the reverse of [`View::copy_strided_to`].
    ///
    /// # Errors
    ///
    /// [`MapError::Stride`], as there.
    pub fn copy_strided_from(&mut self, element_bytes: usize, stride: usize, buffer: &[u8]) -> Result<(), MapError> {
        let count = count_strided(element_bytes, stride, buffer.len(), self.len())?;
        let (source, target) = (buffer.as_ptr(), self.as_mut_ptr());
        // SAFETY: `count_strided` has checked that the last element ends in the view, and that the buffer has exactly
        // `count`. They do not overlap, and another process may access the view, as in `copy_from`.
        unsafe { copy_elements(source, element_bytes, target, stride, element_bytes, count) };
        Ok(())
    }

    /// Sets every byte of the view to `value`.
    pub fn fill(&mut self, value: u8) {
        let len = self.len();
        // SAFETY: the view's bytes are mapped for writing and borrowed exclusively. Another process may read or write
        // them meanwhile; nothing here depends on what they are.
        unsafe { ptr::write_bytes(self.as_mut_ptr(), value, len) };
    }

    /// The address of the first byte, for a device's interface or a foreign function. See [`View::as_ptr`].
    pub const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.start.as_ptr()
    }
}

#[inline]
fn check_length(view: usize, buffer: usize) -> Result<(), MapError> {
    if view == buffer { Ok(()) } else { Err(MapError::Length { view, buffer }) }
}

/// How many elements fill the buffer, having checked that as many lie in the view.
fn count_strided(element_bytes: usize, stride: usize, buffer: usize, view: usize) -> Result<usize, MapError> {
    let mismatch = MapError::Stride { element_bytes, stride, buffer, view };
    if element_bytes == 0 || stride < element_bytes || !buffer.is_multiple_of(element_bytes) {
        return Err(mismatch);
    }
    let count = buffer / element_bytes;
    let Some(strides) = count.checked_sub(1) else { return Ok(0) };
    let end = strides.checked_mul(stride).and_then(|last| last.checked_add(element_bytes));
    if end.is_some_and(|end| end <= view) { Ok(count) } else { Err(mismatch) }
}

/// Keeps the compiler from reading shared memory a second time in place of the copy just made, which another process
/// could have changed since.
fn settle_reads() {
    compiler_fence(Ordering::SeqCst);
}

/// Copies `count` elements from `source`, where they start `source_stride` bytes apart, to `target`.
///
/// # Safety
///
/// The last element must end in memory that is valid on either side, and the two sides must not overlap. Another
/// process may access either side meanwhile.
unsafe fn copy_elements(
    source: *const u8,
    source_stride: usize,
    target: *mut u8,
    target_stride: usize,
    element_bytes: usize,
    count: usize,
) {
    // A length known to the compiler becomes one load and one store; a call to memcpy for each element is far slower.
    macro_rules! copy_each {
        ($bytes:expr) => {
            for index in 0..count {
                // SAFETY: the caller vouches for every element up to the last. Another process may write the bytes
                // meanwhile: any mixture is a valid `u8`.
                unsafe {
                    let (from, to) = (source.add(index * source_stride), target.add(index * target_stride));
                    ptr::copy_nonoverlapping(from, to, $bytes);
                }
            }
        };
    }
    match element_bytes {
        1 => copy_each!(1),
        2 => copy_each!(2),
        4 => copy_each!(4),
        _ => copy_each!(element_bytes),
    }
}
