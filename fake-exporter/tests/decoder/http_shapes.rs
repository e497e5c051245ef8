//! Answers have the fields that the stock server's have, of the same JSON types.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::server::Server;

/// A recorded exchange with the stock server.
fn sample(name: &str) -> Value {
    let path = format!("../tests/data/samples/http/{name}.json");
    serde_json::from_slice(&fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()).unwrap()
}

/// A value's shape: its type, and its fields' shapes. A list is as its first element.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("bool"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(values) => values.first().map_or(json!("empty"), |first| json!([shape(first)])),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
    }
}

fn assert_alike(found: &Value, stock: &Value) {
    assert_eq!(shape(found), shape(stock));
}

fn without(mut value: Value, pointer: &str, fields: &[&str]) -> Value {
    let object = value.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
    object.retain(|name, _| !fields.contains(&name.as_str()));
    value
}

#[test]
fn facts_are_told_in_the_stock_servers_shape() {
    let server = Server::start(&[]);
    assert_eq!(server.get("/health").json(), sample("health")["response"]);
    assert_alike(&server.get("/slots").json(), &sample("slots_initial")["response"]);
    // Neutral samplers have no values to list, and "sampling" is ours.
    let lists = ["samplers", "lora"];
    let pointer = "/default_generation_settings/params";
    let props = without(without(server.get("/props").json(), "", &["sampling"]), pointer, &lists);
    assert_alike(&props, &without(sample("props")["response"].clone(), pointer, &lists));
    assert_eq!(props["total_slots"], 1);
    for path in ["/models", "/v1/models"] {
        let models = without(server.get(path).json(), "/data/0", &["meta"]);
        let stock = without(sample("models")["response"].clone(), "/data/0", &["meta"]);
        assert_eq!(models["data"][0]["id"], "kvshare-tiny.gguf");
        let tagless = |models| without(without(models, "/data/0", &["tags"]), "/models/0", &["tags"]);
        assert_alike(&tagless(models), &tagless(stock));
    }
    let missing = server.get("/no/such/path");
    assert_eq!((missing.status, &missing.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[test]
fn completions_are_answered_in_the_stock_servers_shape() {
    let server = Server::start(&[]);
    let chat = json!({"messages": [{"role": "user", "content": "Why does it rain?"}], "max_tokens": 4});
    assert_alike(&server.ok("/v1/chat/completions", chat.clone()), &sample("chat_cold")["response"]);
    assert_alike(&server.ok("/v1/chat/completions", chat), &sample("chat_after_restore")["response"]);
    assert_alike(&server.get("/slots").json(), &sample("slots_after_chat")["response"]);

    let body = json!({"prompt": "There was", "n_predict": 4, "return_tokens": true});
    let lists = ["dry_sequence_breakers", "samplers"];
    let found = without(server.ok("/completion", body), "/generation_settings", &lists);
    assert_alike(&found, &without(sample("completion")["response"].clone(), "/generation_settings", &lists));
}

#[test]
fn streams_have_the_stock_servers_frames() {
    let server = Server::start(&[]);
    let usage = json!({"include_usage": true});
    for (name, options, max_tokens) in [("chat_stream", usage, 4), ("chat_stream_nousage", json!({}), 3)] {
        let answer = server.post("/v1/chat/completions", json!({
            "messages": [{"role": "user", "content": "Why does it rain?"}], "max_tokens": max_tokens, "stream": true,
            "stream_options": options,
        }));
        let stock = sample(name)["raw"].as_str().unwrap().to_owned();
        let stock = stock.trim_end().split("\n\n").map(|frame| frame.strip_prefix("data: ").unwrap());
        let shapes = |frames: Vec<&str>| -> Vec<Value> {
            let of = |frame: &str| serde_json::from_str(frame).map_or(json!(frame), |frame| shape(&frame));
            let mut shapes: Vec<Value> = frames.into_iter().map(of).collect();
            // How many frames the text takes depends on the tokens.
            shapes.dedup();
            shapes
        };
        assert_eq!(shapes(answer.frames()), shapes(stock.collect()), "{name}");
    }
}

#[test]
fn text_and_slots_are_answered_in_the_stock_servers_shape() {
    let server = Server::start(&[]);
    let conversation = sample("apply_template")["request"]["body"].clone();
    assert_alike(&server.ok("/apply-template", conversation), &sample("apply_template")["response"]);
    let text = sample("tokenize_prompt")["request"]["body"].clone();
    assert_alike(&server.ok("/tokenize", text), &sample("tokenize_prompt")["response"]);
    server.ok("/completion", json!({"prompt": "There was", "n_predict": 4}));
    for name in ["save", "restore", "erase"] {
        let body = sample(name)["request"]["body"].clone();
        assert_alike(&server.action(name, body), &sample(name)["response"]);
    }
}

#[test]
fn refusals_are_the_stock_servers() {
    let server = Server::start(&["--sharing", "unknown"]);
    let names = ["action_share", "action_adopt", "restore_missing", "restore_garbage", "restore_fn_slash"];
    std::fs::write(server.directory().join("garbage.bin"), "garbage").unwrap();
    for name in names {
        let sample = sample(name);
        let answer = server.post(sample["request"]["path"].as_str().unwrap(), sample["request"]["body"].clone());
        assert_eq!((json!(answer.status), answer.json()), (sample["status"].clone(), sample["response"].clone()));
    }
    let too_long = sample("chat_toolong");
    let answer = server.post("/v1/chat/completions", too_long["request"]["body"].clone());
    assert_eq!(answer.status, 400);
    assert_alike(&answer.json(), &too_long["response"]);
    assert_eq!(answer.json()["error"]["type"], too_long["response"]["error"]["type"]);
}
