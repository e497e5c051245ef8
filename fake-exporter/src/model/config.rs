//! A model's sizes and constants, from the GGUF's metadata, under llama.cpp's names.

use std::io::{Read, Seek};

use thiserror::Error;

use super::gguf::{Gguf, GgufError, required};

/// Why a model cannot be run here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Something is missing from the GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The architecture is another.
    #[error("the architecture \"{architecture}\" is not supported, only \"llama\" and \"qwen3\" are; use such a model")]
    Architecture {
        /// `general.architecture`.
        architecture: String,
    },
    /// A number that cannot be.
    #[error("\"{key}\" is {value}, which is not possible: {reason}; convert the model again with a current llama.cpp")]
    Value {
        /// The metadata key.
        key: String,
        /// Its value.
        value: String,
        /// What it would have to be.
        reason: &'static str,
    },
    /// A feature of the architecture that is not implemented.
    #[error("\"{key}\" is {value}, which is not implemented: {reason}; use a model without it")]
    Unsupported {
        /// The metadata key.
        key: String,
        /// Its value.
        value: String,
        /// What is implemented.
        reason: &'static str,
    },
}

/// The supported architectures (`general.architecture`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama, SmolLM2 and their kin: RoPE turns neighbouring channels (2i, 2i + 1).
    Llama,
    /// Qwen3: RoPE turns channels half a head apart (i, i + n/2), and Q and K are normalized head by head before it.
    Qwen3,
}

/// What one needs to know about a model besides its weights.
///
/// The cache of such a model has, for each of the `n_layer` layers, K rows of [`n_embd_k_gqa`](Self::n_embd_k_gqa)
/// values and V rows of [`n_embd_v_gqa`](Self::n_embd_v_gqa) values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// How the layers work in detail.
    pub architecture: Architecture,
    /// The model's name for people, if it has one (`general.name`).
    pub name: Option<String>,
    /// Layers.
    pub n_layer: usize,
    /// Values of a token between layers.
    pub n_embd: usize,
    /// Query heads of a layer.
    pub n_head: usize,
    /// K and V heads of a layer; each serves `n_head / n_head_kv` query heads.
    pub n_head_kv: usize,
    /// Values of a head.
    pub n_embd_head: usize,
    /// Values inside the feed-forward network.
    pub n_ff: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Tokens of context that the model was trained for.
    pub n_ctx_train: usize,
    /// RoPE's base.
    pub rope_freq_base: f32,
    /// What keeps RMS norm from dividing by zero.
    pub rms_norm_epsilon: f32,
}

impl Config {
    pub(super) fn read(gguf: &Gguf<impl Read + Seek>) -> Result<Self, ConfigError> {
        let architecture = required("general.architecture", gguf.text("general.architecture")?)?;
        let key = |name: &str| format!("{architecture}.{name}");
        let size = |name: &str| {
            let key = key(name);
            let value = required(&key, gguf.number(&key)?)?;
            if value == 0 {
                let reason = "it must be at least 1";
                return Err(ConfigError::Value { key, value: value.to_string(), reason });
            }
            Ok(value as usize)
        };
        let architecture = match architecture {
            "llama" => Architecture::Llama,
            "qwen3" => Architecture::Qwen3,
            other => return Err(ConfigError::Architecture { architecture: other.to_owned() }),
        };

        let n_embd = size("embedding_length")?;
        let n_head = size("attention.head_count")?;
        let n_head_kv = match gguf.number(&key("attention.head_count_kv"))? {
            Some(_) => size("attention.head_count_kv")?,
            None => n_head,
        };
        if n_head % n_head_kv != 0 {
            let reason = "it must divide attention.head_count";
            return Err(ConfigError::Value {
                key: key("attention.head_count_kv"),
                value: n_head_kv.to_string(),
                reason,
            });
        }
        let n_embd_head = match gguf.number(&key("attention.key_length"))? {
            Some(_) => size("attention.key_length")?,
            None => n_embd / n_head,
        };
        if n_embd_head == 0 || n_embd_head % 2 != 0 {
            let reason = "RoPE needs heads of an even number of values";
            return Err(ConfigError::Value {
                key: key("attention.key_length"),
                value: n_embd_head.to_string(),
                reason,
            });
        }
        for (name, reason) in [
            ("attention.value_length", "V heads are as long as K heads"),
            ("rope.dimension_count", "RoPE turns whole heads"),
        ] {
            if let Some(value) = gguf.number(&key(name))?
                && value as usize != n_embd_head
            {
                return Err(ConfigError::Unsupported { key: key(name), value: value.to_string(), reason });
            }
        }
        if let Some(scaling) = gguf.text(&key("rope.scaling.type"))?
            && scaling != "none"
        {
            let reason = "RoPE runs unscaled, or by the factors of the tensor rope_freqs.weight";
            return Err(ConfigError::Unsupported { key: key("rope.scaling.type"), value: scaling.to_owned(), reason });
        }

        Ok(Self {
            architecture,
            name: gguf.text("general.name")?.map(str::to_owned),
            n_layer: size("block_count")?,
            n_embd,
            n_head,
            n_head_kv,
            n_embd_head,
            n_ff: size("feed_forward_length")?,
            n_vocab: gguf.shape("token_embd.weight")?.first().copied().unwrap_or(0),
            n_ctx_train: size("context_length")?,
            // The default of llama.cpp (`llama_model::load_hparams`, src/llama-model.cpp).
            rope_freq_base: gguf.float(&key("rope.freq_base"))?.unwrap_or(10000.0),
            rms_norm_epsilon: {
                let key = key("attention.layer_norm_rms_epsilon");
                required(&key, gguf.float(&key)?)?
            },
        })
    }

    /// Values of a K row: those of all K heads.
    pub fn n_embd_k_gqa(&self) -> usize {
        self.n_head_kv * self.n_embd_head
    }

    /// Values of a V row: those of all V heads.
    pub fn n_embd_v_gqa(&self) -> usize {
        self.n_head_kv * self.n_embd_head
    }

    /// Query heads that share a K and V head.
    pub(super) fn n_gqa(&self) -> usize {
        self.n_head / self.n_head_kv
    }
}
