//! What must be known of a model to name a head, and to undo RoPE.

use std::path::Path;

use fake_exporter::model::{GgufError, Model, ModelError};

use super::rope::Rope;

/// What is known of the model whose cache it is.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Channels of a head, of K and of V.
    pub head_size: Option<u64>,
    /// How K is turned.
    pub rope: Option<Rope>,
    /// Why that is not known.
    pub rope_unknown: Option<String>,
}

impl ModelFacts {
    /// Nothing.
    pub fn unknown() -> Self {
        let why = "they need the model (-m FILE)".to_owned();
        Self { head_size: None, rope: None, rope_unknown: Some(why) }
    }

    /// What `model` tells.
    pub fn of(model: &Model) -> Self {
        let rope = Rope::of(model);
        let why = || "this architecture's pairing of channels is not known here".to_owned();
        let rope_unknown = if rope.is_some() { None } else { Some(why()) };
        Self { head_size: Some(model.config().n_embd_head as u64), rope, rope_unknown }
    }

    /// What the GGUF at `path` tells; little, of a model that is not supported here.
    ///
    /// # Errors
    /// A file that cannot be read, or is no GGUF.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        match Model::open(path) {
            Ok(model) => Ok(Self::of(&model)),
            Err(
                error @ (ModelError::Open { .. }
                | ModelError::NotAFile { .. }
                | ModelError::Gguf(GgufError::Malformed(_))),
            ) => Err(error),
            Err(error) => Ok(Self::unusable(&error)),
        }
    }

    /// Nothing, of a model that cannot be opened here.
    pub fn unusable(error: &ModelError) -> Self {
        Self { rope_unknown: Some(error.to_string()), ..Self::unknown() }
    }
}
