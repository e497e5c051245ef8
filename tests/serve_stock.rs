//! `kvshare-cli serve` in front of a stock llama-server with SmolLM2-135M: the file route, with a true backend and a model
//! made by others.
//!
//! A text is compared with the *warm* text of the same slot: the server's arithmetic in a batch differs a little from that
//! token by token, and a request after a handoff evaluates one token, as a warm one does.

use std::path::PathBuf;

use kvshare_tests::serving::{Reply, Scene, Serving, eventually, runs};
use kvshare_tests::{fetched, smollm2};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const CHATS: &str = "/v1/chat/completions";
const F16: [&str; 2] = ["-fa", "on"];
const QUESTIONS: [&str; 3] = [
    "What is the capital of France?",
    "Write one sentence about a lighthouse in a storm.",
    "Name three fruits, and say of each in a few words what it tastes like. Answer as a list, please.",
];

/// What each test needs, or `None` where it cannot be had.
struct Stock {
    scene: Scene,
    server: PathBuf,
    model: PathBuf,
}

impl Stock {
    fn new() -> Option<Self> {
        let scene = Scene::new(PROGRAM);
        Some(Self { scene, server: fetched::llama_server()?, model: smollm2::path()? })
    }

    /// Starts `serve` with `flags`, and with a llama-server that has `cache`, flags of its cache. It has one thread: several
    /// of them wait for each other by spinning, and on a busy machine that takes seconds a token.
    fn serve(&self, flags: &[&str], cache: &[&str]) -> Serving {
        let (server, model) = (self.server.display().to_string(), self.model.display().to_string());
        let first = ["--backend", &server, "--model", &model];
        let last = ["--", "-t", "1", "-c", "1024", "--no-warmup"];
        Serving::start(self.scene.command(PROGRAM, &[&first, flags, &last, cache].concat()))
    }

    /// The same with the reference provider, which has the server itself prefill.
    fn serve_via_backend(&self, flags: &[&str], cache: &[&str]) -> Serving {
        self.scene.break_provider(&format!("exec '{PROGRAM}' reference-provider --via-backend \"$@\""));
        self.serve(&[&["--prefill-provider", &self.scene.provider()], flags].concat(), cache)
    }
}

fn user(words: &str) -> Value {
    json!({"role": "user", "content": words})
}

fn body(messages: &[Value]) -> Value {
    json!({"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": true, "top_logprobs": 2})
}

fn evaluated(reply: &Value) -> u64 {
    reply["timings"]["prompt_n"].as_u64().unwrap_or_else(|| panic!("timings in {reply}"))
}

/// The reply of a server without a provider from a slot that it has filled itself, cold.
fn warm(plain: &Serving, body: &Value) -> Reply {
    plain.reply(plain.post("/slots/0?action=erase", &json!({})));
    let cold = plain.reply(plain.post(CHATS, body)).json();
    assert_eq!(cold["timings"]["cache_n"], 0, "{cold}");
    let warm = plain.reply(plain.post(CHATS, body));
    assert_eq!(evaluated(&warm.json()), 1, "{warm:?}");
    warm
}

/// The text of a streamed reply, and the prompt tokens that were evaluated for it.
fn streamed(serving: &Serving, body: &Value) -> (String, u64) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let reply = serving.reply(serving.post(CHATS, &body));
    assert_eq!((reply.status, reply.handoff.as_str()), (200, "file"), "{reply:?}");
    let frames: Vec<&str> = reply.body.split("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).collect();
    let (done, frames) = frames.split_last().expect("frames");
    assert_eq!(*done, "[DONE]");
    let frames: Vec<Value> = frames.iter().map(|frame| serde_json::from_str(frame).expect("JSON")).collect();
    let text = frames.iter().filter_map(|frame| frame["choices"][0]["delta"]["content"].as_str()).collect();
    let timings = frames.iter().rfind(|frame| frame["timings"].is_object()).expect("timings");
    (text, evaluated(timings))
}

#[test]
fn from_its_own_rows_the_server_answers_as_from_a_warm_slot() {
    let Some(stock) = Stock::new() else { return };
    let (plain, serving) = (stock.serve(&[], &F16), stock.serve_via_backend(&[], &F16));
    for question in QUESTIONS {
        let mut messages = vec![user(question)];
        for turn in ["And why?", "Thank you!"] {
            let body = body(&messages);
            let expected = warm(&plain, &body).text();
            let reply = serving.reply(serving.post(CHATS, &body));
            assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"), "{reply:?}");
            assert_eq!((reply.text(), evaluated(&reply.json())), (expected.clone(), 1), "{messages:?}");
            assert_eq!(streamed(&serving, &body), (expected.clone(), 1), "{messages:?}");
            messages.extend([json!({"role": "assistant", "content": expected}), user(turn)]);
        }
    }
    assert_eq!(serving.metric("kvshare_handoffs_total{route=\"file\",outcome=\"done\"}"), 12.0);
    assert_eq!(serving.metric("kvshare_evaluated_tokens_total"), 12.0);
}

