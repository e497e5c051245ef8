//! Errors of our own in llama-server's form: `{"error": {"code", "message", "type"}}`.

use std::fmt::Display;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::slot::SlotBusy;

/// An answer that is an error.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
}

impl ApiError {
    /// The backend gave no answer.
    pub fn bad_gateway(error: impl Display) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, kind: "server_error", message: error.to_string() }
    }

    /// It can be tried again later.
    pub fn unavailable(error: impl Display) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, kind: "unavailable_error", message: error.to_string() }
    }

    /// The key is missing or wrong, in llama-server's words (`tools/server/server-http.cpp`).
    pub fn wrong_key() -> Self {
        Self { status: StatusCode::UNAUTHORIZED, kind: "authentication_error", message: "Invalid API Key".to_owned() }
    }

    /// The request would change the slot.
    pub fn slots_are_ours() -> Self {
        let message =
            "slots are saved, restored, erased, shared and adopted by kvshare-cli serve alone; ask for completions, \
                       or ask the backend itself while nobody else does"
                .to_owned();
        Self { status: StatusCode::FORBIDDEN, kind: "permission_error", message }
    }

    /// The request's target is no path.
    pub fn no_path() -> Self {
        let message = "the request's target is not a path; ask for one such as /v1/chat/completions".to_owned();
        Self { status: StatusCode::BAD_REQUEST, kind: "invalid_request_error", message }
    }

    /// The request's body is too long.
    pub fn too_long(most: usize) -> Self {
        let message = format!("the body is longer than {most} bytes, or broke off; send a shorter one");
        Self { status: StatusCode::PAYLOAD_TOO_LARGE, kind: "invalid_request_error", message }
    }

    /// The request's body did not come.
    pub fn too_slow() -> Self {
        let message = "the request's body did not come in time".to_owned();
        Self { status: StatusCode::REQUEST_TIMEOUT, kind: "invalid_request_error", message }
    }
}

impl From<SlotBusy> for ApiError {
    fn from(busy: SlotBusy) -> Self {
        Self::unavailable(busy)
    }
}

impl Display for ApiError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, kind, message } = self;
        let body = json!({"error": {"code": status.as_u16(), "message": message, "type": kind}}).to_string();
        let mut response = (status, [(header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
