//! A header beside the provider's own model: adding the tensors that it came without, or comparing those that it has.

use std::collections::HashMap;

use super::check::same_hash;
use super::{Header, HeaderError};
use crate::layout::{Geometry, Layout, Tensor};

impl Header {
    /// Adds the tensors of `layout`, which the receiver computed from its own model, to a header that came without any.
    /// One that has tensors stays as it is; [`compare`](Self::compare) is for that.
    ///
    /// # Errors
    /// Another number of regions, another size, or another hash.
    pub fn complete(&mut self, layout: &Layout) -> Result<(), HeaderError> {
        if !self.tensors.is_empty() {
            return Ok(());
        }
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
        self.tensors = layout.tensors().to_vec();
        Ok(())
    }

    /// Compares the tensors, by name, with those of the receiver's own model: their types and shapes.
    ///
    /// Where they lie is the decoder's to say, since its allocator may leave room between them.
    ///
    /// # Errors
    /// A tensor that differs, or that only one side has; or a geometry that makes no tensors.
    pub fn compare(&self, geometry: &Geometry) -> Result<(), HeaderError> {
        let groups = geometry.groups().map_err(|problem| HeaderError::Model { problem })?;
        let mut theirs: HashMap<&str, &Tensor> =
            self.tensors.iter().map(|placed| (placed.tensor.name(), &placed.tensor)).collect();
        for ours in groups.iter().flatten() {
            let Some(theirs) = theirs.remove(ours.name()) else {
                return Err(HeaderError::MissingTensor { ours: ours.to_string() });
            };
            if (theirs.tensor_type(), theirs.ne()) != (ours.tensor_type(), ours.ne()) {
                return Err(HeaderError::OtherTensor { theirs: theirs.to_string(), ours: ours.to_string() });
            }
        }
        // The first in the header's order, so that the message is always the same one.
        match self.tensors.iter().find(|placed| theirs.contains_key(placed.tensor.name())) {
            Some(placed) => Err(HeaderError::UnknownTensor { theirs: placed.tensor.to_string() }),
            None => Ok(()),
        }
    }
}