#[test]
fn the_same_holds_for_transposed_and_for_quantized_caches() {
    let Some(stock) = Stock::new() else { return };
    for cache in [&["-fa", "off"][..], &["-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"]] {
        let (plain, serving) = (stock.serve(&[], cache), stock.serve_via_backend(&[], cache));
        let body = body(&[user(QUESTIONS[2])]);
        let reply = serving.reply(serving.post(CHATS, &body));
        assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"), "{cache:?}: {reply:?}");
        assert_eq!(reply.text(), warm(&plain, &body).text(), "{cache:?}");
    }
}

#[test]
fn a_completion_takes_a_text_or_ids_or_a_list_with_one_of_either() {
    let Some(stock) = Stock::new() else { return };
    let serving = stock.serve_via_backend(&[], &F16);
    let text = "The lighthouse keeper climbed the stairs and";
    let ids = serving.reply(serving.post("/tokenize", &json!({"content": text}))).json()["tokens"].clone();
    let answers = [json!(text), ids.clone(), json!([text]), json!([ids])].map(|prompt| {
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
        let reply = serving.reply(serving.post("/v1/completions", &body));
        assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"), "{prompt}: {reply:?}");
        reply.text()
    });
    assert!(!answers[0].is_empty() && answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

/// The tokens of a reply, and how far its likeliest token is ahead of the next one at each.
fn tokens(reply: &Reply) -> Vec<(String, f64)> {
    let reply = reply.json();
    let tokens = reply["choices"][0]["logprobs"]["content"].as_array().unwrap_or_else(|| panic!("tokens in {reply}"));
    let logprob = |token: &Value, rank: usize| token["top_logprobs"][rank]["logprob"].as_f64().expect("a number");
    tokens.iter().map(|token| (token["token"].to_string(), logprob(token, 0) - logprob(token, 1))).collect()
}

#[test]
fn from_the_reference_providers_rows_it_answers_as_its_own_arithmetic_allows() {
    let Some(stock) = Stock::new() else { return };
    let (plain, serving) =
        (stock.serve(&[], &F16), stock.serve(&["--prefill-provider", &stock.scene.provider()], &F16));
    for question in QUESTIONS {
        let body = body(&[user(question)]);
        let reply = serving.reply(serving.post(CHATS, &body));
        assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"), "{reply:?}");
        let (ours, theirs) = (tokens(&reply), tokens(&warm(&plain, &body)));
        assert_eq!(ours[0].0, theirs[0].0, "the first token to {question:?}");
        // Two correct computations may part where the server itself hardly prefers one token to the other.
        let parted = ours.iter().zip(&theirs).find(|(ours, theirs)| ours.0 != theirs.0);
        assert!(parted.is_none_or(|(_, theirs)| theirs.1 < 0.5), "{question:?}: {ours:?} against {theirs:?}");
    }
}

#[test]
fn without_a_provider_it_is_a_plain_proxy() {
    let Some(stock) = Stock::new() else { return };
    let plain = stock.serve(&[], &F16);
    let words = "no prefill provider is named";
    let lines = plain.lines_until(words);
    assert_eq!(lines.iter().filter(|line| line.contains(words)).count(), 1, "{lines:?}");
    let warm = warm(&plain, &body(&[user(QUESTIONS[0])]));
    assert_eq!((warm.status, warm.handoff.as_str()), (200, ""));
    let direct = address_of(&plain);
    for path in ["/props", "/slots", "/no/such/path"] {
        let through = plain.reply(plain.get(path));
        let straight =
            plain.wait(async { reqwest::get(format!("{direct}{path}")).await.unwrap().text().await.unwrap() });
        assert_eq!(through.body, straight, "{path}");
    }
}

/// Where the server behind `serving` listens.
fn address_of(serving: &Serving) -> String {
    let [backend] = serving.children()[..] else { panic!("one backend") };
    let command = std::fs::read_to_string(format!("/proc/{backend}/cmdline")).expect("a command line");
    let mut words = command.split('\0').skip_while(|word| *word != "--port");
    format!("http://127.0.0.1:{}", words.nth(1).expect("a port"))
}

#[test]
fn a_state_file_that_is_cut_never_reaches_the_server() {
    let Some(stock) = Stock::new() else { return };
    let serving = stock.serve_via_backend(&[], &F16);
    let body = body(&[user(QUESTIONS[0])]);
    let whole = serving.reply(serving.post(CHATS, &body));
    assert_eq!(whole.handoff, "file; evaluated=1");
    serving.lines_until("first byte");
    let backend = serving.children();
    // Cut in the rows, the server would abort.
    for size in ["-1", "-400000", "%300001", "100", "6", "0"] {
        stock.scene.break_provider(&format!(
            "for out; do :; done\n'{PROGRAM}' reference-provider --via-backend \"$@\" && truncate --size='{size}' \"$out\""
        ));
        let reply = serving.reply(serving.post(CHATS, &body));
        assert_eq!(reply.status, 200, "{size}: {reply:?}");
        assert!(reply.handoff.starts_with("none; "), "{size}: {reply:?}");
        let lines = serving.hybrid_until("the provider's state file is refused");
        assert_eq!(lines.len(), 1, "{size}: {lines:?}");
        assert_eq!(serving.children(), backend, "{size}");
    }
    assert_eq!(serving.metric("kvshare_backend_restarts_total"), 0.0);
}

#[test]
fn a_server_that_is_killed_is_a_bad_gateway_and_is_started_again() {
    let Some(stock) = Stock::new() else { return };
    let serving = stock.serve_via_backend(&[], &F16);
    let [backend] = serving.children()[..] else { panic!("one backend") };
    let endless = json!({"prompt": "Once upon a time", "n_predict": 900, "ignore_eos": true});
    let request = serving.post("/completion", &endless);
    let waiting = serving.spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) });
    eventually("the server is at work", || {
        let slots = serving.reply(serving.get("/slots")).json();
        (slots[0]["is_processing"] == true).then_some(())
    });
    kill_process(Pid::from_raw(backend.cast_signed()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(serving.wait(waiting).unwrap().unwrap(), 502);
    serving.lines_until("it is started again");
    assert!(!runs(backend));
    let reply = serving.reply(serving.post(CHATS, &body(&[user(QUESTIONS[0])])));
    assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"), "{reply:?}");
    assert_eq!(serving.metric("kvshare_backend_restarts_total"), 1.0);
}

/// A long answer that the server behind `serving` streams to a client of its own, begun. Dropping it frees the slot.
fn occupied_slot(serving: &Serving) -> reqwest::Response {
    let endless = json!({"prompt": "Once upon a time", "n_predict": 8000, "ignore_eos": true, "stream": true});
    let url = format!("{}/completion", address_of(serving));
    serving.wait(async {
        let call = reqwest::Client::new().post(url).body(endless.to_string());
        let mut answer = call.send().await.expect("an answer");
        answer.chunk().await.expect("a stream").expect("a token");
        answer
    })
}

#[test]
fn a_restore_that_waits_for_a_busy_slot_hangs_no_client() {
    let Some(stock) = Stock::new() else { return };
    // This provider asks the server for nothing, so that the restore is what meets the busy slot.
    let flags = ["--prefill-provider", &stock.scene.provider(), "--timeout", "5"];
    let serving = stock.serve(&flags, &["-fa", "on", "-c", "8192"]);
    let mut body = body(&[user(QUESTIONS[0])]);
    body["max_tokens"] = json!(2);
    let before = serving.reply(serving.post(CHATS, &body));
    assert_eq!((before.status, before.handoff.as_str()), (200, "file; evaluated=1"), "{before:?}");
    serving.lines_until("first byte");

    let occupied = occupied_slot(&serving);
    let reply = serving.reply(serving.post(CHATS, &body));
    // The request as it came would wait for the same slot, so there is no answer but this.
    assert_eq!((reply.status, reply.handoff.as_str()), (502, ""), "{reply:?}");
    let slots = serving.reply(serving.get("/slots")).json();
    assert_eq!(slots[0]["is_processing"], true, "the slot was busy all the time: {slots}");
    let lines = serving.complaints_until("action=restore: nothing came within 5 s");
    let said = "and the request could not be forwarded: the backend did not answer";
    assert!(matches!(&lines[..], [line] if line.contains(said)), "{lines:?}");

    drop(occupied);
    let after = serving.reply(serving.post(CHATS, &body));
    assert_eq!((after.status, after.handoff.as_str(), after.text()), (200, "file; evaluated=1", before.text()));
    assert_eq!(serving.complaints_until("first byte"), [""; 0]);
    assert_eq!(serving.metric("kvshare_backend_restarts_total"), 0.0);
}

#[test]
fn it_is_asked_once_for_its_cache() {
    let Some(stock) = Stock::new() else { return };
    let serving = stock.serve_via_backend(&["--kv-share"], &F16);
    let mut lines = Vec::new();
    for question in QUESTIONS {
        let reply = serving.reply(serving.post(CHATS, &body(&[user(question)])));
        assert_eq!(reply.handoff, "file; evaluated=1", "{reply:?}");
        lines.extend(serving.hybrid_until("first byte"));
    }
    let (said, reports): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.contains("Invalid action"));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(reports.len() == 3 && reports.iter().all(|line| line.contains("share 0.000 ms")), "{reports:?}");
    assert_eq!(serving.metric("kvshare_handoffs_total{route=\"shared\",outcome=\"fell_back\"}"), 1.0);
}
