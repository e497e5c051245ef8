//! `POST /slots/N?action=`: save, restore, erase, share and adopt; and our own compare.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{Body, Json};
use super::error::ApiError;
use super::log;
use super::server::Server;
use crate::decoder::{Comparison, DecoderError, SLOT};

#[derive(Deserialize)]
pub(super) struct Action {
    #[serde(default)]
    action: String,
}

/// The fields of all actions.
#[derive(Deserialize)]
pub(super) struct Fields {
    filename: Option<String>,
    socket: Option<PathBuf>,
    tokens: Option<Vec<i64>>,
    share_id: Option<u64>,
}

pub(super) async fn action(
    State(server): State<Arc<Server>>,
    slot: Result<Path<i64>, PathRejection>,
    action: Result<Query<Action>, QueryRejection>,
    Body(fields): Body<Fields>,
) -> Result<Json, ApiError> {
    server.settings().slot_directory()?;
    let Path(slot) = slot.map_err(|_| ApiError::invalid("Invalid slot ID"))?;
    let Query(Action { action }) = action.map_err(|_| DecoderError::InvalidAction)?;
    let answer = match action.as_str() {
        "save" => save(&server, fields).await,
        "restore" => restore(&server, fields).await,
        "erase" => erase(&server).await,
        "share" => share(&server, slot, fields).await,
        "adopt" => adopt(&server, slot, fields).await,
        "compare" => compare(&server).await,
        _ => Err(DecoderError::InvalidAction.into()),
    };
    answer.map(Json)
}

// A stock server wraps slot numbers, so for save, restore and erase every number is that of the one slot. A share is for
// the slot that was meant, or for none.

async fn save(server: &Arc<Server>, fields: Fields) -> Result<Value, ApiError> {
    let name = required("filename", fields.filename)?;
    let start = Instant::now();
    let filename = name.clone();
    let saved = server.with_decoder(move |decoder| decoder.save(&filename)).await?;
    Ok(json!({
        "id_slot": SLOT, "filename": name, "n_saved": saved.tokens, "n_written": saved.bytes,
        "timings": {"save_ms": milliseconds_since(start)},
    }))
}

async fn restore(server: &Arc<Server>, fields: Fields) -> Result<Value, ApiError> {
    let name = required("filename", fields.filename)?;
    let start = Instant::now();
    let filename = name.clone();
    let restored = server.with_decoder(move |decoder| decoder.restore(&filename)).await?;
    Ok(json!({
        "id_slot": SLOT, "filename": name, "n_restored": restored.tokens, "n_read": restored.bytes,
        "timings": {"restore_ms": milliseconds_since(start)},
    }))
}

async fn erase(server: &Arc<Server>) -> Result<Value, ApiError> {
    let erased = server.with_decoder(|decoder| Ok(decoder.erase())).await?;
    Ok(json!({"id_slot": SLOT, "n_erased": erased}))
}

async fn share(server: &Arc<Server>, slot: i64, fields: Fields) -> Result<Value, ApiError> {
    server.settings().check_sharing()?;
    check_slot(slot)?;
    let socket = required("socket", fields.socket)?;
    let share_id = server.with_decoder(move |decoder| decoder.share(&socket)).await?;
    Ok(json!({"id_slot": SLOT, "share_id": share_id}))
}

async fn adopt(server: &Arc<Server>, slot: i64, fields: Fields) -> Result<Value, ApiError> {
    server.settings().check_sharing()?;
    check_slot(slot)?;
    let tokens = required("tokens", fields.tokens)?;
    let adopted = server.with_decoder(move |decoder| decoder.adopt(fields.share_id, &tokens)).await?;
    if server.settings().compare {
        // It is adopted all the same; what fails here says so in the log.
        if let Ok(comparison) = comparison(server).await {
            log::line(comparison);
        }
    }
    Ok(json!({"id_slot": SLOT, "n_adopted": adopted}))
}

/// Ours: how far the rows in the slot are from those that the decoder computes itself.
async fn compare(server: &Arc<Server>) -> Result<Value, ApiError> {
    Ok(json!({"id_slot": SLOT, "comparison": comparison(server).await?}))
}

async fn comparison(server: &Arc<Server>) -> Result<Comparison, ApiError> {
    let stopping = Arc::clone(server);
    server.with_decoder(move |decoder| decoder.compare(&|| !stopping.is_stopping())).await
}

fn check_slot(slot: i64) -> Result<(), DecoderError> {
    if usize::try_from(slot) == Ok(SLOT) { Ok(()) } else { Err(DecoderError::NoSuchSlot { slot }) }
}

fn required<T>(name: &str, field: Option<T>) -> Result<T, ApiError> {
    field.ok_or_else(|| ApiError::invalid(format!("\"{name}\" is required")))
}

fn milliseconds_since(start: Instant) -> f64 {
    start.elapsed().as_micros() as f64 / 1e3
}
