//! What a decoder thinks with: a vocabulary, a chat template, and the evaluation of tokens over a cache.
//!
//! [`CheckerBrain`] is no model: its answer says whether the rows before the prompt's end are the checker's function.
//! [`ModelBrain`] is a GGUF and really decodes. Neither owns a cache: the rows lie where the decoder has them, and after
//! a handoff where the provider wrote them.
#![forbid(unsafe_code)]

mod checker;
mod error;
mod model;

pub use checker::CheckerBrain;
pub use error::BrainError;
pub use model::ModelBrain;

use kvshare::rows::MappedCache;

use crate::model::Message;

/// The cache that a brain needs: equal attention layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// How many layers.
    pub layers: u32,
    /// Channels of a K row (`n_embd_k_gqa`).
    pub k_width: u64,
    /// Channels of a V row (`n_embd_v_gqa`).
    pub v_width: u64,
    /// Channels of one head, which decide how a quantized cache is rotated.
    pub head_size: u32,
}

/// A vocabulary with something behind it that evaluates tokens.
///
/// Token ids are those of the cache's files and messages: `i32`, and those of a vocabulary from 0 up.
pub trait Brain: Send + Sync {
    /// The model's name, as replies and headers tell it.
    fn name(&self) -> &str;

    /// Where the model comes from, for people.
    fn source(&self) -> &str;

    /// The cache it needs.
    fn cache_shape(&self) -> CacheShape;

    /// Token ids are below this.
    fn n_vocab(&self) -> u32;

    /// The most positions that it can tell apart.
    fn n_ctx_train(&self) -> u32;

    /// A conversation as the prompt whose continuation answers it.
    ///
    /// # Errors
    /// Messages that the template refuses.
    fn apply_template(&self, messages: &[Message]) -> Result<String, BrainError>;

    /// The tokens of a text. `add_special` and `parse_special` as llama-server's `/tokenize` has them.
    ///
    /// # Errors
    /// The tokenizer's own failures.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, BrainError>;

    /// The bytes that a token adds to a text: none for a control token or an unknown id.
    fn token_bytes(&self, token: i32) -> Vec<u8>;

    /// Whether the token ends an answer.
    fn is_end(&self, token: i32) -> bool;

    /// Evaluates `prompt` but for its first `known` tokens, whose rows the cache has, and leaves the rows of the others
    /// in the cache. There must be at least one other. Stops early when `goes_on` says no.
    ///
    /// # Errors
    /// Rows that cannot be reached, [`BrainError::Stopped`]. Rows from `known` on may have been written by then.
    fn begin<'a>(
        &'a self,
        prompt: &[i32],
        known: usize,
        cache: &mut MappedCache,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Answer + 'a>, BrainError>;
}

/// An answer in the making.
pub trait Answer {
    /// The next token: always the likeliest.
    fn next(&self) -> i32;

    /// Evaluates [`next`](Self::next) at `position`, after which that is the token behind it.
    ///
    /// # Errors
    /// Rows that cannot be reached.
    fn advance(&mut self, position: usize, cache: &mut MappedCache) -> Result<(), BrainError>;
}
