//! The shape of the cache where no header tells it: on the file route, and for a decoder that sends regions only.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use super::ProviderError;
use crate::header::{Header, Params};
use crate::layout::{Geometry, GgufMetadata, GgufValue, Layout, TensorType};
use crate::values::{key_rotation, value_rotation};

/// The decoder's cache as far as a provider has to be told: the file route carries no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCache {
    /// The type of K.
    pub type_k: TensorType,
    /// The type of V.
    pub type_v: TensorType,
    /// Whether V is stored by channel (without flash attention).
    pub v_trans: bool,
}

impl Default for FileCache {
    /// llama-server's defaults: f16, flash attention on.
    fn default() -> Self {
        Self { type_k: TensorType::F16, type_v: TensorType::F16, v_trans: false }
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
pub(super) fn own_header(path: &Path, cells: u64, cache: FileCache) -> Result<Header, ProviderError> {
    let metadata = read_metadata(path)?;
    let layout = layout(&metadata, path, cells, cache)?;
    Ok(Header::describe(&layout, None, Some(params(&metadata, cells, cache))))
}

/// Adds the tensors that the model at `path` has to a header that came without. If the header has no parameters
/// either, those are found by trying: the regions' sizes and hashes fit only the right ones. They do not tell whether V
/// is transposed; that is taken from `cache`.
pub(super) fn complete(header: &mut Header, path: &Path, cache: FileCache) -> Result<(), ProviderError> {
    let metadata = read_metadata(path)?;
    if let Some(params) = &header.params {
        let cache = FileCache { type_k: params.type_k, type_v: params.type_v, v_trans: params.v_trans };
        // llama.cpp shares the context out evenly among the streams (`llama_context`: `n_ctx_seq`).
        let streams = u64::from(params.n_stream.max(1));
        let geometry = geometry(&metadata, path, u64::from(params.n_ctx) / streams, cache)?;
        return Ok(header.complete(&Geometry { streams, ..geometry }.layout()?)?);
    }
    for type_k in TensorType::ALL {
        for type_v in TensorType::ALL {
            let cache = FileCache { type_k, type_v, v_trans: cache.v_trans };
            for cells in possible_cells(header, &metadata, path, cache)? {
                let fits = layout(&metadata, path, cells, cache).is_ok_and(|layout| header.complete(&layout).is_ok());
                if fits {
                    header.params = Some(params(&metadata, cells, cache));
                    return Ok(());
                }
            }
        }
    }
    Err(ProviderError::NoGeometry)
}

fn geometry(metadata: &GgufMetadata, path: &Path, cells: u64, cache: FileCache) -> Result<Geometry, ProviderError> {
    let geometry = metadata.geometry(cells, cache.type_k, cache.type_v);
    geometry.map_err(|source| ProviderError::Model { path: path.to_owned(), source })
}

fn layout(metadata: &GgufMetadata, path: &Path, cells: u64, cache: FileCache) -> Result<Layout, ProviderError> {
    Ok(geometry(metadata, path, cells, cache)?.layout()?)
}

/// The cell counts whose tensors take as many bytes as the header's regions have, give or take the rounding.
fn possible_cells(
    header: &Header,
    metadata: &GgufMetadata,
    path: &Path,
    cache: FileCache,
) -> Result<std::ops::RangeInclusive<u64>, ProviderError> {
    let layers = geometry(metadata, path, 1, cache)?.layers;
    let bytes_a_cell = layers.iter().try_fold(0_u64, |sum, layer| {
        let (k, v) = (cache.type_k.row_bytes(layer.k)?, cache.type_v.row_bytes(layer.v)?);
        sum.checked_add(k)?.checked_add(v)
    });
    let Some(bytes_a_cell @ 1..) = bytes_a_cell else {
        return Ok(1..=0);
    };
    let rounding = 2 * layers.len() as u64 * crate::layout::ALIGNMENT;
    let most = header.bytes() / bytes_a_cell;
    let least = header.bytes().saturating_sub(rounding) / bytes_a_cell;
    Ok(least.max(1)..=most)
}

fn params(metadata: &GgufMetadata, cells: u64, cache: FileCache) -> Params {
    let FileCache { type_k, type_v, v_trans } = cache;
    let head_size = head_size(metadata);
    Params {
        n_ctx: u32::try_from(cells).unwrap_or(u32::MAX),
        flash_attn: !v_trans,
        type_k,
        type_v,
        v_trans,
        n_rot_k: key_rotation(type_k, head_size),
        n_rot_v: value_rotation(type_v, head_size),
        ..Params::plain(0, type_k)
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
