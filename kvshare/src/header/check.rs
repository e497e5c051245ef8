//! What must hold within a header, and between a header and what came with it.

use std::collections::HashSet;

use super::{Header, HeaderError, MAX_ROTATION};
use crate::layout::{ALIGNMENT, Part, PlacedTensor, Tensor, TensorType, layout_hash};

impl Header {
    /// Checks that regions and tensors lie apart, aligned and inside one another, that every hash is right, and that
    /// tensors and parameters agree.
    ///
    /// [`parse`](Self::parse) does so, and so does whoever maps a header, which may have been changed since.
    ///
    /// # Errors
    /// The variant of [`HeaderError`] that names what is wrong.
    pub fn check(&self) -> Result<(), HeaderError> {
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
        let mut names = HashSet::with_capacity(self.tensors.len());
        match self.tensors.iter().map(|placed| placed.tensor.name()).find(|name| !names.insert(*name)) {
            Some(name) => Err(HeaderError::RepeatedTensor { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Compares the tensors with the parameters: where they part, rows would be written that nobody can read.
    fn check_params(&self) -> Result<(), HeaderError> {
        let Some(params) = &self.params else { return Ok(()) };
        for placed in &self.tensors {
            match placed.tensor.part_and_layer() {
                Some((Part::K, _)) => {
                    check_type(&placed.tensor, "type_k", params.type_k)?;
                    check_rotation(&placed.tensor, "n_rot_k", params.n_rot_k)?;
                }
                Some((Part::V, _)) => {
                    check_type(&placed.tensor, "type_v", params.type_v)?;
                    check_rotation(&placed.tensor, "n_rot_v", params.n_rot_v)?;
                    check_transposition(&placed.tensor, params.v_trans)?;
                }
                _ => continue,
            }
            let [.., found, _] = placed.tensor.ne();
            if found != u64::from(params.n_stream) {
                let name = placed.tensor.name().to_owned();
                return Err(HeaderError::Streams { name, found, expected: params.n_stream });
            }
        }
        Ok(())
    }

    /// The tensors of each region by offset, which is the order that the layout hash goes by.
    pub(crate) fn tensors_by_region(&self) -> Result<Vec<Vec<&PlacedTensor>>, HeaderError> {
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
}

fn check_type(tensor: &Tensor, param: &'static str, expected: TensorType) -> Result<(), HeaderError> {
    let found = tensor.tensor_type();
    if found == expected {
        return Ok(());
    }
    Err(HeaderError::ParamsDisagree { name: tensor.name().to_owned(), found, param, expected })
}

fn check_rotation(tensor: &Tensor, param: &'static str, size: u32) -> Result<(), HeaderError> {
    let [width, ..] = tensor.ne();
    let possible = size.is_power_of_two() && size <= MAX_ROTATION && width.is_multiple_of(size.into());
    if size == 0 || possible {
        return Ok(());
    }
    Err(HeaderError::Rotation { param, size, name: tensor.name().to_owned(), width })
}

fn check_transposition(tensor: &Tensor, v_trans: bool) -> Result<(), HeaderError> {
    let tensor_type = tensor.tensor_type();
    if v_trans && tensor_type.is_quantized() {
        return Err(HeaderError::TransposedBlocks { name: tensor.name().to_owned(), tensor_type });
    }
    Ok(())
}

pub(super) fn same_hash(region: usize, announced: u64, computed: u64) -> Result<(), HeaderError> {
    if announced == computed { Ok(()) } else { Err(HeaderError::HashMismatch { region, announced, computed }) }
}
