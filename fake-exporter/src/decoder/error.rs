//! Why the decoder refuses or fails.

use kvshare::layout::LayoutError;
use kvshare::map::MapError;
use kvshare::rows::RowsError;
use kvshare::share::ShareError;
use kvshare::state_file::{CopyError, StateFileError};
use kvshare::wire::WireError;

use crate::brain::BrainError;

/// Why the decoder refuses or fails. A refused request changes nothing; where one changes something the variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecoderError {
    /// Slots can be neither saved nor shared without a directory.
    #[error("This server does not support slots action. Start it with `--slot-save-path`")]
    NoSlotDirectory,
    /// The decoder does not know this action.
    #[error("Invalid action")]
    InvalidAction,
    /// The decoder does not export its cache.
    #[error("This server does not share its cache: it was started with `--sharing off`")]
    SharingOff,
    /// There is one slot only.
    #[error("there is no slot {slot}; the only one is 0")]
    NoSuchSlot {
        /// The number asked for.
        slot: i64,
    },
    /// A file name that could lead out of the slot directory.
    #[error("Invalid filename")]
    Filename(#[source] StateFileError),
    /// The slot could not be restored, and is empty.
    #[error("Unable to restore slot: No available space in KV cache or invalid slot save file")]
    Restore(#[source] CopyError<RowsError>),
    /// The slot could not be saved.
    #[error("Unable to save slot: {0}")]
    Save(#[source] CopyError<RowsError>),
    /// A `share_id` that cannot be adopted.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The provider wrote past a tensor, so that its rows cannot be trusted.
    #[error("the shared cells are not adopted: {0}")]
    Overrun(#[source] RowsError),
    /// The socket to share over. If a part of the message went out, the slot is empty.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// No tokens.
    #[error("\"tokens\" is empty; send the ids whose rows the provider wrote, at least one")]
    NoTokens,
    /// More tokens than can be adopted.
    #[error(
        "\"tokens\" has {count} ids, but of {cells} cells at most {} can be adopted: the next token needs one",
        cells.saturating_sub(1)
    )]
    TooManyTokens {
        /// How many were sent.
        count: usize,
        /// The cells of the cache.
        cells: u64,
    },
    /// An id that is no token.
    #[error("token {index} is {id}, which is outside the vocabulary of {n_vocab}; send ids from 0 to {}", n_vocab - 1)]
    UnknownToken {
        /// Its place in the list, from 0.
        index: usize,
        /// The id.
        id: i64,
        /// How many tokens the vocabulary has.
        n_vocab: u32,
    },
    /// A slot without tokens.
    #[error("the slot holds no tokens whose rows could be compared; adopt or complete a prompt first")]
    NothingToCompare,
    /// A prompt without tokens.
    #[error("the prompt has no tokens; send at least one")]
    EmptyPrompt,
    /// A prompt that leaves no room for an answer.
    #[error(
        "request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
    )]
    ContextExceeded {
        /// The prompt's tokens.
        n_prompt_tokens: usize,
        /// The cells of the cache.
        n_ctx: u64,
    },
    /// The brain has no answer. The slot keeps the tokens that were evaluated before.
    #[error(transparent)]
    Brain(#[from] BrainError),
    /// A cache of no possible shape.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory that cannot be mapped or accessed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Memory that cannot be had, or rows that cannot be mapped or reached.
    #[error(transparent)]
    Rows(#[from] RowsError),
}
