//! A stream brings the same text as a whole reply, frame by frame.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::server::Server;

const QUESTION: &str = "Why does it rain?";

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The frames of a stream without `[DONE]`, which must be the last.
fn frames(server: &Server, path: &str, body: Value) -> Vec<Value> {
    let answer = server.post(path, body);
    let frames = answer.frames();
    let (last, frames) = frames.split_last().unwrap();
    assert_eq!(*last, "[DONE]");
    frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
}

#[test]
fn a_streamed_chat_is_the_same_text_as_a_whole_one() {
    let server = Server::start(&[]);
    let whole = server.ok("/v1/chat/completions", ask(json!({})));
    let frames = frames(&server, "/v1/chat/completions", ask(json!({"stream": true})));
    let deltas = frames.iter().map(|frame| &frame["choices"][0]["delta"]);
    let text: String = deltas.filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    let last = frames.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!((&last["timings"]["prompt_n"], &last["timings"]["cache_n"]), (&json!(1), &json!(12)));
}

#[test]
fn usage_comes_in_a_frame_of_its_own_with_the_timings() {
    let server = Server::start(&[]);
    let body = ask(json!({"stream": true, "max_tokens": 3, "stream_options": {"include_usage": true}}));
    let frames = frames(&server, "/v1/chat/completions", body);
    let [.., finish, usage] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!(finish["timings"], Value::Null);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 3);
    assert_eq!(usage["timings"]["predicted_n"], 3);
}

#[test]
fn a_streamed_text_completion_ends_with_its_usage() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "There was a happy", "max_tokens": 5, "stream": true});
    let frames = frames(&server, "/v1/completions", body.clone());
    let text: String = frames.iter().filter_map(|frame| frame["choices"][0]["text"].as_str()).collect();
    let mut body = body;
    body["stream"] = json!(false);
    let whole = server.ok("/v1/completions", body);
    assert_eq!((&whole["object"], &whole["choices"][0]["text"]), (&json!("text_completion"), &json!(text)));
    assert_eq!(frames.last().unwrap()["usage"]["completion_tokens"], 5);
}

#[test]
fn a_streamed_completion_brings_its_tokens_and_no_done() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "There was a happy", "n_predict": 5, "stream": true, "return_tokens": true});
    let answer = server.post("/completion", body);
    let frames: Vec<Value> = answer.frames().iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let (last, pieces) = frames.split_last().unwrap();
    let tokens: Vec<&Value> = pieces.iter().flat_map(|piece| piece["tokens"].as_array().unwrap()).collect();
    assert_eq!(tokens, last["tokens"].as_array().unwrap().iter().collect::<Vec<_>>());
    assert_eq!((&last["stop"], &last["stop_type"], &last["content"]), (&json!(true), &json!("limit"), &json!("")));
}

#[test]
fn a_stop_word_ends_the_text_before_itself() {
    let server = Server::start(&[]);
    for stop in [json!("into"), json!(["never said", "into"])] {
        let reply = server.ok(
            "/completion",
            json!({
                "prompt": "<|im_start|>user\nWhy does it rain?<|im_end|>\n<|im_start|>assistant\n", "stop": stop,
            }),
        );
        assert_eq!(reply["content"], "Water goes up ");
        assert_eq!((&reply["stop_type"], &reply["stopping_word"]), (&json!("word"), &json!("into")));
    }
}

#[test]
fn a_request_that_is_refused_has_its_status_streamed_or_not() {
    let server = Server::checker(&[]);
    let long = "x".repeat(300);
    for stream in [false, true] {
        let error = server.refused("/completion", json!({"prompt": long, "stream": stream}));
        assert_eq!((&error["code"], &error["type"]), (&json!(400), &json!("exceed_context_size_error")));
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(300), &json!(256)));
    }
    let refused = [
        ("/completion", json!({}), "\"prompt\" is required"),
        ("/completion", json!({"prompt": []}), "no tokens"),
        ("/completion", json!({"prompt": 7}), "prompt: a prompt is a string or a list of token ids"),
        ("/completion", json!({"prompt": [1, 5_000_000_000_i64]}), "token 1 is 5000000000"),
        ("/completion", json!({"prompt": "a", "n_predict": "many"}), "n_predict: "),
        ("/completion", json!({"prompt": "a", "stop": 1}), "stop: stop is a string or a list of strings"),
        ("/v1/chat/completions", json!({}), "\"messages\" is required"),
        ("/v1/chat/completions", json!({"messages": [{"content": "a"}]}), "messages[0]: missing field `role`"),
    ];
    for (path, body, expected) in refused {
        let error = server.refused(path, body);
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
        assert_eq!(error["code"], 400);
    }
    assert_eq!(server.complete(&[1, 2])["timings"]["prompt_n"], 2);
}

#[test]
fn a_client_that_goes_away_ends_its_generation() {
    let server = Server::start(&[]);
    // A story of some hundred tokens, of which one is read.
    let body = json!({"prompt": "Once upon a time", "n_predict": -1, "stream": true}).to_string();
    let mut client = TcpStream::connect(server.address()).unwrap();
    let length = body.len();
    write!(client, "POST /completion HTTP/1.1\r\nHost: decoder\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    drop(client);
    assert_eq!(server.ok("/completion", json!({"prompt": "a", "n_predict": 1}))["tokens_predicted"], 1);
    server.assert_no_descriptor_leaked();
}
