//! Memory for a whole cache, as a decoder makes it.

use std::os::fd::OwnedFd;

use super::RowsError;
use crate::header::Header;
use crate::memory::RegionSource;

/// Allocates what the regions of `header` lie in: one descriptor for each that they name, in order, each as long as its
/// last region reaches.
///
/// Whoever meets the memory in `/proc` can tell whose it is and what it holds: `kvshare:cache_k_l0..` is `name`, the first
/// tensor, and dots where others follow. A descriptor without tensors has its number instead.
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
    let contents = contents(header, count);
    let allocate = |(size, contents)| Ok(source.allocate(&format!("{name}:{contents}"), size)?.descriptor);
    sizes.into_iter().zip(contents).map(allocate).collect()
}

/// What each descriptor holds, in a word. Every region names one of them.
fn contents(header: &Header, count: usize) -> Vec<String> {
    let mut held = vec![Vec::new(); count];
    for placed in &header.tensors {
        if let Some(region) = header.regions.get(placed.region) {
            held[region.fd].push((region.offset, placed.offset, placed.tensor.name()));
        }
    }
    let word = |(descriptor, tensors): (usize, Vec<(u64, u64, &str)>)| match tensors.iter().min() {
        None => descriptor.to_string(),
        Some((.., first)) => printable(first) + if tensors.len() > 1 { ".." } else { "" },
    };
    held.into_iter().enumerate().map(word).collect()
}

/// A tensor's name may be a peer's, and what the kernel prints of it is read line by line.
fn printable(name: &str) -> String {
    name.chars().filter(|character| !character.is_control()).collect()
}
