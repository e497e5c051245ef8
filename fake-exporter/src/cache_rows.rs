//! A mapped cache as the model's own: attention reads K and V where they lie, and writes them there.

use kvshare::rows::{MappedCache, RowsError};

use crate::model::KeyValueCache;

/// A [`MappedCache`] as the forward pass sees it, of any type that its rows can be converted to.
///
/// ```
/// use fake_exporter::cache_rows::CacheRows;
/// use fake_exporter::model::{Model, most_likely};
/// use kvshare::header::{Header, Params};
/// use kvshare::layout::{Geometry, TensorType};
/// use kvshare::map::{Access, MapOptions};
/// use kvshare::memory::Memfd;
/// use kvshare::rows::{MappedCache, allocate};
///
/// let model = Model::embedded()?;
/// let layout = Geometry::uniform(8, 64, 64, 256, TensorType::F16).layout()?;
/// let header = Header::describe(&layout, None, Some(Params::plain(256, TensorType::F16)));
/// let memory = allocate(&header, &Memfd::new(), "example")?;
/// let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
/// let mut cache = MappedCache::map(&header, &memory, &options)?;
///
/// let tokens = model.tokenizer().encode("There was a happy", true, true)?;
/// let logits = model.evaluate(&tokens, 0, &mut CacheRows::new(&mut cache))?;
/// assert_ne!(most_likely(&logits), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CacheRows<'a>(&'a mut MappedCache);

impl<'a> CacheRows<'a> {
    /// The rows of `cache` in stream 0.
    pub fn new(cache: &'a mut MappedCache) -> Self {
        Self(cache)
    }
}

impl KeyValueCache for CacheRows<'_> {
    type Error = RowsError;

    fn write(&mut self, layer: usize, first_position: usize, k: &[f32], v: &[f32]) -> Result<(), RowsError> {
        let (layer, first) = (number(layer), first_position as u64);
        self.0.k_mut(layer)?.write_f32(first, k)?;
        self.0.v_mut(layer)?.write_f32(first, v)
    }

    fn read_k(&self, layer: usize, _count: usize, rows: &mut [f32]) -> Result<(), RowsError> {
        self.0.k(number(layer))?.read_f32(0, rows)
    }

    fn read_v(&self, layer: usize, _count: usize, rows: &mut [f32]) -> Result<(), RowsError> {
        self.0.v(number(layer))?.read_f32(0, rows)
    }
}

/// A layer's number in the cache, whose error says which layers there are.
fn number(layer: usize) -> u32 {
    u32::try_from(layer).unwrap_or(u32::MAX)
}
