//! From conversations to prompts, from prompts to tokens, and back.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::body::{Body, Json};
use super::error::ApiError;
use super::server::{Server, blocking};
use crate::decoder::checked_ids;
use crate::model::Message;

#[derive(Deserialize)]
pub(super) struct Conversation {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
pub(super) struct Text {
    #[serde(default)]
    content: String,
    #[serde(default)]
    add_special: bool,
    #[serde(default = "yes")]
    parse_special: bool,
}

#[derive(Deserialize)]
pub(super) struct Tokens {
    tokens: Vec<i64>,
}

fn yes() -> bool {
    true
}

pub(super) async fn apply_template(
    State(server): State<Arc<Server>>,
    Body(conversation): Body<Conversation>,
) -> Result<Json, ApiError> {
    blocking(move || {
        let prompt = server.brain().apply_template(&conversation.messages)?;
        Ok(Json(json!({"prompt": prompt})))
    })
    .await
}

pub(super) async fn tokenize(State(server): State<Arc<Server>>, Body(text): Body<Text>) -> Result<Json, ApiError> {
    blocking(move || {
        let tokens = server.brain().tokenize(&text.content, text.add_special, text.parse_special)?;
        Ok(Json(json!({"tokens": tokens})))
    })
    .await
}

pub(super) async fn detokenize(State(server): State<Arc<Server>>, Body(ids): Body<Tokens>) -> Result<Json, ApiError> {
    blocking(move || {
        let brain = server.brain();
        let tokens = checked_ids(&ids.tokens, brain.n_vocab())?;
        let bytes: Vec<u8> = tokens.into_iter().flat_map(|token| brain.token_bytes(token)).collect();
        Ok(Json(json!({"content": String::from_utf8_lossy(&bytes)})))
    })
    .await
}
