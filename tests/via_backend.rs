//! `reference-provider --via-backend`: a provider that has the backend prefill its own slot.

use std::net::TcpListener;
use std::process::{Command, Output};

use kvshare_tests::serving::{Scene, Serving, chat};
use kvshare_tests::spy::{Manner, Spy};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";

fn scene() -> Scene {
    let scene = Scene::new(PROGRAM);
    scene.break_provider(&format!("exec '{PROGRAM}' reference-provider --via-backend \"$@\""));
    scene
}

#[test]
fn its_file_gives_the_backends_own_text() {
    let scene = scene();
    let backend = scene.path("backend").display().to_string();
    let plain = Serving::start(scene.command(PROGRAM, &["--backend", &backend, "--", "-c", "256"]));
    let own = plain.ask(MOON).text();
    let serving = scene.serve(PROGRAM, &["--", "-c", "256"]);
    for _ in 0..2 {
        let reply = serving.ask(MOON);
        assert_eq!((reply.handoff.as_str(), reply.text()), ("file; evaluated=1", own.clone()));
    }
}

#[test]
fn on_the_shared_route_it_says_that_it_has_only_the_other_one() {
    let scene = scene();
    let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    let reply = serving.ask(MOON);
    assert!(reply.status == 200 && reply.handoff.starts_with("none; "), "{reply:?}");
    let lines = serving.hybrid_until("--via-backend takes the file route only");
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn it_asks_for_the_prompt_in_slot_0_with_the_proxys_key() {
    let scene = scene();
    let slots = scene.path("");
    let spy = Spy::start(&slots, Manner::default());
    let (provider, slots) = (scene.provider(), slots.display().to_string());
    let first = ["--prefill-provider", &provider, "--backend-url", &spy.url, "--slot-dir", &slots];
    let serving = Serving::start(scene.command(PROGRAM, &[&first[..], &["--api-key", "secret"]].concat()));
    serving.reply(serving.post("/v1/chat/completions", &chat(MOON)).bearer_auth("secret"));
    let seen = spy.seen();
    // The first is the server's own, which looks at the backend's cache.
    let seen = seen.iter().rfind(|seen| seen.line == "POST /completion").expect("a prefill");
    assert_eq!(seen.headers["authorization"], "Bearer secret");
    let asked = seen.json();
    // All but the last of the spy's six tokens.
    assert_eq!((&asked["prompt"], &asked["id_slot"]), (&json!([300, 301, 302, 303, 304]), &json!(0)));
    serving.hybrid_until("answered /completion with 418");
}

#[test]
fn what_keeps_it_from_a_file_is_said_by_name() {
    let scene = Scene::new(PROGRAM);
    std::fs::write(scene.path("tokens"), "300\n301\n302\n").unwrap();
    let arguments = ["--backend", &scene.path("backend").display().to_string(), "--", "-c", "256"];
    // What this server relays is answered by a backend whose slot directory is another than ours.
    let elsewhere = Serving::start(scene.command(PROGRAM, &arguments));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let spy = Spy::start(&scene.path(""), Manner::default());
    for (url, more, code, words) in [
        (None, &["--out", "a.bin"][..], 2, "needs the backend's address"),
        (Some(""), &["--out", "a.bin"], 2, "needs the backend's address"),
        (Some(spy.url.as_str()), &["--layout", "header", "--fds", "3"], 2, "takes the file route only"),
        (Some(&spy.url), &["--out", "../a.bin"], 2, "no bare filename"),
        (Some(&spy.url), &["--out", "a.bin", "--backend-timeout", "0"], 2, "a number of seconds over 0"),
        (Some(&spy.url), &["--out", "a.bin", "--backend-key", "\n"], 2, "holds a character that no header can"),
        (Some(&spy.url), &["--out", "a.bin"], 1, "answered /completion with 418"),
        (Some("http://127.0.0.1:1"), &["--out", "a.bin"], 1, "Connection refused"),
        (Some(&silent), &["--out", "a.bin", "--backend-timeout", "0.2"], 1, "did not answer /completion"),
        (Some("nowhere"), &["--out", "a.bin"], 1, "relative URL"),
        (Some(elsewhere.address()), &["--out", "a.bin"], 1, "start it with this directory as --slot-save-path"),
    ] {
        let mut provider = Command::new(PROGRAM);
        provider.args(["reference-provider", "--via-backend", "--tokens", "tokens"]).args(more);
        provider.current_dir(scene.path("")).env_remove("ONEBIT_HYBRID_BACKEND_URL").env_remove("LLAMA_API_KEY");
        provider.envs(url.map(|url| ("ONEBIT_HYBRID_BACKEND_URL", url)));
        let Output { status, stdout, stderr } = provider.output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{url:?} {more:?}: {said}");
        assert!(said.contains(words) && stdout.is_empty(), "{url:?} {more:?}: {said}");
    }
}
