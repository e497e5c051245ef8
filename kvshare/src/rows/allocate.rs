//! Memory for a whole cache, as a decoder makes it.

use std::os::fd::OwnedFd;

use super::RowsError;
use crate::header::Header;
use crate::memory::RegionSource;

/// Allocates what the regions of `header` lie in: one descriptor for each that they name, in order, each as long as its
/// last region reaches.
///
/// `name` and a descriptor's number show in `/proc`.
///
/// # Errors
/// Memory that cannot be had; a header that leaves out a descriptor's number.
pub fn allocate(header: &Header, source: &dyn RegionSource, name: &str) -> Result<Vec<OwnedFd>, RowsError> {
    // There are no more descriptors than regions: a number beyond them is refused before room is made for it.
    let count = header.descriptor_count().min(header.regions.len());
    header.check_descriptors(&vec![None; count])?;
    let mut sizes = vec![0; count];
    for region in &header.regions {
        sizes[region.fd] = region.end().max(sizes[region.fd]);
    }
    let allocate = |(index, size)| Ok(source.allocate(&format!("{name}-{index}"), size)?.descriptor);
    sizes.into_iter().enumerate().map(allocate).collect()
}
