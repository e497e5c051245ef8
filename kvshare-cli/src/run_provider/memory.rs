//! The memory that the provider is to fill: made here or given, and prepared so that everything it writes shows.

use std::path::Path;

use kvshare::fd::{self, take_inherited};
use kvshare::handoff::ReceivedShare;
use kvshare::header::{Header, ModelIdentity, Params};
use kvshare::layout::Plane;
use kvshare::map::{Access, MapOptions};
use kvshare::memory::Memfd;
use kvshare::provider::{ProviderError, read_metadata};
use kvshare::rows::{MappedCache, RowsMut, allocate};
use kvshare::values::{key_rotation, value_rotation};

use super::RunProviderArguments;
use crate::header_file;
use crate::inspect::{TakeError, read_header};
use crate::output::Failure;

/// Elements that are emptied at once, about.
const PIECE: u64 = 1 << 18;

/// The share for a prompt of `tokens` tokens, its padding filled with the pattern and its rows empty.
pub(super) fn prepare(arguments: &RunProviderArguments, model: &Path, tokens: u64) -> Result<ReceivedShare, Failure> {
    let (header, header_bytes) = match &arguments.layout {
        // The provider gets the bytes as they came.
        Some(path) => {
            (read_header(path, Some(model)).map_err(Failure::new)?.0, header_file::read(path).map_err(Failure::new)?)
        }
        None => {
            let header = suited(arguments, model, tokens)?;
            let bytes = header.to_json();
            (header, bytes)
        }
    };
    let is_given = !arguments.fds.is_empty();
    let descriptors = match is_given {
        true => take_inherited(&arguments.fds).map_err(TakeError::from).map_err(Failure::new)?,
        false => allocate(&header, &Memfd::new(), "kvshare-cache").map_err(Failure::new)?,
    };
    header.check_descriptors(&fd::sizes(&descriptors).map_err(Failure::new)?).map_err(Failure::new)?;
    let share = ReceivedShare { header: header.into(), header_bytes, descriptors };

    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    let mut cache = MappedCache::map(&share.header, &share.descriptors, &options).map_err(Failure::new)?;
    if tokens > cache.cells() {
        let cells = cache.cells();
        return Err(Failure::new(format!("the prompt has {tokens} tokens, but the cache only {cells} cells")));
    }
    let access = cache.begin_cpu_access(Access::ReadWrite).map_err(Failure::new)?;
    cache.fill_padding().map_err(Failure::new)?;
    if is_given {
        empty(&mut cache, tokens)?;
    }
    access.end().map_err(Failure::new)?;
    Ok(share)
}

/// A header for the model's cache. The number of cells is odd, so that a stride from elsewhere shows, and that there is
/// padding behind the tensors.
fn suited(arguments: &RunProviderArguments, path: &Path, tokens: u64) -> Result<Header, Failure> {
    let RunProviderArguments { type_k, type_v, v_trans, ctx_size, .. } = *arguments;
    let in_file = |source| Failure::new(ProviderError::Model { path: path.to_owned(), source });
    let cells =
        ctx_size.unwrap_or_else(|| u32::try_from(tokens | 63).map_or(u32::MAX, |cells| cells.saturating_add(2)));
    let metadata = read_metadata(path).map_err(Failure::new)?;
    let layout = metadata.geometry(cells.into(), type_k, type_v).map_err(in_file)?.layout().map_err(Failure::new)?;
    let heads = metadata.head_sizes().map_err(in_file)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let params = Params {
        flash_attn: !v_trans,
        type_v,
        v_trans,
        n_rot_k: key_rotation(type_k, heads.k),
        n_rot_v: value_rotation(type_v, heads.v),
        ..Params::plain(cells, type_k)
    };
    Ok(Header::describe(&layout, Some(ModelIdentity { name, sha256: None }), Some(params)))
}

/// Empties the rows of the prompt: what an earlier run left must not pass for this one's.
fn empty(cache: &mut MappedCache, count: u64) -> Result<(), Failure> {
    for planes in cache.layers().to_vec() {
        let layer = planes.layer;
        cache.k_mut(layer).and_then(|rows| empty_plane(rows, &planes.k, count)).map_err(Failure::new)?;
        cache.v_mut(layer).and_then(|rows| empty_plane(rows, &planes.v, count)).map_err(Failure::new)?;
    }
    Ok(())
}

fn empty_plane(mut rows: RowsMut<'_>, plane: &Plane, count: u64) -> Result<(), kvshare::rows::RowsError> {
    let at_once = (PIECE / plane.width).max(1);
    for first in (0..count).step_by(at_once as usize) {
        let zeros = vec![0; (at_once.min(count - first) * plane.row_bytes()) as usize];
        rows.write_bytes(first, &zeros)?;
    }
    Ok(())
}
