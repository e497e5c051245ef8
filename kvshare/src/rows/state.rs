//! A mapped cache as the source and the sink of a state file.

use super::{MappedCache, RowsError};
use crate::layout::Plane;
use crate::state_file::{CacheSink, CacheSource, Half, LayerShape, RowShape, Run, StateShape};

impl MappedCache {
    /// The shape of the cache as a state file tells it.
    pub fn state_shape(&self) -> StateShape {
        let of = |plane: &Plane| RowShape {
            tensor_type: plane.tensor_type,
            // A row over 2^32 elements has no state file; the file's own check refuses the width then.
            width: u32::try_from(plane.width).unwrap_or(u32::MAX),
        };
        let (n_rot_k, n_rot_v) = self.rotations();
        StateShape {
            layers: self.layers().iter().map(|layer| LayerShape { k: of(&layer.k), v: of(&layer.v) }).collect(),
            v_trans: self.layers().first().is_some_and(|layer| layer.v.transposed),
            n_rot_k,
            n_rot_v,
        }
    }

    /// The model's number of the `index`th layer that has a cache.
    fn layer_number(&self, index: usize) -> u32 {
        // One past the last gives the error that says which layers there are.
        self.layers().get(index).map_or(u32::MAX, |layer| layer.layer)
    }
}

impl CacheSource for MappedCache {
    type Error = RowsError;

    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), RowsError> {
        let layer = self.layer_number(run.layer);
        let plane = if run.half == Half::K { self.k(layer)? } else { self.v(layer)? };
        plane.stream(run.stream as u64)?.read_bytes(run.cells.start, rows)
    }

    fn read_channel(&self, run: &Run, channel: u32, elements: &mut [u8]) -> Result<(), RowsError> {
        let plane = self.v(self.layer_number(run.layer))?;
        plane.stream(run.stream as u64)?.read_channel(channel.into(), run.cells.start, elements)
    }
}

impl CacheSink for MappedCache {
    type Error = RowsError;

    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), RowsError> {
        let layer = self.layer_number(run.layer);
        let plane = if run.half == Half::K { self.k_mut(layer)? } else { self.v_mut(layer)? };
        plane.stream(run.stream as u64)?.write_bytes(run.cells.start, rows)
    }

    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), RowsError> {
        let plane = self.v_mut(self.layer_number(run.layer))?;
        plane.stream(run.stream as u64)?.write_channel(channel.into(), run.cells.start, elements)
    }
}
