//! `kvshare-cli serve`: what reaches the backend, what reaches the client, and what the log says of it.

use kvshare_tests::meddler::DEVICE_MEMORY;
use kvshare_tests::serving::{Scene, Serving, chat, eventually};
use kvshare_tests::spy::{Manner, SHARE_ID, Spy};
use kvshare_tests::terminal::Terminal;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";
const CONTEXT: [&str; 3] = ["--", "-c", "256"];

/// A line's words, every time in it replaced by `_`.
fn without_times(line: &str) -> String {
    let is_number = |word: &&str| word.parse::<f64>().is_ok();
    let mut words: Vec<&str> = line.split(' ').collect();
    for index in 1..words.len() {
        if words[index].starts_with("ms") && is_number(&words[index - 1]) && words[index - 1] != "0.000" {
            words[index - 1] = "_";
        }
    }
    words.join(" ")
}

/// The text that the decoder generates itself.
fn own_text(scene: &Scene) -> String {
    let backend = scene.path("backend").display().to_string();
    let plain = Serving::start(scene.command(PROGRAM, &[&["--backend", &backend], &CONTEXT[..]].concat()));
    let reply = plain.ask(MOON);
    assert_eq!((reply.status, reply.handoff.as_str()), (200, ""));
    let words = "no prefill provider is named";
    let lines = plain.lines_until(words);
    assert_eq!(lines.iter().filter(|line| line.contains(words)).count(), 1, "{lines:?}");
    reply.text()
}

#[test]
fn a_chat_is_answered_alike_by_every_route() {
    let scene = Scene::new(PROGRAM);
    let own = own_text(&scene);
    assert!(own.contains("ball of rock"), "{own}");
    for (flags, route, line) in [
        (&[][..], "file", "hybrid: 13 prompt tokens: prefill _ ms, restore _ ms, first byte _ ms"),
        (&["--kv-share"], "shared", "hybrid: 13 prompt tokens: share _ ms, prefill _ ms, adopt _ ms, first byte _ ms"),
    ] {
        let serving = scene.serve(PROGRAM, &[flags, &CONTEXT].concat());
        for _ in 0..2 {
            let reply = serving.ask(MOON);
            assert_eq!((reply.status, reply.text()), (200, own.clone()), "{route}");
            assert_eq!(reply.handoff, format!("{route}; evaluated=1"));
            let lines = serving.hybrid_until("first byte");
            assert_eq!(lines.iter().map(|line| without_times(line)).collect::<Vec<_>>(), [line]);
        }
        assert_eq!(serving.metric(&format!("kvshare_handoffs_total{{route=\"{route}\",outcome=\"done\"}}")), 2.0);
        assert_eq!(serving.metric("kvshare_wasted_handoffs_total"), 0.0);
        assert_eq!(serving.metric("kvshare_copied_bytes_total") == 0.0, route == "shared");
        assert_eq!(serving.metric("kvshare_shared_bytes_total") == 0.0, route == "file");
        let received = serving.metric("kvshare_descriptors_received_total");
        assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received);
    }
}

/// Memory that the CPU cannot map reaches a provider as it left the decoder, and the handoff goes on as any other.
#[test]
fn memory_of_a_device_passes_through_untouched() {
    let scene = Scene::with_meddler(PROGRAM, &[]);
    let serving = scene.serve(PROGRAM, &[&["--kv-share"], &CONTEXT[..]].concat());
    assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
    // A provider that knows the device would write there; this one looks only.
    let seen = scene.path("seen-memory");
    scene.break_provider(&format!(
        "readlink /proc/self/fd/3 > '{}'; echo \"{{\\\"n_tokens\\\": $(wc -l < \"$2\"), \\\"argmax\\\": 0}}\"",
        seen.display()
    ));
    scene.meddle("action=share of-a-device");
    let reply = serving.ask(MOON);
    assert_eq!((reply.status, reply.handoff.as_str()), (200, "shared; evaluated=1"), "{reply:?}");
    assert_eq!(std::fs::read_to_string(seen).unwrap(), format!("{DEVICE_MEMORY}\n"));
    let received = serving.metric("kvshare_descriptors_received_total");
    assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received);
    // Nothing was written into the decoder's own cells, and nothing of this prompt's is left in them.
    scene.mend_provider();
    assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
}

