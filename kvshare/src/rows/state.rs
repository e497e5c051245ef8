//! A mapped cache as the source and the sink of a state file.

use super::{MappedCache, Rows, RowsError, RowsMut};
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
    fn layer_number(&self, index: usize) -> Result<u32, RowsError> {
        let count = self.layers().len();
        self.layers().get(index).map(|layer| layer.layer).ok_or(RowsError::LayerIndex { index, count })
    }

    fn rows_of(&self, run: &Run) -> Result<Rows<'_>, RowsError> {
        let layer = self.layer_number(run.layer)?;
        let rows = if run.half == Half::K { self.k(layer)? } else { self.v(layer)? };
        rows.stream(run.stream as u64)
    }

    fn rows_of_mut(&mut self, run: &Run) -> Result<RowsMut<'_>, RowsError> {
        let layer = self.layer_number(run.layer)?;
        let rows = if run.half == Half::K { self.k_mut(layer)? } else { self.v_mut(layer)? };
        rows.stream(run.stream as u64)
    }
}

impl CacheSource for MappedCache {
    type Error = RowsError;

    fn shape(&self) -> StateShape {
        self.state_shape()
    }

    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), RowsError> {
        self.rows_of(run)?.read_bytes(run.cells.start, rows)
    }

    fn read_channel(&self, run: &Run, channel: u32, elements: &mut [u8]) -> Result<(), RowsError> {
        self.rows_of(run)?.read_channel(channel.into(), run.cells.start, elements)
    }
}

impl CacheSink for MappedCache {
    type Error = RowsError;

    fn shape(&self) -> StateShape {
        self.state_shape()
    }

    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), RowsError> {
        self.rows_of_mut(run)?.write_bytes(run.cells.start, rows)
    }

    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), RowsError> {
        self.rows_of_mut(run)?.write_channel(channel.into(), run.cells.start, elements)
    }
}
