//! JSON in and out: as the stock server takes it, whatever the request's content type, and as it writes it.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::MAX_BODY_BYTES;
use super::error::ApiError;

/// A request's body. No body is an empty object.
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let message = format!("the body is longer than {MAX_BODY_BYTES} bytes; send a shorter one");
                return ApiError::new(rejection.status(), "invalid_request_error", message);
            }
            ApiError::invalid(rejection.body_text())
        })?;
        let text = if bytes.is_empty() { b"{}" } else { &bytes[..] };
        if let Ok(value) = serde_json::from_slice(text) {
            return Ok(Self(value));
        }
        // Read again by one who names the field: that takes twice as long, which many thousand ids would feel.
        match axum::Json::from_bytes(text) {
            Ok(axum::Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::invalid(rejection.body_text())),
        }
    }
}

/// An answer's body.
pub(super) struct Json(pub Value);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        let content_type = HeaderValue::from_static("application/json; charset=utf-8");
        ([(header::CONTENT_TYPE, content_type)], self.0.to_string()).into_response()
    }
}
