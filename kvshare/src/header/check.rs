//! What must hold within a header, and between a header and what came with it.

use super::{Header, HeaderError};
use crate::layout::{ALIGNMENT, Layout, Part, PlacedTensor, layout_hash};

impl Header {
    /// Checks that regions and tensors lie apart, aligned and inside one another, and that every hash is right.
    pub(super) fn check(&self) -> Result<(), HeaderError> {
        self.check_regions()?;
        if self.tensors.is_empty() {
            return Ok(());
        }
        self.check_names()?;
        self.check_params()?;
        for (region, tensors) in self.tensors_by_region()?.iter().enumerate() {
            self.check_region_tensors(region, tensors)?;
        }
        Ok(())
    }

    fn check_regions(&self) -> Result<(), HeaderError> {
        for (index, region) in self.regions.iter().enumerate() {
            let field = |name: &str| format!("regions[{index}].{name}");
            if region.size == 0 {
                return Err(HeaderError::ZeroSize { field: field("size") });
            }
            for (name, value) in [("size", region.size), ("offset", region.offset)] {
                if value % ALIGNMENT != 0 {
                    return Err(HeaderError::Unaligned { field: field(name), value });
                }
            }
            if region.end() > i64::MAX as u64 {
                let (offset, size) = (region.offset, region.size);
                return Err(HeaderError::RegionTooLarge { region: index, offset, size });
            }
        }
        let mut order: Vec<usize> = (0..self.regions.len()).collect();
        order.sort_by_key(|index| (self.regions[*index].fd, self.regions[*index].offset));
        for pair in order.windows(2) {
            let (first, second) = (&self.regions[pair[0]], &self.regions[pair[1]]);
            if first.fd == second.fd && first.end() > second.offset {
                return Err(HeaderError::RegionsOverlap { first: pair[0], second: pair[1], fd: first.fd });
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), HeaderError> {
        let mut names: Vec<&str> = self.tensors.iter().map(|placed| placed.tensor.name()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(HeaderError::RepeatedTensor { name: pair[0].to_owned() }),
            None => Ok(()),
        }
    }

    fn check_params(&self) -> Result<(), HeaderError> {
        let Some(params) = &self.params else { return Ok(()) };
        for placed in &self.tensors {
            let (param, expected) = match placed.tensor.part_and_layer() {
                Some((Part::K, _)) => ("type_k", params.type_k),
                Some((Part::V, _)) => ("type_v", params.type_v),
                _ => continue,
            };
            let found = placed.tensor.tensor_type();
            if found != expected {
                let name = placed.tensor.name().to_owned();
                return Err(HeaderError::ParamsDisagree { name, found, param, expected });
            }
        }
        Ok(())
    }

    /// The tensors of each region by offset, which is the order that the layout hash goes by.
    fn tensors_by_region(&self) -> Result<Vec<Vec<&PlacedTensor>>, HeaderError> {
        let mut by_region: Vec<Vec<&PlacedTensor>> = vec![Vec::new(); self.regions.len()];
        for (index, placed) in self.tensors.iter().enumerate() {
            let count = self.regions.len();
            let Some(tensors) = by_region.get_mut(placed.region) else {
                let field = format!("tensors[{index}].region");
                return Err(HeaderError::NoSuchRegion { field, value: placed.region, count });
            };
            if placed.offset % ALIGNMENT != 0 {
                let field = format!("tensors[{index}].offset");
                return Err(HeaderError::Unaligned { field, value: placed.offset });
            }
            tensors.push(placed);
        }
        by_region.iter_mut().for_each(|tensors| tensors.sort_by_key(|placed| placed.offset));
        Ok(by_region)
    }

    fn check_region_tensors(&self, region: usize, tensors: &[&PlacedTensor]) -> Result<(), HeaderError> {
        let name = |placed: &PlacedTensor| placed.tensor.name().to_owned();
        let Some(described) = self.regions.get(region) else { return Ok(()) };
        for placed in tensors {
            if placed.end() > described.size {
                let (end, size) = (placed.end(), described.size);
                return Err(HeaderError::TensorOutside { name: name(placed), end, region, size });
            }
        }
        for pair in tensors.windows(2) {
            if pair[0].end() > pair[1].offset {
                return Err(HeaderError::TensorsOverlap { first: name(pair[0]), second: name(pair[1]), region });
            }
        }
        same_hash(region, described.layout, layout_hash(tensors.iter().map(|placed| &placed.tensor)))
    }

    /// Compares the header with the descriptors that came beside it: `sizes` has one entry for each, in order, `None`
    /// where a descriptor does not tell its size.
    ///
    /// # Errors
    /// A region without a descriptor, a descriptor without a region, a region that its descriptor cannot hold.
    pub fn check_descriptors(&self, sizes: &[Option<u64>]) -> Result<(), HeaderError> {
        let count = sizes.len();
        let mut named = vec![false; count];
        for (index, region) in self.regions.iter().enumerate() {
            let Some(size) = sizes.get(region.fd) else {
                let field = format!("regions[{index}].fd");
                return Err(HeaderError::NoSuchDescriptor { field, value: region.fd, count });
            };
            named[region.fd] = true;
            if let Some(size) = *size
                && region.end() > size
            {
                return Err(HeaderError::BeyondDescriptor { region: index, end: region.end(), fd: region.fd, size });
            }
        }
        match named.iter().position(|named| !named) {
            Some(index) => Err(HeaderError::UnusedDescriptor { index, count }),
            None => Ok(()),
        }
    }

    /// Adds the tensors of `layout`, which the receiver computed from its own model, to a header that came without any.
    /// A header that has tensors is compared with it instead.
    ///
    /// # Errors
    /// Another number of regions, a smaller one, another hash, or other tensors.
    pub fn complete(&mut self, layout: &Layout) -> Result<(), HeaderError> {
        let (found, expected) = (self.regions.len(), layout.chunks().len());
        if found != expected {
            return Err(HeaderError::RegionCount { found, expected });
        }
        for (region, (described, chunk)) in self.regions.iter().zip(layout.chunks()).enumerate() {
            if described.size != chunk.size {
                return Err(HeaderError::RegionSize { region, found: described.size, expected: chunk.size });
            }
            same_hash(region, described.layout, chunk.hash)?;
        }
        if self.tensors.is_empty() {
            self.tensors = layout.tensors().to_vec();
            return Ok(());
        }
        let in_words = |tensors: &[PlacedTensor]| {
            let mut words: Vec<String> = tensors.iter().map(PlacedTensor::to_string).collect();
            words.sort_unstable();
            words
        };
        let (ours, theirs) = (in_words(layout.tensors()), in_words(&self.tensors));
        match ours.into_iter().zip(theirs).find(|(ours, theirs)| ours != theirs) {
            Some((ours, theirs)) => Err(HeaderError::OtherTensor { theirs, ours }),
            None if self.tensors.len() != layout.tensors().len() => {
                Err(HeaderError::TensorCount { found: self.tensors.len(), expected: layout.tensors().len() })
            }
            None => Ok(()),
        }
    }
}

fn same_hash(region: usize, announced: u64, computed: u64) -> Result<(), HeaderError> {
    if announced == computed { Ok(()) } else { Err(HeaderError::HashMismatch { region, announced, computed }) }
}
