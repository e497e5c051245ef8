//! The memory of a cache: allocated region by region, mapped once.

use std::os::fd::OwnedFd;

use kvshare::header::{Header, ModelIdentity, Params};
use kvshare::layout::Geometry;
use kvshare::map::{Access, MapOptions};
use kvshare::rows::{MappedCache, allocate};
use kvshare::values::{key_rotation, value_rotation};

use super::{DecoderError, Settings};
use crate::brain::Brain;

/// What every cache of this decoder is like.
pub(super) struct CachePlan {
    header: Header,
    header_json: Vec<u8>,
    options: MapOptions,
}

/// One cache: the regions' descriptors in the header's order, and their mapping.
pub(super) struct Cache {
    descriptors: Vec<OwnedFd>,
    mapped: MappedCache,
}

impl CachePlan {
    pub fn new(brain: &dyn Brain, settings: &Settings) -> Result<Self, DecoderError> {
        let shape = brain.cache_shape();
        let Settings { cells, type_k, type_v, flash_attention, guard, .. } = *settings;
        let widths = Geometry::uniform(shape.layers, shape.k_width, shape.v_width, cells.into(), type_k);
        let layout = Geometry { type_v, ..widths }.layout()?;
        let params = Params {
            flash_attn: flash_attention,
            type_v,
            v_trans: !flash_attention,
            n_rot_k: key_rotation(type_k, shape.head_size),
            n_rot_v: value_rotation(type_v, shape.head_size),
            ..Params::plain(cells, type_k)
        };
        let model = ModelIdentity { name: brain.name().to_owned(), sha256: None };
        let header = Header::describe(&layout, Some(model), Some(params));
        // What can be refused is refused before memory is allocated.
        header.planes()?;
        let options = MapOptions { access: Access::ReadWrite, guard, ..MapOptions::default() };
        // Every share sends the same, so it is written once: that takes as long as half of an exchange.
        let header_json = header.to_json();
        Ok(Self { header, header_json, options })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn header_json(&self) -> &[u8] {
        &self.header_json
    }

    /// A fresh cache. Its padding has the pattern that shows whether somebody writes past a tensor.
    pub fn allocate(&self, settings: &Settings) -> Result<Cache, DecoderError> {
        let descriptors = allocate(&self.header, &*settings.memory, "kvshare")?;
        let mapped = MappedCache::map(&self.header, &descriptors, &self.options)?;
        let mut cache = Cache { descriptors, mapped };
        cache.access(|cache| Ok(cache.fill_padding()?))?;
        Ok(cache)
    }
}

impl Cache {
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }

    pub fn mapped(&self) -> &MappedCache {
        &self.mapped
    }

    /// Lets `work` use the rows, within a CPU access to every region: a memfd needs none, a dma-buf does.
    pub fn access<T>(
        &mut self,
        work: impl FnOnce(&mut MappedCache) -> Result<T, DecoderError>,
    ) -> Result<T, DecoderError> {
        let accesses = self.mapped.begin_cpu_access(Access::ReadWrite)?;
        let result = work(&mut self.mapped);
        accesses.end()?;
        result
    }
}
