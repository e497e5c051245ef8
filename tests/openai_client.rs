//! OpenAI's own Python client against `kvshare-cli serve`: it finds all that it looks for in the answers, and they come
//! by a handoff.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use kvshare_tests::fetched;
use kvshare_tests::serving::{Scene, Serving};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const KEY: &str = "a key";
const MOON: &str = "What is the moon?";

/// A server that hands over by descriptor, and the client before it.
struct Stage {
    serving: Serving,
    package: PathBuf,
    // Declared last, so that it goes when nobody uses it any more.
    _scene: Scene,
}

impl Stage {
    /// `None` where the client cannot be had.
    fn new() -> Option<Self> {
        let package = fetched::openai_client()?;
        let scene = Scene::new(PROGRAM);
        let serving = scene.serve(PROGRAM, &["--kv-share", "--api-key", KEY, "--", "-c", "256"]);
        Some(Self { serving, package, _scene: scene })
    }

    fn call_with(&self, key: &str, name: &str, arguments: Value) -> Value {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/openai_client.py");
        let mut client = Command::new("python3");
        client.arg(script).args([&format!("{}/v1", self.serving.address()), key, name]);
        client.env("PYTHONPATH", &self.package).env("NO_PROXY", "*").env("PYTHONDONTWRITEBYTECODE", "1");
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut client = client.spawn().expect("python3 starts");
        client.stdin.take().expect("a pipe").write_all(arguments.to_string().as_bytes()).expect("it is read");
        let output = client.wait_with_output().expect("an end");
        assert!(output.status.success(), "{name}: {}", output.status);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn call(&self, name: &str, arguments: Value) -> Value {
        self.call_with(KEY, name, arguments)
    }

    /// How many handoffs by descriptor there were of which the backend made use.
    fn handed_over(&self) -> f64 {
        let reply = self.serving.reply(self.serving.get("/metrics").bearer_auth(KEY));
        let name = "kvshare_evaluated_tokens_total ";
        let line = reply.body.lines().find_map(|line| line.strip_prefix(name).map(str::parse));
        line.expect("the metric").expect("a number")
    }
}

fn chat() -> Value {
    json!({"model": "any", "messages": [{"role": "user", "content": MOON}], "max_tokens": 30, "temperature": 0})
}

#[test]
fn a_chat_is_answered() {
    let Some(stage) = Stage::new() else { return };
    let answer = stage.call("chat", chat());
    let choice = &answer["choices"][0];
    assert_eq!((&answer["object"], &choice["message"]["role"]), (&json!("chat.completion"), &json!("assistant")));
    assert!(choice["message"]["content"].as_str().is_some_and(|text| text.contains("ball of rock")), "{answer}");
    assert_eq!((&choice["finish_reason"], &answer["usage"]["prompt_tokens"]), (&json!("stop"), &json!(13)), "{answer}");
    assert_eq!(stage.handed_over(), 1.0);
}

#[test]
fn a_streamed_chat_is_the_whole_one_in_pieces() {
    let Some(stage) = Stage::new() else { return };
    let whole = stage.call("chat", chat())["choices"][0]["message"]["content"].clone();
    let mut arguments = chat();
    arguments["stream"] = json!(true);
    arguments["stream_options"] = json!({"include_usage": true});
    let pieces = stage.call("chat", arguments);
    let pieces = pieces.as_array().expect("pieces");
    let text: String = pieces.iter().filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(json!(text), whole);
    assert!(pieces.iter().all(|piece| piece["object"] == "chat.completion.chunk"), "{pieces:?}");
    let ends: Vec<_> = pieces.iter().filter_map(|piece| piece["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!((ends, &pieces.last().unwrap()["usage"]["prompt_tokens"]), (vec!["stop"], &json!(13)));
    assert_eq!(stage.handed_over(), 2.0);
}

#[test]
fn a_text_is_completed_whole_and_streamed() {
    let Some(stage) = Stage::new() else { return };
    let mut arguments = json!({"model": "any", "prompt": "The moon is a big ball", "max_tokens": 4, "temperature": 0});
    let answer = stage.call("completion", arguments.clone());
    let text = answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert!(text.len() > 8, "{answer}");
    assert_eq!(
        (&answer["object"], &answer["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("length"))
    );
    arguments["stream"] = json!(true);
    let pieces = stage.call("completion", arguments);
    let pieces = pieces.as_array().expect("pieces").iter().filter_map(|piece| piece["choices"][0]["text"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    assert_eq!(stage.handed_over(), 2.0);
}

#[test]
fn the_models_are_listed() {
    let Some(stage) = Stage::new() else { return };
    let models = stage.call("models", json!({}));
    let names: Vec<_> = models["data"].as_array().expect("models").iter().map(|model| &model["id"]).collect();
    assert!(matches!(&names[..], [Value::String(name)] if name.contains("kvshare-tiny")), "{models}");
}

#[test]
fn a_refusal_is_the_error_that_the_client_has_for_it() {
    let Some(stage) = Stage::new() else { return };
    let long = json!({"model": "any", "prompt": vec![300; 300]});
    for (key, name, arguments, error, status, words) in [
        ("another key", "chat", chat(), "AuthenticationError", 401, "Invalid API Key"),
        (KEY, "completion", long, "BadRequestError", 400, "context"),
    ] {
        let answer = stage.call_with(key, name, arguments);
        assert_eq!((&answer["error"], &answer["status"]), (&json!(error), &json!(status)), "{answer}");
        assert!(answer["message"].as_str().is_some_and(|message| message.contains(words)), "{answer}");
    }
    assert_eq!(stage.handed_over(), 0.0);
}
