//! The shape of the cache where no header tells it: on the file route, and for a decoder that sends regions only.

use std::fs::File;
use std::io::BufReader;
use std::ops::RangeInclusive;
use std::path::Path;

use super::ProviderError;
use crate::header::{Header, Params};
use crate::layout::{ALIGNMENT, Geometry, GgufMetadata, GgufValue, LayerWidths, TensorType};
use crate::values::{key_rotation, value_rotation};

/// The decoder's cache as far as a provider has to be told: the file route carries no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedCache {
    /// The type of K.
    pub type_k: TensorType,
    /// The type of V.
    pub type_v: TensorType,
    /// Whether V is stored by channel (without flash attention).
    pub v_trans: bool,
    /// Its layers, for a model file that is no GGUF; else the model file tells them.
    pub layers: Option<Vec<LayerWidths>>,
}

impl Default for AssumedCache {
    /// llama-server's defaults: f16, flash attention on.
    fn default() -> Self {
        Self { type_k: TensorType::F16, type_v: TensorType::F16, v_trans: false, layers: None }
    }
}

/// Reads the metadata of the GGUF file at `path`.
///
/// # Errors
/// A file that cannot be read or is no GGUF.
pub fn read_metadata(path: &Path) -> Result<GgufMetadata, ProviderError> {
    let file = File::open(path).map_err(|source| ProviderError::Read {
        what: "the model file",
        path: path.to_owned(),
        source,
    })?;
    GgufMetadata::read(BufReader::new(file)).map_err(|source| ProviderError::Model { path: path.to_owned(), source })
}

/// The header of a cache for `cells` positions of the model at `path`, as `cache` says.
pub(super) fn own_header(path: &Path, cells: u64, cache: &AssumedCache) -> Result<Header, ProviderError> {
    let model = ModelShape::of(path, cache)?;
    let types = Types { k: cache.type_k, v: cache.type_v };
    let layout = model.geometry(cells, types).layout()?;
    Ok(Header::describe(&layout, None, Some(model.params(cells, types, cache.v_trans))))
}

/// Adds the tensors that the model at `path` has to a header that came without. If the header has no parameters
/// either, those are found by trying: the regions' sizes and hashes fit only the right ones. They do not tell whether V
/// is transposed; that is taken from `cache`.
pub(super) fn complete(header: &mut Header, path: &Path, cache: &AssumedCache) -> Result<(), ProviderError> {
    let model = ModelShape::of(path, cache)?;
    if let Some(params) = &header.params {
        // llama.cpp shares the context out evenly among the streams (`llama_context`: `n_ctx_seq`).
        let streams = u64::from(params.n_stream.max(1));
        let types = Types { k: params.type_k, v: params.type_v };
        let geometry = model.geometry(u64::from(params.n_ctx) / streams, types);
        return Ok(header.complete(&Geometry { streams, ..geometry }.layout()?)?);
    }
    for types in TensorType::ALL.into_iter().flat_map(|k| TensorType::ALL.map(|v| Types { k, v })) {
        for cells in model.possible_cells(header.bytes(), types) {
            if model.geometry(cells, types).layout().is_ok_and(|layout| header.complete(&layout).is_ok()) {
                header.params = Some(model.params(cells, types, cache.v_trans));
                return Ok(());
            }
        }
    }
    Err(ProviderError::NoGeometry)
}

/// The types of K and V.
#[derive(Clone, Copy)]
struct Types {
    k: TensorType,
    v: TensorType,
}

/// What a model says of its cache: its layers, and the size of one head (0 where it does not say).
struct ModelShape {
    layers: Vec<LayerWidths>,
    head_size: u32,
}

impl ModelShape {
    fn of(path: &Path, cache: &AssumedCache) -> Result<Self, ProviderError> {
        if let Some(layers) = &cache.layers {
            return Ok(Self { layers: layers.clone(), head_size: 0 });
        }
        let metadata = read_metadata(path)?;
        let geometry = metadata.geometry(1, cache.type_k, cache.type_v);
        let geometry = geometry.map_err(|source| ProviderError::Model { path: path.to_owned(), source })?;
        Ok(Self { layers: geometry.layers, head_size: head_size(&metadata) })
    }

    fn geometry(&self, cells: u64, types: Types) -> Geometry {
        Geometry { layers: self.layers.clone(), type_v: types.v, ..Geometry::uniform(0, 0, 0, cells, types.k) }
    }

    fn params(&self, cells: u64, types: Types, v_trans: bool) -> Params {
        Params {
            flash_attn: !v_trans,
            type_v: types.v,
            v_trans,
            n_rot_k: key_rotation(types.k, self.head_size),
            n_rot_v: value_rotation(types.v, self.head_size),
            ..Params::plain(u32::try_from(cells).unwrap_or(u32::MAX), types.k)
        }
    }

    /// The cell counts whose tensors take `bytes`, give or take the rounding of each tensor.
    fn possible_cells(&self, bytes: u64, types: Types) -> RangeInclusive<u64> {
        let bytes_a_cell = self.layers.iter().try_fold(0_u64, |sum, layer| {
            let (k, v) = (types.k.row_bytes(layer.k)?, types.v.row_bytes(layer.v)?);
            sum.checked_add(k)?.checked_add(v)
        });
        let Some(bytes_a_cell @ 1..) = bytes_a_cell else {
            return 1..=0;
        };
        let rounding = 2 * self.layers.len() as u64 * ALIGNMENT;
        (bytes.saturating_sub(rounding) / bytes_a_cell).max(1)..=bytes / bytes_a_cell
    }
}

/// The size of one head; 0 where the metadata does not say, which rotates nothing.
fn head_size(metadata: &GgufMetadata) -> u32 {
    let Some(GgufValue::Text(architecture)) = metadata.get("general.architecture") else { return 0 };
    let number = |name: &str| match metadata.get(&format!("{architecture}.{name}")) {
        Some(GgufValue::Integer(value)) => u32::try_from(*value).ok(),
        _ => None,
    };
    number("attention.key_length")
        .or_else(|| number("embedding_length")?.checked_div(number("attention.head_count")?))
        .unwrap_or(0)
}
