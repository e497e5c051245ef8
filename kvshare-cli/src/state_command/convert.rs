//! `state convert`: the same rows in another type, or lying another way.

use std::path::Path;

use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, LayerWidths};
use kvshare::rows::{MappedCache, Rows, RowsError, RowsMut};
use kvshare::state_file::{CacheSource, CopyError, Half, StateFile, Stream};
use serde_json::json;

use super::arguments::ConvertArguments;
use super::loaded::{Loaded, OneStream, memory};
use crate::output::{Failure, print};

/// Elements that are moved at once.
const PIECE: u64 = 1 << 18;

pub(super) fn run(arguments: &ConvertArguments) -> Result<(), Failure> {
    let loaded = Loaded::read(&arguments.from, arguments.form.m_rope).map_err(Failure::new)?;
    let header = converted_header(&loaded, arguments)?;
    let (_descriptors, mut cache) = memory(&header).map_err(Failure::new)?;
    copy_rows(&loaded.cache.0, &mut cache.0, loaded.cells()).map_err(Failure::new)?;
    let file = StateFile { streams: reshaped(&loaded.file.streams, &cache), ..loaded.file };
    let length = publish(&file, &cache, &arguments.to)?;
    if arguments.json {
        return print(&json!({"file": arguments.to.display().to_string(), "bytes": length}).to_string());
    }
    print(&format!("{}: {length} bytes", arguments.to.display()))
}

/// Why rows cannot be copied from one cache to another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyRowsError {
    /// The caches have other layers.
    #[error("the one side has {ours} layers with a cache, the other {theirs}: they are not of the same model")]
    Layers {
        /// Of the source.
        ours: usize,
        /// Of the target.
        theirs: usize,
    },
    /// A layer's rows have another width.
    #[error(
        "{half} rows of layer {layer} have {ours} elements on the one side, {theirs} on the other: they are not of the same model"
    )]
    Width {
        /// The layer's place, from 0.
        layer: usize,
        /// K or V.
        half: Half,
        /// In the source.
        ours: u64,
        /// In the target.
        theirs: u64,
    },
    /// The target is too short.
    #[error("there are {cells} rows to copy, but only {room} cells to take them")]
    Room {
        /// The rows.
        cells: u64,
        /// The target's cells.
        room: u64,
    },
    /// A row that cannot be read or written.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

/// Copies the first `cells` rows of every layer, converted where the types, the rotation or the order differ, bit by bit
/// where they do not.
///
/// # Errors
/// Caches of different models, or rows that one of them does not have. Nothing is copied in the first case.
pub fn copy_rows(source: &MappedCache, target: &mut MappedCache, cells: u64) -> Result<(), CopyRowsError> {
    let (ours, theirs) = (source.layers().to_vec(), target.layers().to_vec());
    if ours.len() != theirs.len() {
        return Err(CopyRowsError::Layers { ours: ours.len(), theirs: theirs.len() });
    }
    for (layer, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        for (half, ours, theirs) in [(Half::K, ours.k.width, theirs.k.width), (Half::V, ours.v.width, theirs.v.width)] {
            if ours != theirs {
                return Err(CopyRowsError::Width { layer, half, ours, theirs });
            }
        }
    }
    if cells > target.cells() {
        return Err(CopyRowsError::Room { cells, room: target.cells() });
    }
    let (from, to) = (source.rotations(), target.rotations());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let (keys, values) = (source.k(ours.layer)?, source.v(ours.layer)?);
        copy_plane(keys, target.k_mut(theirs.layer)?, from.0 == to.0, cells)?;
        copy_plane(values, target.v_mut(theirs.layer)?, from.1 == to.1, cells)?;
    }
    Ok(())
}

fn copy_plane(from: Rows<'_>, mut to: RowsMut<'_>, same_rotation: bool, cells: u64) -> Result<(), RowsError> {
    let plane = *from.plane();
    let is_exact = same_rotation && plane.tensor_type == to.plane().tensor_type;
    let at_once = (PIECE / plane.width).max(1);
    for first in (0..cells).step_by(at_once as usize) {
        let count = at_once.min(cells - first);
        if is_exact {
            let mut bytes = vec![0; (count * plane.row_bytes()) as usize];
            from.read_bytes(first, &mut bytes)?;
            to.write_bytes(first, &bytes)?;
        } else {
            let mut values = vec![0.0; (count * plane.width) as usize];
            from.read_f32(first, &mut values)?;
            to.write_f32(first, &values)?;
        }
    }
    Ok(())
}

/// The header of a cache for the same rows as the arguments want them.
fn converted_header(loaded: &Loaded, arguments: &ConvertArguments) -> Result<Header, Failure> {
    // A loaded file's header has parameters.
    let Some(params) = &loaded.header.params else { return Ok(loaded.header.clone()) };
    let v_trans = arguments.v_trans.map_or(params.v_trans, |v_trans| v_trans == 1);
    let params = match arguments.tensor_type {
        None => Params { v_trans, flash_attn: !v_trans, ..params.clone() },
        Some(tensor_type) => Params { v_trans, flash_attn: !v_trans, ..Params::plain(params.n_ctx, tensor_type) },
    };
    let layers = loaded.cache.0.layers().iter();
    let layers = layers.map(|layer| LayerWidths { layer: layer.layer, k: layer.k.width, v: layer.v.width });
    let uniform = Geometry::uniform(0, 0, 0, loaded.cells(), params.type_k);
    let geometry = Geometry { layers: layers.collect(), type_v: params.type_v, ..uniform };
    Ok(Header::describe(&geometry.layout().map_err(Failure::new)?, None, Some(params)))
}

/// The same streams with rows as `cache` has them.
fn reshaped(streams: &[Option<Stream>], cache: &OneStream) -> Vec<Option<Stream>> {
    let reshape = |stream: &Stream| Stream { cells: stream.cells.clone(), shape: cache.shape() };
    streams.iter().map(|stream| stream.as_ref().map(reshape)).collect()
}

/// Writes a file in place of what is at `path`, whole or not at all, and returns its length.
pub(super) fn publish<S>(file: &StateFile, cache: &S, path: &Path) -> Result<u64, Failure>
where
    S: CacheSource,
    CopyError<S::Error>: std::fmt::Display,
{
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::new(format!("{} is no file name", path.display())))?;
    file.publish(cache, directory, name).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
