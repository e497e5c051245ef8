//! An opened GGUF: its metadata by key and its weights by name, as f32.

use std::collections::HashSet;
use std::io::{Read, Seek};

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{Device, Tensor};
use thiserror::Error;

use super::gguf_check::{self, MalformedGguf};

/// Why something could not be taken from a GGUF.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The bytes are no GGUF, or a damaged one.
    #[error(transparent)]
    Malformed(#[from] MalformedGguf),
    /// candle refused the GGUF for a reason of its own.
    #[error("the GGUF could not be read: {0}")]
    Reader(#[from] candle_core::Error),
    /// A metadata entry that is needed is absent.
    #[error("the GGUF has no \"{key}\"; convert the model again with a current llama.cpp")]
    MissingKey {
        /// The entry's key.
        key: String,
    },
    /// A metadata entry has another type than it must have.
    #[error("the GGUF's \"{key}\" should be {expected}; convert the model again with a current llama.cpp")]
    WrongType {
        /// The entry's key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A tensor that the architecture needs is absent.
    #[error("the GGUF has no tensor \"{tensor}\"; it may hold another architecture's model, or only a part of one")]
    MissingTensor {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor does not have the shape that the metadata calls for.
    #[error(
        "the tensor \"{tensor}\" has the shape {found:?}, and the metadata calls for {expected:?}; convert the model again"
    )]
    TensorShape {
        /// The tensor's name.
        tensor: String,
        /// Rows and columns by the metadata, outermost first.
        expected: Vec<usize>,
        /// The tensor's own, outermost first.
        found: Vec<usize>,
    },
    /// A tensor was not used. To ignore it would give a model that answers wrongly.
    #[error(
        "the GGUF has a tensor \"{tensor}\" that this implementation does not know; its results would be wrong, so use another model"
    )]
    UnknownTensor {
        /// The tensor's name.
        tensor: String,
    },
}

/// A GGUF whose structure has been checked.
pub(super) struct Gguf<R> {
    reader: R,
    content: Content,
    used: HashSet<String>,
}

impl<R: Read + Seek> Gguf<R> {
    /// Checks the structure and reads the metadata; weights stay where they are until they are asked for.
    pub fn read(mut reader: R) -> Result<Self, GgufError> {
        gguf_check::check(&mut reader)?;
        let content = Content::read(&mut reader)?;
        Ok(Self { reader, content, used: HashSet::new() })
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.value(key, "a string", |value| value.to_string().ok().map(String::as_str))
    }

    pub fn number(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.value(key, "a whole number of 32 bits", |value| u32::try_from(value.to_u64().ok()?).ok())
    }

    pub fn float(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.value(key, "a finite 32-bit floating point number", |value| {
            value.to_f32().ok().filter(|value| value.is_finite())
        })
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.value(key, "true or false", |value| value.to_bool().ok())
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        self.value(key, "an array of strings", |value| {
            value.to_vec().ok()?.iter().map(|item| item.to_string().ok().map(String::as_str)).collect()
        })
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.value(key, "an array of 32-bit numbers", |value| {
            value.to_vec().ok()?.iter().map(|item| item.to_i32().ok()).collect()
        })
    }

    fn value<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.content.metadata.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| GgufError::WrongType { key: key.to_owned(), expected })
    }

    pub fn has_tensor(&self, tensor: &str) -> bool {
        self.content.tensor_infos.contains_key(tensor)
    }

    /// The tensor's shape, outermost dimension first.
    pub fn shape(&self, tensor: &str) -> Result<&[usize], GgufError> {
        match self.content.tensor_infos.get(tensor) {
            Some(info) => Ok(info.shape.dims()),
            None => Err(GgufError::MissingTensor { tensor: tensor.to_owned() }),
        }
    }

    /// The tensor as f32, if it has the given shape (outermost dimension first).
    pub fn tensor(&mut self, tensor: &str, expected: &[usize]) -> Result<Tensor, GgufError> {
        let found = self.shape(tensor)?;
        if found != expected {
            let (expected, found) = (expected.to_vec(), found.to_vec());
            return Err(GgufError::TensorShape { tensor: tensor.to_owned(), expected, found });
        }
        self.used.insert(tensor.to_owned());
        let quantized = self.content.tensor(&mut self.reader, tensor, &Device::Cpu)?;
        Ok(quantized.dequantize(&Device::Cpu)?)
    }

    /// A tensor of one dimension, as numbers.
    pub fn vector(&mut self, tensor: &str, length: usize) -> Result<Vec<f32>, GgufError> {
        Ok(self.tensor(tensor, &[length])?.to_vec1()?)
    }

    /// Refuses a GGUF that has a tensor nobody asked for.
    pub fn all_tensors_used(&self) -> Result<(), GgufError> {
        match self.content.tensor_infos.keys().filter(|name| !self.used.contains(*name)).min() {
            None => Ok(()),
            Some(tensor) => Err(GgufError::UnknownTensor { tensor: tensor.clone() }),
        }
    }
}

/// Turns an absent metadata entry into an error that names it.
pub(super) fn required<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
}
