//! Why a brain has no answer.

use kvshare::rows::RowsError;

use crate::model::{ChatError, EvaluateError, TokenizerError};

/// Why tokens could not be made or evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrainError {
    /// The rows of the cache.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The vocabulary.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The model's evaluation.
    #[error(transparent)]
    Evaluate(EvaluateError<RowsError>),
    /// Nobody wants the answer any more.
    #[error("the evaluation was stopped: whoever asked for it is gone")]
    Stopped,
}

impl From<EvaluateError<RowsError>> for BrainError {
    fn from(error: EvaluateError<RowsError>) -> Self {
        match error {
            EvaluateError::Stopped { .. } => Self::Stopped,
            error => Self::Evaluate(error),
        }
    }
}
