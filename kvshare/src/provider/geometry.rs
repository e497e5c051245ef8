//! The shape of the cache where no header tells it: on the file route, and for a decoder that sends regions only.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use super::ProviderError;
use crate::header::{Header, Params};
use crate::layout::{ALIGNMENT, Geometry, GgufMetadata, HeadSizes, LayerWidths, TensorType};
use crate::values::{key_rotation, value_rotation};

/// Tensors that are placed, at most, to find the parameters of a header that has none. Real models have some hundred
/// tensors and few candidates; this bounds what a strange model can cost to about a second.
const MOST_PLACED: usize = 1 << 20;

/// What is assumed of the decoder's cache where no header says it: on the file route, and of a decoder that sends regions
/// without parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedCache {
    /// The type of K.
    pub type_k: TensorType,
    /// The type of V.
    pub type_v: TensorType,
    /// Whether V is stored by channel (without flash attention).
    pub v_trans: bool,
    /// The model's layers, for a model file that is no GGUF; else the model file tells them.
    pub layers: Option<AssumedLayers>,
}

/// A model's layers, told by whoever knows the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedLayers {
    /// Every layer that has a cache, in the order of the model.
    pub widths: Vec<LayerWidths>,
    /// The sizes of one head. A quantized cache is rotated by them, so without them it is refused.
    pub head_sizes: Option<HeadSizes>,
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
    Ok(Header::describe(&layout, None, Some(model.params(cells, types, cache.v_trans)?)))
}

/// Makes sure that a header describes the cache of the model at `path`: completes one that came without tensors, and
/// compares the tensors of another, unless the model's cache is not known (it is no GGUF, or has more than a plain K/V
/// cache).
///
/// # Errors
/// A header of another model or another cache, or a model file that cannot be read.
pub fn match_model(header: &mut Header, path: &Path, cache: &AssumedCache) -> Result<(), ProviderError> {
    if header.tensors.is_empty() {
        complete(header, path, cache)?;
        // Its parameters had nothing to be checked against before.
        header.check()?;
    } else if cache.layers.is_none() {
        compare(header, path)?;
    }
    Ok(())
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
    let mut placed = 0;
    for types in TensorType::ALL.into_iter().flat_map(|k| TensorType::ALL.map(|v| Types { k, v })) {
        for cells in model.cells_that_take(header.bytes(), types) {
            placed += 2 * model.layers.len();
            if placed > MOST_PLACED {
                return Err(ProviderError::NoGeometry);
            }
            if model.geometry(cells, types).layout().is_ok_and(|layout| header.complete(&layout).is_ok()) {
                header.params = Some(model.params(cells, types, cache.v_trans)?);
                return Ok(());
            }
        }
    }
    Err(ProviderError::NoGeometry)
}

/// Compares the tensors of a header that has them with those of the model at `path`. A model whose cache is not known is
/// not compared: one that is no GGUF or has more than a plain K/V cache.
pub(super) fn compare(header: &Header, path: &Path) -> Result<(), ProviderError> {
    let planes = header.planes()?;
    let (Ok(metadata), Some(first)) = (read_metadata(path), planes.layers().first()) else { return Ok(()) };
    match metadata.geometry(planes.cells(), first.k.tensor_type, first.v.tensor_type) {
        Ok(geometry) => Ok(header.compare(&Geometry { streams: planes.streams(), ..geometry })?),
        Err(_) => Ok(()),
    }
}

/// The types of K and V.
#[derive(Clone, Copy)]
struct Types {
    k: TensorType,
    v: TensorType,
}

/// What a model says of its cache.
struct ModelShape {
    layers: Vec<LayerWidths>,
    head_sizes: Option<HeadSizes>,
}

impl ModelShape {
    fn of(path: &Path, cache: &AssumedCache) -> Result<Self, ProviderError> {
        if let Some(AssumedLayers { widths, head_sizes }) = &cache.layers {
            return Ok(Self { layers: widths.clone(), head_sizes: *head_sizes });
        }
        let in_file = |source| ProviderError::Model { path: path.to_owned(), source };
        let metadata = read_metadata(path)?;
        let geometry = metadata.geometry(1, cache.type_k, cache.type_v).map_err(in_file)?;
        Ok(Self { layers: geometry.layers, head_sizes: Some(metadata.head_sizes().map_err(in_file)?) })
    }

    fn geometry(&self, cells: u64, types: Types) -> Geometry {
        Geometry { layers: self.layers.clone(), type_v: types.v, ..Geometry::uniform(0, 0, 0, cells, types.k) }
    }

    fn params(&self, cells: u64, types: Types, v_trans: bool) -> Result<Params, ProviderError> {
        let (n_rot_k, n_rot_v) = match self.head_sizes {
            Some(sizes) => (key_rotation(types.k, sizes.k), value_rotation(types.v, sizes.v)),
            None => {
                if let Some(tensor_type) = [types.k, types.v].into_iter().find(|kind| kind.is_quantized()) {
                    return Err(ProviderError::RotationUnknown { tensor_type });
                }
                (0, 0)
            }
        };
        Ok(Params {
            flash_attn: !v_trans,
            type_v: types.v,
            v_trans,
            n_rot_k,
            n_rot_v,
            ..Params::plain(u32::try_from(cells).unwrap_or(u32::MAX), types.k)
        })
    }

    /// The cell counts whose tensors take exactly `bytes`: few, since a cell more or less often changes the sum.
    fn cells_that_take(&self, bytes: u64, types: Types) -> impl Iterator<Item = u64> {
        let rows: Option<Vec<u64>> =
            self.layers.iter().flat_map(|layer| [types.k.row_bytes(layer.k), types.v.row_bytes(layer.v)]).collect();
        let rows = rows.unwrap_or_default();
        let bytes_a_cell = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(*row));
        let most = bytes.checked_div(bytes_a_cell).unwrap_or(0);
        // With at most so many cells no product overflows; the rounding could, for regions that no machine has.
        let rounded = |bytes: u64| bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let taken = move |cells: u64| rows.iter().fold(0_u64, |sum, row| sum.saturating_add(rounded(row * cells)));
        // The sum grows with the cells, so that the first of them is found by halving.
        let (mut below, mut first) = (0, most + 1);
        while first - below > 1 {
            let middle = below + (first - below) / 2;
            if taken(middle) < bytes { below = middle } else { first = middle }
        }
        (first..=most).take_while(move |cells| taken(*cells) == bytes)
    }
}
