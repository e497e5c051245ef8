//! A small Llama on the CPU: it reads a GGUF, evaluates tokens and keeps K and V where it is told to.
//!
//! It is the brain of the fake exporter (which decodes with it) and of the reference provider (which prefills with it).
//! Its cache is a [`KeyValueCache`], which may lie in memory shared with another process: K and V are written there as
//! they are computed, and attention reads them back from there.
//!
//! It is correct first. Weights are turned into f32 once, and all arithmetic is f32. It knows the architectures `llama`
//! and `qwen3` with a byte-level BPE vocabulary, and refuses everything else by name rather than answering wrongly.
#![forbid(unsafe_code)]

mod attention;
mod cache;
mod chat;
mod config;
mod forward;
mod generate;
mod gguf;
mod gguf_check;
mod tokenizer;
mod weights;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use cache::{KeyValueCache, MemoryCache, OutsideCache, Precision};
pub use chat::{ChatError, ChatTemplate, Content, Message, Part};
pub use config::{Architecture, Config, ConfigError};
pub use forward::{EvaluateError, Progress};
pub use generate::{log_probability, most_likely};
pub use gguf::GgufError;
pub use gguf_check::MalformedGguf;
pub use tokenizer::{Tokenizer, TokenizerError};

use gguf::Gguf;
use weights::Weights;

/// The GGUF of kvshare-tiny, a model of 3 million parameters that tells stories and answers questions about them. Made
/// for this project: see `model/MODEL_CARD.md`.
pub static EMBEDDED_GGUF: &[u8] = include_bytes!("../../model/kvshare-tiny.gguf");

/// Why a model could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be opened.
    #[error("the model {} could not be opened: {source}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The path leads to something else than a file.
    #[error("the model {} is not a file; give the path of a GGUF", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The GGUF is damaged, or lacks something.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model is not one of those supported.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The vocabulary is not one of those supported.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template is not valid.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

/// A language model: weights, vocabulary and chat template.
pub struct Model {
    config: Config,
    weights: Weights,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
}

impl fmt::Debug for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Model").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Model {
    /// Opens a GGUF.
    ///
    /// # Errors
    ///
    /// [`ModelError`] says what is wrong with the file, or what this implementation does not support.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let open_error = |source| ModelError::Open { path: path.to_owned(), source };
        // Opening a named pipe would wait for a writer, so look before opening.
        if !fs::metadata(path).map_err(open_error)?.is_file() {
            return Err(ModelError::NotAFile { path: path.to_owned() });
        }
        Self::read(BufReader::new(File::open(path).map_err(open_error)?))
    }

    /// The model that comes with this crate: [`EMBEDDED_GGUF`].
    ///
    /// # Errors
    ///
    /// None is expected; the signature is that of the other ways to get a model.
    pub fn embedded() -> Result<Self, ModelError> {
        Self::read(Cursor::new(EMBEDDED_GGUF))
    }

    /// Reads a GGUF from its first byte.
    ///
    /// # Errors
    ///
    /// [`ModelError`] says what is wrong with the bytes, or what this implementation does not support.
    pub fn read(reader: impl Read + Seek) -> Result<Self, ModelError> {
        let mut gguf = Gguf::read(reader)?;
        let config = Config::read(&gguf)?;
        let tokenizer = Tokenizer::read(&gguf, config.n_vocab)?;
        let text_of = |token: Option<u32>| token.and_then(|token| tokenizer.name(token)).unwrap_or_default().to_owned();
        let chat_template = match gguf.text("tokenizer.chat_template")? {
            None => None,
            Some(source) => {
                Some(ChatTemplate::new(source.to_owned(), text_of(tokenizer.bos()), text_of(tokenizer.eos()))?)
            }
        };
        let weights = Weights::read(&mut gguf, &config)?;
        Ok(Self { config, weights, tokenizer, chat_template })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// By how much RoPE turns each pair of a head's channels from one position to the next, in radians.
    pub fn rope_steps(&self) -> &[f64] {
        &self.weights.rope_steps
    }

    /// The model's vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model's chat template.
    ///
    /// # Errors
    ///
    /// [`ChatError::NoTemplate`] if the GGUF brings none.
    pub fn chat_template(&self) -> Result<&ChatTemplate, ChatError> {
        self.chat_template.as_ref().ok_or(ChatError::NoTemplate)
    }
}
