//! What the server is and holds: answered at once, however busy the decoder is.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::body::Json;
use super::sampling::parameters;
use super::server::{Server, unix_time};
use crate::decoder::{Request, SLOT};

pub(super) async fn health() -> Json {
    Json(json!({"status": "ok"}))
}

pub(super) async fn props(State(server): State<Arc<Server>>) -> Json {
    let (brain, n_ctx) = (server.brain(), server.settings().cells);
    let nothing = Request { prompt: Vec::new(), n_predict: None, cache_prompt: true, stop_words: Vec::new() };
    Json(json!({
        "default_generation_settings": {"params": parameters(&nothing, false), "n_ctx": n_ctx},
        "total_slots": 1,
        "model_alias": brain.name(),
        "model_ftype": "",
        "model_path": brain.source(),
        "modalities": {"vision": false, "video": false, "audio": false},
        "media_marker": "",
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": false,
        "ui": false,
        "ui_settings": {},
        "chat_template": "",
        "chat_template_caps": {
            "supports_object_arguments": false,
            "supports_parallel_tool_calls": false,
            "supports_preserve_reasoning": false,
            "supports_reasoning_effort": false,
            "supports_string_content": true,
            "supports_system_role": true,
            "supports_tool_calls": false,
            "supports_tools": false,
            "supports_typed_content": false,
        },
        "bos_token": "",
        "eos_token": "",
        "build_info": concat!("fake-exporter ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
        "cors_proxy_enabled": false,
        // Ours: a client that sets a temperature should be able to find out why nothing changes.
        "sampling": "always greedy; parameters of sampling are ignored",
    }))
}

pub(super) async fn slots(State(server): State<Arc<Server>>) -> Json {
    let report = server.slot();
    let mut slot = json!({
        "id": SLOT,
        "n_ctx": server.settings().cells,
        "speculative": false,
        "is_processing": server.is_busy(),
    });
    if let Some((number, parameters)) = report.task {
        slot["id_task"] = json!(number);
        slot["n_prompt_tokens"] = json!(report.n_tokens);
        slot["n_prompt_tokens_processed"] = json!(0);
        slot["n_prompt_tokens_cache"] = json!(0);
        slot["params"] = parameters;
        slot["next_token"] = json!([{"has_next_token": false, "has_new_line": false, "n_remain": -1, "n_decoded": 0}]);
    }
    Json(Value::Array(vec![slot]))
}

pub(super) async fn models(State(server): State<Arc<Server>>) -> Json {
    let brain = server.brain();
    let name = brain.name();
    Json(json!({
        "models": [{
            "name": name, "model": name, "modified_at": "", "size": "", "digest": "", "type": "model",
            "description": "", "tags": [""], "capabilities": ["completion"], "parameters": "",
            "details": {
                "parent_model": "", "format": "gguf", "family": "", "families": [""], "parameter_size": "",
                "quantization_level": "",
            },
        }],
        "object": "list",
        "data": [{
            "id": name, "aliases": [name], "tags": [], "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": unix_time(),
            "owned_by": "kvshare",
            "meta": {"n_vocab": brain.n_vocab(), "n_ctx": server.settings().cells, "n_ctx_train": brain.n_ctx_train()},
        }],
    }))
}
