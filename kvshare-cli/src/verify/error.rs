//! Why caches could not be compared.

use std::path::PathBuf;

use fake_exporter::model::{EvaluateError, ModelError, TokenizerError};
use kvshare::fd::FdError;
use kvshare::header::HeaderError;
use kvshare::layout::LayoutError;
use kvshare::map::MapError;
use kvshare::provider::ProviderError;
use kvshare::rows::RowsError;
use kvshare::state_file::{Half, StateFileError};

use crate::inspect::reader::ReadError;
use crate::inspect::{LayoutProblem, TakeError};
use crate::state_command::LoadError;

/// Why caches could not be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A descriptor could not be taken.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// A descriptor does not tell its size.
    #[error(transparent)]
    Descriptor(#[from] FdError),
    /// The header cannot be used.
    #[error(transparent)]
    Layout(#[from] LayoutProblem),
    /// The header and the descriptors do not belong together.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The tensors make no cache.
    #[error(transparent)]
    Tensors(#[from] LayoutError),
    /// The header is of another model, or the tokens cannot be read.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The cache has nothing to compare.
    #[error("the header has no attention layer, so there is no row to compare")]
    NoLayers,
    /// The cache has fewer streams.
    #[error("there is no stream {stream}; the cache's streams are 0 to {}", streams.saturating_sub(1))]
    NoStream {
        /// The stream asked for.
        stream: u64,
        /// How many there are.
        streams: u64,
    },
    /// The two caches have another number of layers.
    #[error(
        "the regions have {found} layers with a cache, what they are compared with has {expected}: they are not of one model"
    )]
    Layers {
        /// In the regions.
        found: usize,
        /// In the other.
        expected: usize,
    },
    /// A layer's rows have another width.
    #[error(
        "{half} rows of layer {layer} have {found} elements in the regions, and {expected} in what they are compared with: \
         they are not of one model"
    )]
    Width {
        /// The layer.
        layer: u32,
        /// K or V.
        half: Half,
        /// In the regions.
        found: u64,
        /// In the other.
        expected: u64,
    },
    /// More rows are expected than the regions can hold.
    #[error("{positions} positions are to be compared, but the regions have only {cells} cells")]
    Cells {
        /// How many rows are expected.
        positions: u64,
        /// How many there can be.
        cells: u64,
    },
    /// The other regions are empty.
    #[error("nothing was written in the regions to compare with; fill them first, or name the tokens")]
    NothingExpected,
    /// A file that is neither of the two.
    #[error("{} is neither a GGUF nor a state file: it starts with {start:02x?}", path.display())]
    UnknownFile {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A model without a prompt.
    #[error("a model needs a prompt to be compared with; give --tokens FILE, --token-ids ID,ID or --prompt TEXT")]
    NoPrompt,
    /// A prompt of nothing.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// A text without a vocabulary.
    #[error("--prompt needs a model to make tokens of the text; give -m FILE, or --tokens FILE")]
    NoVocabulary,
    /// The model cannot be opened.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Its prefill.
    #[error("the model's own prefill failed: {0}")]
    Evaluate(#[from] EvaluateError<RowsError>),
    /// Memory for that.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// Memory for that, within a CPU access.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The state file.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The state file is of another prompt, or restores to something else.
    #[error("{}: {source}", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: StateFileError,
    },
    /// Memory that cannot be read.
    #[error(transparent)]
    Memory(#[from] ReadError),
}
