//! Where K and V rows live: what the forward pass needs of a cache, and a plain one in this process's memory.

use std::error::Error;

use half::f16;
use thiserror::Error as ThisError;

use super::Config;

/// A KV cache, as the forward pass sees it.
///
/// A row holds one position's K (or V) values of all heads of one layer: `n_embd_k_gqa` (`n_embd_v_gqa`) values of f32.
/// Several rows lie one after the other. What the cache keeps them in is its own affair: attention reads what was
/// written *back* from here, so that it sees the cache's precision, not more.
pub trait KeyValueCache {
    /// Why rows could not be written or read.
    type Error: Error + Send + Sync + 'static;

    /// Writes the K and V rows of the positions from `first_position` on, as many as the slices hold.
    ///
    /// # Errors
    ///
    /// When the cache has no such rows or cannot be reached.
    fn write(&mut self, layer: usize, first_position: usize, k: &[f32], v: &[f32]) -> Result<(), Self::Error>;

    /// Reads the K rows of positions `0..count` into `rows`, which holds exactly `count * n_embd_k_gqa` values.
    ///
    /// # Errors
    ///
    /// When the cache has no such rows or cannot be reached.
    fn read_k(&self, layer: usize, count: usize, rows: &mut [f32]) -> Result<(), Self::Error>;

    /// Reads the V rows of positions `0..count` into `rows`, which holds exactly `count * n_embd_v_gqa` values.
    ///
    /// # Errors
    ///
    /// When the cache has no such rows or cannot be reached.
    fn read_v(&self, layer: usize, count: usize, rows: &mut [f32]) -> Result<(), Self::Error>;
}

/// What a [`MemoryCache`] rounds its values to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// Values stay as they are.
    F32,
    /// Values are rounded to the nearest f16, as llama.cpp's default cache rounds them.
    F16,
}

/// Rows were asked for that a [`MemoryCache`] does not have.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[error("layer {layer} of the cache holds {cells} positions and has no position {position}; give the cache more cells")]
pub struct OutsideCache {
    /// The layer.
    pub layer: usize,
    /// The first position that is not there.
    pub position: usize,
    /// How many positions the layer holds; 0 if there is no such layer.
    pub cells: usize,
}

/// A KV cache in this process's own memory: a reference to compare others with.
#[derive(Debug, Clone)]
pub struct MemoryCache {
    layers: Vec<Layer>,
    cells: usize,
    precision: Precision,
    n_embd_k_gqa: usize,
    n_embd_v_gqa: usize,
}

#[derive(Debug, Clone)]
struct Layer {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl MemoryCache {
    /// A cache of zeros for `cells` positions.
    pub fn new(config: &Config, cells: usize, precision: Precision) -> Self {
        let (n_embd_k_gqa, n_embd_v_gqa) = (config.n_embd_k_gqa(), config.n_embd_v_gqa());
        let layer = Layer { k: vec![0.0; cells * n_embd_k_gqa], v: vec![0.0; cells * n_embd_v_gqa] };
        Self { layers: vec![layer; config.n_layer], cells, precision, n_embd_k_gqa, n_embd_v_gqa }
    }

    fn layer(&self, layer: usize, count: usize) -> Result<&Layer, OutsideCache> {
        let cells = if layer < self.layers.len() { self.cells } else { 0 };
        match self.layers.get(layer) {
            Some(found) if count <= cells => Ok(found),
            _ => Err(OutsideCache { layer, position: cells, cells }),
        }
    }
}

impl Precision {
    fn round(self, from: &[f32], to: &mut [f32]) {
        match self {
            Self::F32 => to.copy_from_slice(from),
            Self::F16 => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = f16::from_f32(*from).to_f32();
                }
            }
        }
    }
}

impl KeyValueCache for MemoryCache {
    type Error = OutsideCache;

    fn write(&mut self, layer: usize, first_position: usize, k: &[f32], v: &[f32]) -> Result<(), OutsideCache> {
        self.layer(layer, first_position + k.len() / self.n_embd_k_gqa)?;
        let precision = self.precision;
        let Layer { k: k_rows, v: v_rows } = &mut self.layers[layer];
        precision.round(k, &mut k_rows[first_position * self.n_embd_k_gqa..][..k.len()]);
        precision.round(v, &mut v_rows[first_position * self.n_embd_v_gqa..][..v.len()]);
        Ok(())
    }

    fn read_k(&self, layer: usize, count: usize, rows: &mut [f32]) -> Result<(), OutsideCache> {
        rows.copy_from_slice(&self.layer(layer, count)?.k[..count * self.n_embd_k_gqa]);
        Ok(())
    }

    fn read_v(&self, layer: usize, count: usize, rows: &mut [f32]) -> Result<(), OutsideCache> {
        rows.copy_from_slice(&self.layer(layer, count)?.v[..count * self.n_embd_v_gqa]);
        Ok(())
    }
}