#[test]
fn a_stream_has_the_same_text_piece_by_piece() {
    let scene = Scene::new(PROGRAM);
    let own = own_text(&scene);
    let serving = scene.serve(PROGRAM, &[&["--kv-share"], &CONTEXT[..]].concat());
    let mut body = chat(MOON);
    body["stream"] = json!(true);
    let (handoff, pieces) = serving.wait(async {
        let mut response = serving.post("/v1/chat/completions", &body).send().await.unwrap();
        let handoff = response.headers()["x-kvshare-handoff"].to_str().unwrap().to_owned();
        let mut pieces = Vec::new();
        while let Some(piece) = response.chunk().await.unwrap() {
            pieces.push(String::from_utf8(piece.to_vec()).unwrap());
        }
        (handoff, pieces)
    });
    assert_eq!(handoff, "shared");
    let whole = pieces.concat();
    let frames = whole.split("\n\n").filter_map(|frame| frame.strip_prefix("data: "));
    let frames: Vec<Value> = frames.filter_map(|frame| serde_json::from_str(frame).ok()).collect();
    let text: String = frames.iter().filter_map(|frame| frame["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, own);
    assert!(whole.ends_with("data: [DONE]\n\n"), "{whole}");
    assert!(pieces.len() > 1, "it came at once: {pieces:?}");
    assert_eq!(serving.metric("kvshare_evaluated_tokens_total"), 1.0);
}

#[test]
fn a_completion_takes_a_text_or_ids_or_a_list_with_one_of_either() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &CONTEXT);
    let text = "The moon is a big ball";
    let tokens = serving.reply(serving.post("/tokenize", &json!({"content": text}))).json()["tokens"].clone();
    let first = serving.reply(serving.post("/v1/completions", &json!({"prompt": text, "max_tokens": 8})));
    assert_eq!(first.handoff, "file; evaluated=1");
    // The stand-in takes no lists of prompts, which a llama-server does; so only what is handed over is looked at.
    let reply = serving.reply(serving.post("/v1/completions", &json!({"prompt": tokens, "max_tokens": 8})));
    assert_eq!((reply.handoff.as_str(), reply.text()), ("file; evaluated=1", first.text()));
    for prompt in [json!([text]), json!([tokens])] {
        let reply = serving.reply(serving.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 8})));
        assert_eq!(reply.handoff, "file", "{reply:?}");
    }
}

#[test]
fn a_decoder_that_never_shares_is_asked_once_and_the_log_says_so_once() {
    for (sharing, words) in [("off", "501"), ("unknown", "Invalid action")] {
        let scene = Scene::with_backend(PROGRAM, &["--sharing", sharing]);
        let mut command = scene.command(PROGRAM, &["--prefill-provider", &scene.provider()]);
        // 0 turns it on, too.
        command.env("ONEBIT_KV_SHARE", "0").arg("--backend").arg(scene.path("backend")).args(CONTEXT);
        let serving = Serving::start(command);
        let mut lines = Vec::new();
        for _ in 0..3 {
            assert_eq!(serving.ask(MOON).handoff, "file; evaluated=1");
            lines.extend(serving.hybrid_until("first byte"));
        }
        let (said, reports): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.contains(words));
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(reports.len(), 3, "{reports:?}");
        let report = "hybrid: 13 prompt tokens: share 0.000 ms, prefill _ ms, restore _ ms, first byte _ ms";
        assert!(reports.iter().all(|line| without_times(line) == report), "{reports:?}");
    }
}

/// A server in front of a spy, with a provider that writes the embedded model's cache.
fn before_a_spy(scene: &Scene, manner: Manner, flags: &[&str]) -> (Spy, Serving) {
    let slots = scene.path("");
    let spy = Spy::start(&slots, manner);
    let (provider, slots) = (scene.provider(), slots.display().to_string());
    let first = ["--prefill-provider", &provider, "--backend-url", &spy.url, "--slot-dir", &slots];
    let serving = Serving::start(scene.command(PROGRAM, &[&first, flags].concat()));
    spy.seen();
    (spy, serving)
}

