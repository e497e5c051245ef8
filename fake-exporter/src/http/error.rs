//! Errors in llama-server's form: `{"error": {"code", "message", "type"}}`.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body::Json;
use super::log;
use crate::brain::BrainError;
use crate::decoder::DecoderError;

/// An answer that is an error.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    error: Value,
}

impl ApiError {
    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// We are.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub fn new(status: StatusCode, kind: &str, message: impl Into<String>) -> Self {
        Self { status, error: json!({"code": status.as_u16(), "message": message.into(), "type": kind}) }
    }

    /// The body of the answer.
    pub fn body(&self) -> Value {
        json!({"error": self.error})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

impl From<DecoderError> for ApiError {
    /// Also logs the error, since the stock server's texts say less than it does.
    fn from(error: DecoderError) -> Self {
        log::error(&error);
        let message = error.to_string();
        match error {
            DecoderError::NoSlotDirectory | DecoderError::SharingOff => {
                Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
            }
            DecoderError::ContextExceeded { n_prompt_tokens, n_ctx } => {
                let mut exceeded = Self::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
                exceeded.error["n_prompt_tokens"] = json!(n_prompt_tokens);
                exceeded.error["n_ctx"] = json!(n_ctx);
                exceeded
            }
            DecoderError::Brain(BrainError::Stopped) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
            }
            DecoderError::Brain(BrainError::Chat(_))
            | DecoderError::InvalidAction
            | DecoderError::NoSuchSlot { .. }
            | DecoderError::Filename(_)
            | DecoderError::Restore(_)
            | DecoderError::Share(_)
            | DecoderError::Overrun(_)
            | DecoderError::Wire(_)
            | DecoderError::NoTokens
            | DecoderError::TooManyTokens { .. }
            | DecoderError::UnknownToken { .. }
            | DecoderError::NothingToCompare
            | DecoderError::EmptyPrompt => Self::invalid(message),
            _ => Self::internal(message),
        }
    }
}

impl From<BrainError> for ApiError {
    fn from(error: BrainError) -> Self {
        DecoderError::from(error).into()
    }
}

/// What the stock server says to a path or method that it does not have.
pub(super) async fn no_such_path() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found_error", "File Not Found")
}
