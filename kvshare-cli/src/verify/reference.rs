//! What the found rows are compared with: other regions, a state file, or a model's own prefill.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::path::Path;

use fake_exporter::cache_rows::CacheRows;
use fake_exporter::model::{Model, most_likely};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, LayerWidths};
use kvshare::map::{Access, MapOptions};
use kvshare::memory::Memfd;
use kvshare::rows::{MappedCache, allocate};
use kvshare::state_file::{Expected, MAGIC};

use super::VerifyError;
use super::side::Side;
use crate::inspect::reader::survey;
use crate::state_command::Loaded;

/// What the found rows are compared with.
#[derive(Debug)]
pub struct Reference {
    /// The rows.
    pub side: Side,
    /// How many of them: those of positions 0 and up.
    pub positions: u64,
    /// What it is, for people.
    pub what: String,
    /// The likeliest next token, where that is known.
    pub argmax: Option<u32>,
}

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A model.
    Gguf,
    /// A sequence state.
    StateFile,
}

impl FileKind {
    /// Looks into the file at `path`.
    ///
    /// # Errors
    /// A file that cannot be read, or that is neither.
    pub fn of(path: &Path) -> Result<Self, VerifyError> {
        let failed = |source| VerifyError::Read { path: path.to_owned(), source };
        // Opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(std::io::Error::other("it is no file")));
        }
        let mut start = Vec::new();
        File::open(path).and_then(|file| file.take(4).read_to_end(&mut start)).map_err(failed)?;
        match &start[..] {
            b"GGUF" => Ok(Self::Gguf),
            start if start == MAGIC.to_le_bytes() => Ok(Self::StateFile),
            _ => Err(VerifyError::UnknownFile { path: path.to_owned(), start }),
        }
    }
}

impl Reference {
    /// A stream of other regions: as many rows as there are tokens, or else as were written.
    ///
    /// # Errors
    /// Tensors that make no cache, a stream that is not there, or nothing written in it.
    pub fn of_regions(
        header: &Header,
        descriptors: &[impl AsFd],
        stream: u64,
        tokens: Option<&[i32]>,
    ) -> Result<Self, VerifyError> {
        let side = Side::open(header, descriptors, stream)?;
        let positions = match tokens {
            Some(tokens) => tokens.len() as u64,
            None => written(&side)?,
        };
        if positions > side.cells() {
            return Err(VerifyError::Cells { positions, cells: side.cells() });
        }
        Ok(Self { side, positions, what: "other regions".to_owned(), argmax: None })
    }

    /// A state file, which must be of these tokens if any are given.
    ///
    /// # Errors
    /// A file that cannot be read, restores to something else than a prompt, or to another one.
    pub fn of_state_file(path: &Path, tokens: Option<&[i32]>) -> Result<Self, VerifyError> {
        let loaded = Loaded::read_either(path)?;
        let in_file = |source| VerifyError::StateFile { path: path.to_owned(), source };
        loaded.file.validate(&Expected { tokens, ..Expected::default() }).map_err(in_file)?;
        let side = Side::open(&loaded.header, &loaded.descriptors, 0)?;
        Ok(Self { side, positions: loaded.cells(), what: format!("the state file {}", path.display()), argmax: None })
    }

    /// The prefill of `tokens` by `model`, kept in a cache of the types and the rotation of `header`'s.
    ///
    /// # Errors
    /// A model that has other layers than the header, or cannot evaluate the tokens; memory that cannot be had.
    pub fn of_model(model: &Model, name: &str, header: &Header, tokens: &[i32]) -> Result<Self, VerifyError> {
        let own = header_for(header, tokens.len() as u64)?;
        let descriptors = allocate(&own, &Memfd::new(), "kvshare-verify")?;
        let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
        let mut cache = MappedCache::map(&own, &descriptors, &options)?;
        let tokens: Vec<u32> = tokens.iter().map(|token| token.cast_unsigned()).collect();
        let logits = model.evaluate(&tokens, 0, &mut CacheRows::new(&mut cache))?;
        let side = Side::open(&own, &descriptors, 0)?;
        let what = format!("the prefill of {name}");
        Ok(Self { side, positions: tokens.len() as u64, what, argmax: Some(most_likely(&logits)) })
    }
}

/// A header for `cells` rows as those of `header`, all by position and in one stream.
fn header_for(header: &Header, cells: u64) -> Result<Header, VerifyError> {
    let planes = header.planes()?;
    let first = planes.layers().first().ok_or(VerifyError::NoLayers)?;
    let layers = planes.layers().iter();
    let layers = layers.map(|layer| LayerWidths { layer: layer.layer, k: layer.k.width, v: layer.v.width }).collect();
    let (type_k, type_v) = (first.k.tensor_type, first.v.tensor_type);
    let geometry = Geometry { layers, type_v, ..Geometry::uniform(0, 0, 0, cells, type_k) };
    let params = header.params.as_ref().map(|params| Params { v_trans: false, n_stream: 1, ..params.clone() });
    Ok(Header::describe(&geometry.layout()?, None, params))
}

/// How many rows were written, up to the last one of any layer.
fn written(side: &Side) -> Result<u64, VerifyError> {
    let mut end = 0;
    for survey in survey(side.reader()) {
        let streams = survey.streams?;
        let first = streams.iter().find(|rows| rows.stream == side.stream());
        end = first.and_then(|rows| rows.rows.last()).map_or(end, |row| end.max(row.position + 1));
    }
    if end == 0 { Err(VerifyError::NothingExpected) } else { Ok(end) }
}
