//! A state file in memory, as a cache like any other.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, LayerWidths, LayoutError};
use kvshare::map::{Access, MapOptions};
use kvshare::memory::Memfd;
use kvshare::rows::{MappedCache, RowsError, allocate};
use kvshare::state_file::{
    CacheSink, CacheSource, CopyError, ReadOptions, Run, StateFile, StateFileError, StateShape, Stream,
};
use rustix::fs::{Mode, OFlags};

/// Why a state file cannot be read into memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// It is a directory, a pipe or the like.
    #[error("{} is no file", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// It is no good state file.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: StateFileError,
    },
    /// A file of a model with several positions a token, read as one without.
    #[error("{}: its cells have several positions a token (M-RoPE); give --m-rope", path.display())]
    MRope {
        /// The file.
        path: PathBuf,
    },
    /// Layers of several types, which no server has.
    #[error("{}: its layers have rows of more than one type of K or V; only state check takes such a file", path.display())]
    MixedTypes {
        /// The file.
        path: PathBuf,
    },
    /// Rows that make no tensor.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory for the rows.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The rows could not be read into it.
    #[error(transparent)]
    Copy(#[from] CopyError<RowsError>),
}

/// A state file in memory.
#[derive(Debug)]
pub struct Loaded {
    /// What the file says, but for the rows.
    pub file: StateFile,
    /// Its rows: cell i of the file's one occupied stream is position i here.
    pub cache: OneStream,
    /// Where the rows lie in `descriptors`.
    pub header: Header,
    /// The memory of the rows.
    pub descriptors: Vec<OwnedFd>,
}

impl Loaded {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`LoadError`]. A file that restores to something wrong is no error here: only its form is checked, and that one
    /// stream has cells.
    pub fn read(path: &Path, m_rope: bool) -> Result<Self, LoadError> {
        let file = open(path)?;
        let in_file = |source| LoadError::File { path: path.to_owned(), source };
        let state = walk(path, &file, m_rope)?;
        let stream = state.only_stream().map_err(in_file)?;
        let header = header(stream).ok_or_else(|| LoadError::MixedTypes { path: path.to_owned() })??;
        let (descriptors, mut cache) = memory(&header)?;
        state.scatter(BufReader::new(&file), &mut cache)?;
        Ok(Self { file: state, cache, header, descriptors })
    }

    /// [`read`](Self::read), whether or not the file's model has several positions a token.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_either(path: &Path) -> Result<Self, LoadError> {
        match Self::read(path, false) {
            Err(LoadError::MRope { .. }) => Self::read(path, true),
            outcome => outcome,
        }
    }

    /// How many cells it has.
    pub fn cells(&self) -> u64 {
        self.cache.0.cells()
    }
}

/// Opens what must be a file, without waiting for anybody: a pipe without a writer is refused, not waited for.
pub(super) fn open(path: &Path) -> Result<File, LoadError> {
    let failed = |source| LoadError::Open { path: path.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
    let is_file = file.metadata().map_err(failed)?.is_file();
    if is_file { Ok(file) } else { Err(LoadError::NoFile { path: path.to_owned() }) }
}

/// Everything but the rows of the file at `path`, opened as `file`.
pub(super) fn walk(path: &Path, file: &File, m_rope: bool) -> Result<StateFile, LoadError> {
    let walk = |m_rope| StateFile::walk(BufReader::new(file), ReadOptions { m_rope });
    walk(m_rope).map_err(|source| match is_m_rope(file, m_rope) {
        true => LoadError::MRope { path: path.to_owned() },
        false => LoadError::File { path: path.to_owned(), source },
    })
}

/// Whether a file that cannot be read without M-RoPE can with it. The cells differ in length, and a file must end where
/// it says: one that reads both ways is not to be had by chance.
pub(super) fn is_m_rope(file: &File, m_rope: bool) -> bool {
    !m_rope && StateFile::walk(BufReader::new(file), ReadOptions { m_rope: true }).is_ok()
}

/// Memory for the regions of `header`, mapped for writing.
pub(super) fn memory(header: &Header) -> Result<(Vec<OwnedFd>, OneStream), RowsError> {
    let descriptors = allocate(header, &Memfd::new(), "state-file")?;
    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    let cache = MappedCache::map(header, &descriptors, &options)?;
    Ok((descriptors, OneStream(cache)))
}

/// The header of a cache that holds the rows of `stream` and no more; `None` where no cache has rows so mixed.
fn header(stream: &Stream) -> Option<Result<Header, LayoutError>> {
    let shape = &stream.shape;
    let first = shape.layers.first()?;
    let (type_k, type_v) = (first.k.tensor_type, first.v.tensor_type);
    let is_even = shape.layers.iter().all(|layer| (layer.k.tensor_type, layer.v.tensor_type) == (type_k, type_v));
    let cells = stream.cells.len() as u64;
    is_even.then(|| {
        let layers = (0..).zip(&shape.layers);
        let layers =
            layers.map(|(layer, widths)| LayerWidths { layer, k: widths.k.width.into(), v: widths.v.width.into() });
        let geometry = Geometry { layers: layers.collect(), type_v, ..Geometry::uniform(0, 0, 0, cells, type_k) };
        let params = Params {
            type_v,
            flash_attn: !shape.v_trans,
            v_trans: shape.v_trans,
            n_rot_k: shape.n_rot_k,
            n_rot_v: shape.n_rot_v,
            ..Params::plain(u32::try_from(cells).unwrap_or(u32::MAX), type_k)
        };
        Ok(Header::describe(&geometry.layout()?, None, Some(params)))
    })
}

/// A cache of one stream, which stands for the only occupied one of a state file, whatever its number.
#[derive(Debug)]
pub struct OneStream(pub MappedCache);

impl OneStream {
    fn run(run: &Run) -> Run {
        Run { stream: 0, ..run.clone() }
    }
}

impl CacheSource for OneStream {
    type Error = RowsError;

    fn shape(&self) -> StateShape {
        self.0.state_shape()
    }

    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), RowsError> {
        self.0.read_rows(&Self::run(run), rows)
    }

    fn read_channel(&self, run: &Run, channel: u32, elements: &mut [u8]) -> Result<(), RowsError> {
        self.0.read_channel(&Self::run(run), channel, elements)
    }
}

impl CacheSink for OneStream {
    type Error = RowsError;

    fn shape(&self) -> StateShape {
        self.0.state_shape()
    }

    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), RowsError> {
        self.0.write_rows(&Self::run(run), rows)
    }

    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), RowsError> {
        self.0.write_channel(&Self::run(run), channel, elements)
    }
}