#[test]
fn the_backend_is_asked_in_the_right_order_for_the_right_things() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner::default(), &["--elfs", "/kernels"]);
    let record = scene.path("record");
    scene.break_provider(&format!(
        "{{ pwd; echo \"$ONEBIT_HYBRID_BACKEND_URL\"; echo \"$@\"; cat \"$2\"; }} > '{}'\nexec '{PROGRAM}' reference-provider \"$@\"",
        record.display()
    ));
    let mut body = chat(MOON);
    body["seed"] = json!(u64::MAX);
    let reply = serving.reply(serving.post("/v1/chat/completions", &body));
    assert_eq!((reply.status, reply.handoff.as_str(), reply.text().as_str()), (200, "file; evaluated=1", "an answer"));

    let seen = spy.seen();
    let lines: Vec<_> = seen.iter().map(|seen| seen.line.as_str()).collect();
    let expected = ["/apply-template", "/tokenize", "/slots/0?action=restore", "/v1/chat/completions"];
    assert_eq!(lines, expected.map(|path| format!("POST {path}")));
    assert_eq!(seen[0].json(), body);
    assert_eq!(seen[1].json(), json!({"content": "a prompt", "add_special": true, "parse_special": true}));
    let file = seen[2].json()["filename"].as_str().unwrap().to_owned();
    assert_eq!(seen[2].json(), json!({"filename": file, "leave_one_token": true}));
    body["id_slot"] = json!(0);
    body["cache_prompt"] = json!(true);
    assert_eq!(seen[3].json(), body);

    let record = std::fs::read_to_string(record).unwrap();
    let mut record = record.lines();
    assert_eq!(std::path::Path::new(record.next().unwrap()), scene.path("").canonicalize().unwrap());
    assert_eq!(record.next(), Some(spy.url.as_str()));
    let arguments: Vec<_> = record.next().unwrap().split(' ').collect();
    let model = scene.model().display().to_string();
    assert_eq!([arguments[0], arguments[2], arguments[3]], ["--tokens", "--model", &model]);
    assert_eq!(arguments[4..], ["--out", &file, "--elfs", "/kernels"]);
    assert_eq!(record.collect::<Vec<_>>(), ["300", "301", "302", "303", "304"], "all ids but the last");
    assert!(!scene.path(&file).exists());
}

#[test]
fn a_share_is_adopted_by_its_number_and_for_all_ids_but_the_last() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner { shares: true, ..Manner::default() }, &["--kv-share"]);
    let record = scene.path("record");
    // It writes nothing: the spy looks at no row.
    scene.break_provider(&format!(
        "echo \"$3 $5 $7\" > '{}'\necho '{{\"n_tokens\": 5, \"argmax\": 1}}'",
        record.display()
    ));
    let mut body = chat(MOON);
    let reply = serving.reply(serving.post("/v1/chat/completions", &body));
    assert_eq!(
        (reply.status, reply.handoff.as_str(), reply.text().as_str()),
        (200, "shared; evaluated=1", "an answer")
    );
    assert_eq!(std::fs::read_to_string(record).unwrap(), "--model --layout --fds\n");

    let seen = spy.seen();
    let lines: Vec<_> = seen.iter().map(|seen| seen.line.as_str()).collect();
    let expected =
        ["/apply-template", "/tokenize", "/slots/0?action=share", "/slots/0?action=adopt", "/v1/chat/completions"];
    assert_eq!(lines, expected.map(|path| format!("POST {path}")));
    let adopted = json!({"share_id": SHARE_ID, "tokens": [300, 301, 302, 303, 304], "leave_one_token": true});
    assert_eq!(seen[3].json(), adopted);
    body["id_slot"] = json!(0);
    body["cache_prompt"] = json!(true);
    assert_eq!(seen[4].json(), body);
}

