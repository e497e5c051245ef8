//! All regions of a cache, mapped.

use std::os::fd::AsFd;
use std::time::Instant;

use super::{Rows, RowsError, RowsMut};
use crate::header::Header;
use crate::layout::{LayerPlanes, Part, PlacedTensor, Plane, Planes};
use crate::map::{Access, CPU_ACCESS_TIMEOUT, CpuAccess, Extent, MapError, MapOptions, MappedRegion, View, ViewMut};

/// A cache whose regions are mapped into this process.
#[derive(Debug)]
pub struct MappedCache {
    regions: Vec<MappedRegion>,
    tensors: Vec<PlacedTensor>,
    planes: Planes,
    rotation_k: u32,
    rotation_v: u32,
}

/// A CPU access to every region of a cache (see [`MappedRegion::begin_cpu_access`]); it ends when dropped.
#[derive(Debug)]
#[must_use = "the access ends when this is dropped"]
pub struct CpuAccesses(Vec<CpuAccess>);

impl CpuAccesses {
    /// Ends the access to every region, also where ending it for one fails.
    ///
    /// # Errors
    /// The first failure.
    pub fn end(self) -> Result<(), MapError> {
        self.0.into_iter().map(CpuAccess::end).fold(Ok(()), Result::and)
    }
}

impl MappedCache {
    /// Maps the regions of `header`, whose descriptors are `descriptors` in the header's order.
    ///
    /// # Errors
    /// A header that does not hold together, tensors that do not make a cache, or a region that cannot be mapped so.
    pub fn map(header: &Header, descriptors: &[impl AsFd], options: &MapOptions) -> Result<Self, RowsError> {
        if header.tensors.is_empty() {
            return Err(RowsError::NoTensors);
        }
        // A received header was checked; one that was made or changed by hand is now. Every row relies on it.
        header.check()?;
        let planes = header.planes()?;
        let mut regions = Vec::with_capacity(header.regions.len());
        for (index, (region, tensors)) in header.regions.iter().zip(header.tensors_by_region()?).enumerate() {
            let count = descriptors.len();
            let descriptor = descriptors.get(region.fd).ok_or(RowsError::NoDescriptor { index: region.fd, count })?;
            let extent = Extent { offset: region.offset, size: region.size };
            let tensors: Vec<Extent> = tensors.into_iter().map(extent_of).collect();
            let mapped = MappedRegion::map(descriptor, extent, &tensors, options);
            regions.push(mapped.map_err(|source| RowsError::Region { region: index, source })?);
        }
        let (rotation_k, rotation_v) = header.params.as_ref().map_or((0, 0), |params| (params.n_rot_k, params.n_rot_v));
        Ok(Self { regions, tensors: header.tensors.clone(), planes, rotation_k, rotation_v })
    }

    /// The attention layers, by ascending number.
    pub fn layers(&self) -> &[LayerPlanes] {
        self.planes.layers()
    }

    /// Positions of one stream.
    pub fn cells(&self) -> u64 {
        self.planes.cells()
    }

    /// Streams.
    pub fn streams(&self) -> u64 {
        self.planes.streams()
    }

    /// The tensors, in the header's order.
    pub fn tensors(&self) -> &[PlacedTensor] {
        &self.tensors
    }

    /// The bytes of the tensor `name`, for reading: a recurrent layer's state, or an address for a device's runtime.
    ///
    /// # Errors
    /// No such tensor.
    pub fn tensor(&self, name: &str) -> Result<View<'_>, RowsError> {
        let placed = self.placed(name)?;
        Ok(self.regions[placed.region].view(placed.offset, placed.tensor.bytes())?)
    }

    /// The bytes of the tensor `name`, for writing.
    ///
    /// # Errors
    /// No such tensor, or a cache that is not mapped for writing.
    pub fn tensor_mut(&mut self, name: &str) -> Result<ViewMut<'_>, RowsError> {
        let placed = self.placed(name)?;
        let (region, offset, bytes) = (placed.region, placed.offset, placed.tensor.bytes());
        Ok(self.regions[region].view_mut(offset, bytes)?)
    }

    /// The regions, in the header's order.
    pub fn regions(&self) -> &[MappedRegion] {
        &self.regions
    }

    pub(super) fn region_mut(&mut self, index: usize) -> &mut MappedRegion {
        &mut self.regions[index]
    }

    /// The block sizes by which K and V are rotated, 0 for not at all.
    pub fn rotations(&self) -> (u32, u32) {
        (self.rotation_k, self.rotation_v)
    }

    /// The keys of `layer` in stream 0, for reading.
    ///
    /// # Errors
    /// No such layer.
    pub fn k(&self, layer: u32) -> Result<Rows<'_>, RowsError> {
        self.rows(layer, Part::K)
    }

    /// The values of `layer` in stream 0, for reading.
    ///
    /// # Errors
    /// No such layer.
    pub fn v(&self, layer: u32) -> Result<Rows<'_>, RowsError> {
        self.rows(layer, Part::V)
    }

    /// The keys of `layer` in stream 0, for writing.
    ///
    /// # Errors
    /// No such layer.
    pub fn k_mut(&mut self, layer: u32) -> Result<RowsMut<'_>, RowsError> {
        self.rows_mut(layer, Part::K)
    }

    /// The values of `layer` in stream 0, for writing.
    ///
    /// # Errors
    /// No such layer.
    pub fn v_mut(&mut self, layer: u32) -> Result<RowsMut<'_>, RowsError> {
        self.rows_mut(layer, Part::V)
    }

    /// Begins a CPU access to every region, and waits [`CPU_ACCESS_TIMEOUT`] at most for the devices of all.
    ///
    /// # Errors
    /// Those of [`MappedRegion::begin_cpu_access`]; accesses begun before are ended.
    pub fn begin_cpu_access(&self, access: Access) -> Result<CpuAccesses, MapError> {
        let deadline = Instant::now() + CPU_ACCESS_TIMEOUT;
        let begun = self.regions.iter().map(|region| region.begin_cpu_access_until(access, deadline));
        begun.collect::<Result<_, _>>().map(CpuAccesses)
    }

    fn placed(&self, name: &str) -> Result<&PlacedTensor, RowsError> {
        let placed = self.tensors.iter().find(|placed| placed.tensor.name() == name);
        placed.ok_or_else(|| RowsError::NoSuchTensor { name: name.chars().take(64).collect() })
    }

    fn rows(&self, layer: u32, part: Part) -> Result<Rows<'_>, RowsError> {
        let (plane, rotation) = self.plane(layer, part)?;
        Ok(Rows::new(&self.regions[plane.region], plane, rotation))
    }

    fn rows_mut(&mut self, layer: u32, part: Part) -> Result<RowsMut<'_>, RowsError> {
        let (plane, rotation) = self.plane(layer, part)?;
        Ok(RowsMut::new(&mut self.regions[plane.region], plane, rotation))
    }

    /// The plane of K or V, and its rotation. Its region exists: a header is checked for that.
    fn plane(&self, layer: u32, part: Part) -> Result<(Plane, u32), RowsError> {
        let planes = self.planes.layer(layer)?;
        Ok(if part == Part::K { (planes.k, self.rotation_k) } else { (planes.v, self.rotation_v) })
    }
}

fn extent_of(placed: &PlacedTensor) -> Extent {
    Extent { offset: placed.offset, size: placed.tensor.bytes() }
}
