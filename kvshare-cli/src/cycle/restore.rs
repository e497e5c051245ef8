//! The end of the file route: a provider's state file is checked, and the decoder reads it.
//!
//! The stock server aborts on a file that is cut in its rows, and answers from one with wrong positions without a word.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvshare::handoff::{HandoffFile, KnownCache, StateCheckError};

use super::{DecoderClient, DecoderError, cancellable};

/// A file that the decoder has read.
#[derive(Clone, Copy, Debug)]
pub struct ReadBack {
    /// Its length in bytes.
    pub bytes: u64,
    /// How long the decoder took to read it: its own word, or else the whole call.
    pub took: Duration,
}

/// Why a state file was not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// It would not restore to the prompt, and the decoder did not see it.
    #[error(transparent)]
    File(#[from] StateCheckError),
    /// The decoder refused, or did not answer.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The decoder read less than the file holds.
    #[error("the decoder restored {restored} tokens of {expected}")]
    Restored {
        /// What it restored.
        restored: u64,
        /// What the file holds.
        expected: usize,
    },
    /// The system.
    #[error("the state file could not be checked: {0}")]
    System(#[from] std::io::Error),
}

/// Checks `file` against `tokens` and what is `known` of the cache, and has the decoder read it.
///
/// # Errors
/// [`RestoreError`]; the slot is empty then, or holds what it held before.
pub async fn restore(
    decoder: &DecoderClient,
    file: &Arc<HandoffFile>,
    tokens: &Arc<[i32]>,
    known: &Arc<KnownCache>,
) -> Result<ReadBack, RestoreError> {
    let bytes = {
        let (file, tokens, known) = (Arc::clone(file), Arc::clone(tokens), Arc::clone(known));
        cancellable(move |_| file.check(&tokens, &known)).await??
    };
    let asked = Instant::now();
    let failure = match decoder.restore(file.name()).await {
        Ok(restored) if restored.tokens == tokens.len() as u64 => {
            return Ok(ReadBack { bytes, took: restored.took.unwrap_or_else(|| asked.elapsed()) });
        }
        Ok(restored) => RestoreError::Restored { restored: restored.tokens, expected: tokens.len() },
        Err(error) => error.into(),
    };
    // A restore that failed can leave the slot broken (ggml-org/llama.cpp#27068). If this fails, too, the decoder is in
    // such a state that its next answer will say more.
    let _ = decoder.erase().await;
    Err(failure)
}