#[test]
fn what_cannot_be_handed_over_is_forwarded_as_it_came_with_its_reason() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner { evaluated: 9, ..Manner::default() }, &[]);
    let (chats, texts) = ("/v1/chat/completions", "/v1/completions");
    let long = format!(r#"{{"prompt": {:?}}}"#, vec![1; 64]);
    for (path, body, reason) in [
        (chats, "no JSON", "is not a JSON object"),
        (chats, r#"{"messages": []}"#, "has no text prompt"),
        (chats, r#"{"messages": [{"content": [{"type": "image_url"}]}]}"#, "image_url"),
        (texts, r#"{"prompt" :"a prompt", "n":2}"#, "n = 2"),
        (texts, r#"{"prompt": ["a", "b"]}"#, "2 prompts"),
        (texts, r#"{"prompt": "x"}"#, "has 1 token,"),
        (texts, &long, "has 64 tokens, and the context 64"),
    ] {
        let reply = serving.reply(serving.post_bytes(path, body.to_owned()));
        assert_eq!((reply.status, reply.handoff.as_str()), (200, "none; evaluated=9"), "{body}");
        let last = spy.seen().pop().unwrap();
        assert_eq!((last.line, &last.body[..]), (format!("POST {path}"), body.as_bytes()));
        let lines = serving.hybrid_until(reason);
        assert!(
            matches!(&lines[..], [line] if line.ends_with("; the backend prefills this request itself")),
            "{lines:?}"
        );
    }
    assert_eq!(serving.metric("kvshare_wasted_handoffs_total"), 0.0);
}

#[test]
fn everything_else_passes_as_it_is() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner::default(), &[]);
    let call = serving.post_bytes("/some/path?a=%20b&c", "\0\u{1}any bytes").header("x-mine", "1").header("te", "x");
    let (status, headers, body) = serving.wait(async {
        let response = call.send().await.unwrap();
        (response.status(), response.headers().clone(), response.text().await.unwrap())
    });
    assert_eq!((status.as_u16(), body.as_str()), (418, "POST /some/path?a=%20b&c"));
    assert_eq!(headers["x-backend"], "spy");
    let [seen] = &spy.seen()[..] else { panic!("one request") };
    assert_eq!((&seen.body[..], &seen.headers["x-mine"]), (&b"\0\x01any bytes"[..], &"1".parse().unwrap()));
    assert!(!seen.headers.contains_key("te") && spy.url.ends_with(seen.headers["host"].to_str().unwrap()));
}

#[test]
fn nobody_touches_the_slots_behind_a_handoff() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner::default(), &[]);
    for path in [
        "/slots/0?action=save",
        "/slots/0?action=restore",
        "/slots/0?action=erase",
        "/slots/0?action=share",
        "/slots/0?action=adopt",
        "/slots/7",
        "/%73lots/0?action=erase",
        "/v1/../slots/0?action=erase",
        "/v1/..%2f../slots/0?action=erase",
    ] {
        // By hand: a client would resolve the dots itself.
        let head = "HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let reply = serving.raw(&format!("POST {path} {head}"));
        assert!(reply.contains("403 Forbidden") && reply.contains("permission_error"), "{path}: {reply}");
    }
    assert!(spy.seen().is_empty(), "nothing of it reached the backend");
    assert_eq!(serving.reply(serving.get("/slots")).status, 418, "questions are relayed");
    assert_eq!(spy.seen()[0].line, "GET /slots");
}

#[test]
fn a_handoff_that_the_backend_made_no_use_of_is_said_to_be_wasted() {
    for stream in [false, true] {
        let scene = Scene::new(PROGRAM);
        let (_spy, serving) = before_a_spy(&scene, Manner { evaluated: 6, ..Manner::default() }, &[]);
        let mut body = chat(MOON);
        body["stream"] = json!(stream);
        let reply = serving.reply(serving.post("/v1/chat/completions", &body));
        assert_eq!(reply.handoff, if stream { "file" } else { "file; evaluated=6" });
        let words = "hybrid: warning: the handoff was wasted: the backend evaluated 6 prompt tokens instead of 1";
        assert!(serving.hybrid_until(words).contains(&words.to_owned()));
        assert_eq!(serving.metric("kvshare_wasted_handoffs_total"), 1.0);
    }
}

#[test]
fn a_restore_that_read_too_little_empties_the_slot_and_forwards_the_request() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner { restored: Some(4), ..Manner::default() }, &[]);
    assert_eq!(serving.ask(MOON).handoff, "none; evaluated=1");
    let lines = serving.hybrid_until("restored 4 tokens of 5");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let seen = spy.seen();
    assert_eq!(seen[3].line, "POST /slots/0?action=erase");
    assert_eq!(seen[4].json(), chat(MOON));
}

#[test]
fn whoever_has_no_key_gets_nothing() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner::default(), &["--api-key", "secret"]);
    for key in ["", "Bearer", "Bearer wrong!", "secret"] {
        let reply = serving.reply(serving.post("/v1/chat/completions", &chat(MOON)).header("authorization", key));
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (401, &json!("Invalid API Key")), "{key}");
    }
    assert!(spy.seen().is_empty());
    let reply = serving.reply(serving.post("/v1/chat/completions", &chat(MOON)).bearer_auth("secret"));
    assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"));
    assert!(spy.seen().iter().all(|seen| seen.headers["authorization"] == "Bearer secret"));
    assert_eq!(serving.reply(serving.get("/health")).status, 200);
}

#[test]
fn one_of_several_keys_is_enough() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner::default(), &["--api-key", "first,second,"]);
    for (key, status) in [("first", 200), ("second", 200), ("first,second", 401), ("third", 401), ("", 401)] {
        let call = serving.post("/v1/completions", &json!({"prompt": [1, 2, 3]})).bearer_auth(key);
        assert_eq!(serving.reply(call).status, status, "{key}");
    }
    let own: Vec<_> = spy.seen().into_iter().filter(|seen| seen.line.contains("action=")).collect();
    assert!(!own.is_empty() && own.iter().all(|seen| seen.headers["authorization"] == "Bearer first"));
}

