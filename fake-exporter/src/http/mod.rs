//! llama-server's HTTP over a [`Decoder`](crate::decoder::Decoder).
//!
//! Paths, fields, types and error bodies are those of the stock server (`tools/server/server-context.cpp` and
//! `server-task.cpp` of llama.cpp), as far as a proxy or a client of chat completions looks at them. Generation is always
//! greedy: parameters of sampling are accepted and ignored, which `/props` says.
#![forbid(unsafe_code)]

mod ask;
mod body;
mod completions;
mod error;
mod facts;
mod job;
mod log;
mod reply;
mod sampling;
mod server;
mod slots;
mod vocabulary;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};

pub use server::Server;

/// The longest request body, in bytes. Messages of a full context are far shorter.
const MAX_BODY_BYTES: usize = 64 << 20;

/// All paths of the server.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/health", get(facts::health))
        .route("/props", get(facts::props))
        .route("/slots", get(facts::slots))
        .route("/models", get(facts::models))
        .route("/v1/models", get(facts::models))
        .route("/apply-template", post(vocabulary::apply_template))
        .route("/tokenize", post(vocabulary::tokenize))
        .route("/detokenize", post(vocabulary::detokenize))
        .route("/completion", post(completions::completion))
        .route("/completions", post(completions::completion))
        .route("/v1/completions", post(completions::text_completion))
        .route("/v1/chat/completions", post(completions::chat_completion))
        .route("/slots/{slot}", post(slots::action))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_path)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(server)
}