#[test]
fn the_log_can_be_json() {
    let scene = Scene::new(PROGRAM);
    let (_spy, serving) = before_a_spy(&scene, Manner::default(), &["--log-format", "json"]);
    serving.ask(MOON);
    let lines = serving.lines_until("first byte");
    let records: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let record = records.iter().find(|record| record["event"] == "handed_over").unwrap();
    assert_eq!((&record["route"], &record["prompt_tokens"]), (&json!("file"), &json!(6)));
    assert!(record["message"].as_str().unwrap().starts_with("hybrid: 6 prompt tokens: "), "{record}");
}

/// How the stand-in's only line begins, which has the same standard error.
const BACKENDS_OWN: &str = "listening on ";

/// Has the provider say how far it is and something else, each when the scene has a file of that name.
fn have_it_tell_its_progress(scene: &Scene) {
    let dir = scene.path("").display().to_string();
    scene.break_provider(&format!(
        "say() {{ while [ ! -e \"{dir}/$1\" ]; do sleep 0.02; done; echo \"$2\" >&2; }}\n\
         say begin 'progress: 0.42'\nsay speak 'the device is warm'\nsay go-on 'progress: 0.9'\nsay end 'progress: 1'\n\
         exec '{PROGRAM}' reference-provider \"$@\""
    ));
}

#[test]
fn a_terminal_shows_how_far_the_prefill_is_and_nothing_of_it_afterwards() {
    let scene = Scene::new(PROGRAM);
    have_it_tell_its_progress(&scene);
    let (terminal, end) = Terminal::open();
    let (provider, backend) = (scene.provider(), scene.path("backend").display().to_string());
    let first = ["--prefill-provider", &provider, "--backend", &backend];
    let mut command = scene.command(PROGRAM, &[&first, &CONTEXT[..]].concat());
    command.stderr(end).env("TERM", "xterm");
    let serving = Serving::start(command);
    let request = serving.post("/v1/chat/completions", &chat(MOON));
    let answer = serving.spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) });
    let go = |name: &str| std::fs::write(scene.path(name), "").unwrap();
    let shows = |wanted: &[&str]| {
        let mut seen: Vec<String> = Vec::new();
        eventually(&format!("a terminal shows {wanted:?}"), || {
            seen = terminal.lines().into_iter().filter(|line| !line.starts_with(BACKENDS_OWN)).collect();
            let matches = |(line, wanted): (&String, &&str)| match wanted.strip_suffix('%') {
                // The bar is as wide as the terminal lets it.
                Some(_) => line.starts_with("prefill ") && line.ends_with(wanted) && line.chars().count() == 80,
                None => without_times(line) == **wanted,
            };
            (seen.len() == wanted.len() && seen.iter().zip(wanted).all(matches)).then_some(())
        });
    };
    shows(&[]);
    go("begin");
    shows(&[" 42 %"]);
    go("speak");
    shows(&["provider: the device is warm", " 42 %"]);
    go("go-on");
    shows(&["provider: the device is warm", " 90 %"]);
    go("end");
    let report = "hybrid: 13 prompt tokens: prefill _ ms, restore _ ms, first byte _ ms";
    shows(&["provider: the device is warm", report]);
    assert_eq!(serving.wait(answer).unwrap().unwrap(), 200);
}

#[test]
fn what_is_no_terminal_gets_the_providers_lines_as_they_are() {
    let scene = Scene::new(PROGRAM);
    have_it_tell_its_progress(&scene);
    for name in ["begin", "speak", "go-on", "end"] {
        std::fs::write(scene.path(name), "").unwrap();
    }
    let serving = scene.serve(PROGRAM, &CONTEXT);
    assert_eq!(serving.ask(MOON).status, 200);
    let lines = serving.lines_until("first byte");
    let lines = lines.iter().filter(|line| !line.starts_with(BACKENDS_OWN)).map(|line| without_times(line));
    let said = ["progress: 0.42", "the device is warm", "progress: 0.9", "progress: 1"]
        .map(|line| format!("provider: {line}"));
    let report = "hybrid: 13 prompt tokens: prefill _ ms, restore _ ms, first byte _ ms";
    assert_eq!(lines.collect::<Vec<_>>(), [&said[..], &[report.to_owned()]].concat());
}

#[test]
fn bodies_are_bounded() {
    let scene = Scene::new(PROGRAM);
    let (spy, serving) = before_a_spy(&scene, Manner::default(), &["--max-body", "1"]);
    let reply = serving.reply(serving.post_bytes("/v1/completions", vec![b' '; (1 << 20) + 1]));
    assert_eq!(reply.status, 413, "{reply:?}");
    assert!(spy.seen().is_empty());
}
