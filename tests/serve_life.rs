//! `kvshare-cli serve` from its start to its end: what it refuses, what it survives, and what it leaves behind.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use kvshare_cli::decoder_process::DecoderProcess;
use kvshare_tests::serving::{Scene, Serving, chat, eventually, runs};
use kvshare_tests::spy::{Manner, Spy};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";

/// Runs a server that is not to start.
fn refused(scene: &Scene, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = scene.command(PROGRAM, arguments).output().expect("the program runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn flags_that_a_handoff_does_not_bear_are_refused_by_name() {
    let scene = Scene::new(PROGRAM);
    for flags in [
        &["--parallel", "2"][..],
        &["--mtp"],
        &["--dflash", "x"],
        &["--mmproj", "x.gguf"],
        &["--moe-slots", "8"],
        &["--embedding"],
        &["--reranking"],
        &["--pm"],
        &["--", "-np", "2"],
        &["--", "-c", "256", "--mmproj", "x.gguf"],
    ] {
        let (code, words) = refused(&scene, flags);
        let name = flags.iter().find(|flag| ["-np", "--mmproj"].contains(flag)).unwrap_or(&flags[0]);
        assert_eq!(code, Some(2), "{flags:?}: {words}");
        assert!(words.contains(name) && words.lines().count() == 1, "{flags:?}: {words}");
    }
    assert!(scene.leftovers().is_empty());
}

#[test]
fn the_backends_command_is_not_printed() {
    let (code, words) = refused(&Scene::new(PROGRAM), &["--print-backend"]);
    assert_eq!(code, Some(5), "{words}");
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let scene = Scene::new(PROGRAM);
    let spy = Spy::start(&scene.path(""), Manner { slots: 4, ..Manner::default() });
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (slots, backend) = (scene.path("").display().to_string(), scene.path("backend").display().to_string());
    for (arguments, code, reason) in [
        (&["--backend", "no-such-program"][..], 1, "no directory of PATH holds a program no-such-program"),
        (&["--backend", "/no/such/program"], 1, "/no/such/program does not exist"),
        (&["--backend", "/bin/false"], 1, "the backend ended (exit status 1)"),
        (&["--backend", &backend, "--", "--no-such-flag"], 1, "the backend ended (exit status 2)"),
        (&["--backend", &backend, "--port", &port], 1, "cannot be listened on"),
        (&["--backend-url", &spy.url, "--slot-dir", "/no/such/directory"], 2, "/no/such/directory"),
        (&["--backend-url", &spy.url, "--slot-dir", &slots, "--prefill-provider", "x"], 2, "has 4 slots"),
        (&["--backend-url", "http://127.0.0.1:1", "--slot-dir", &slots], 1, "127.0.0.1:1"),
        (&["--model", "/no/such/model"], 2, "there is no model /no/such/model"),
    ] {
        let (found, words) = refused(&scene, arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {words}");
        assert!(words.contains(reason), "{arguments:?}: {words}");
        assert!(scene.leftovers().is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_slot_directory_is_private_and_goes_with_the_server() {
    for signal in [Signal::TERM, Signal::INT] {
        let scene = Scene::new(PROGRAM);
        let mut serving = scene.serve(PROGRAM, &["--", "-c", "256"]);
        let [directory] = &scene.leftovers()[..] else { panic!("one directory: {:?}", scene.leftovers()) };
        assert_eq!(std::fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(serving.ask(MOON).status, 200);
        let backend = serving.children();
        assert_eq!(backend.len(), 1);
        serving.signal(signal);
        assert_eq!(serving.ended().code(), Some(0));
        assert!(scene.leftovers().is_empty(), "{:?}", scene.leftovers());
        assert!(!runs(backend[0]));
    }
}

#[test]
fn a_signal_ends_a_handoff_and_the_provider_with_it() {
    let scene = Scene::new(PROGRAM);
    let mut serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    scene.break_provider(&format!("echo $$ > '{}'; exec sleep 1000", scene.path("pid").display()));
    let request = serving.post("/v1/chat/completions", &chat(MOON));
    let waiting = serving.spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) });
    let provider =
        eventually("the provider runs", || std::fs::read_to_string(scene.path("pid")).ok()?.trim().parse().ok());
    assert!(runs(provider));
    serving.signal(Signal::TERM);
    assert_eq!(serving.wait(waiting).unwrap().unwrap(), 503);
    assert_eq!(serving.ended().code(), Some(0));
    assert!(!runs(provider));
    assert!(scene.leftovers().is_empty(), "{:?}", scene.leftovers());
}

#[test]
fn backend_and_provider_die_with_a_server_that_is_killed_and_the_next_one_tidies_up() {
    let scene = Scene::new(PROGRAM);
    let mut serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    scene.break_provider(&format!(": > '{}'; exec sleep 1000", scene.path("started").display()));
    let request = serving.post("/v1/chat/completions", &chat(MOON));
    let waiting = serving.spawn(async move { request.send().await.is_ok() });
    eventually("the provider runs", || scene.path("started").exists().then_some(()));
    let [backend, provider] = serving.children()[..] else { panic!("a backend and a provider") };
    serving.signal(Signal::KILL);
    serving.ended();
    assert!(!serving.wait(waiting).unwrap());
    eventually("both die", || (!runs(backend) && !runs(provider)).then_some(()));

    let left = scene.leftovers();
    assert_eq!(left.len(), 1, "{left:?}");
    scene.mend_provider();
    let next = scene.serve(PROGRAM, &["--", "-c", "256"]);
    let other = scene.serve(PROGRAM, &["--", "-c", "256"]);
    let now = scene.leftovers();
    assert!(now.len() == 2 && !now.contains(&left[0]), "one for each server that lives: {now:?}, before {left:?}");
    assert_eq!(
        (next.ask(MOON).handoff, other.ask(MOON).handoff),
        ("file; evaluated=1".into(), "file; evaluated=1".into())
    );
}

/// A provider that leaves a helper which outlives SIGKILL, until the file `released` is there.
fn leave_unkillable_helper(scene: &Scene) {
    let [held, released] = ["held", "released"].map(|name| scene.path(name).display().to_string());
    let wait = format!("while [ ! -e '{held}' ]; do sleep 0.02; done");
    scene.break_provider(&format!("'{PROGRAM}' unkillable '{held}' '{released}' & {wait}; exit 3"));
}

#[test]
fn a_backend_that_somebody_may_still_write_into_is_started_again() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    let first = serving.ask(MOON);
    serving.lines_until("first byte");
    let [backend] = serving.children()[..] else { panic!("one backend") };
    leave_unkillable_helper(&scene);
    let reply = serving.ask(MOON);
    // By a decoder with other memory: nothing of the prompt is there.
    assert_eq!((reply.status, reply.handoff.as_str(), reply.text()), (200, "none; evaluated=13", first.text()));
    assert!(!runs(backend));
    assert_eq!(serving.metric("kvshare_backend_restarts_total"), 1.0);
    let lines = serving.lines_until("still running after SIGKILL");
    assert!(lines.iter().any(|line| line.contains("may still write into its cache; it is started again")), "{lines:?}");
    scene.mend_provider();
    assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
    std::fs::write(scene.path("released"), "").unwrap();
}

#[test]
fn a_backend_of_others_that_somebody_may_still_write_into_is_not_used_again() {
    let scene = Scene::new(PROGRAM);
    let slots = scene.path("").display().to_string();
    let arguments = ["fake-exporter", "--port", "0", "--ctx-size", "256", "--slot-save-path", &slots];
    let decoder = DecoderProcess::start(PROGRAM.as_ref(), arguments.map(Into::into).to_vec()).unwrap();
    let provider = scene.provider();
    let flags =
        ["--kv-share", "--prefill-provider", &provider, "--slot-dir", &slots, "--backend-url", decoder.address()];
    let serving = Serving::start(scene.command(PROGRAM, &flags));
    assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
    leave_unkillable_helper(&scene);
    for path in ["/v1/chat/completions", "/completion"] {
        let reply = serving.reply(serving.post(path, &chat(MOON)));
        assert!(
            reply.status == 503 && reply.body.contains("start the backend and kvshare-cli serve again"),
            "{reply:?}"
        );
    }
    assert_eq!(serving.reply(serving.get("/health")).status, 503);
    serving.lines_until("may still write into its cache");
    std::fs::write(scene.path("released"), "").unwrap();
}

#[test]
fn who_else_can_reach_the_server_is_said_at_the_start() {
    let scene = Scene::new(PROGRAM);
    let backend = scene.path("backend").display().to_string();
    for (flags, words) in [
        (&["--host", "0.0.0.0"][..], Some("can be reached by other machines; anybody there can use the model")),
        (&["--host", "0.0.0.0", "--api-key", "k"], Some("whoever has the key can use the model")),
        (&["--host", "::1"], None),
        (&[], None),
    ] {
        let serving =
            Serving::start(scene.command(PROGRAM, &[flags, &["--backend", &backend, "--", "-c", "256"]].concat()));
        let lines = serving.lines_until("no prefill provider is named");
        drop(serving);
        let warnings: Vec<_> = lines.iter().filter(|line| line.starts_with("serve: warning: ")).collect();
        match words {
            None => assert!(warnings.is_empty(), "{flags:?}: {warnings:?}"),
            Some(words) => assert!(warnings.len() == 1 && warnings[0].contains(words), "{flags:?}: {warnings:?}"),
        }
    }
}

#[test]
fn backend_and_provider_learn_what_they_need_from_their_environment() {
    let scene = Scene::new(PROGRAM);
    let (of_backend, of_provider) = (scene.path("backend-env"), scene.path("provider-env"));
    scene.script("backend", &format!("env > '{}'; exec '{PROGRAM}' fake-exporter \"$@\"", of_backend.display()));
    scene.break_provider(&format!("env > '{}'; exec '{PROGRAM}' reference-provider \"$@\"", of_provider.display()));
    let serving = scene.serve(PROGRAM, &["--kv-share", "--api-key", "secret", "--", "-c", "256"]);
    let request = serving.post("/v1/chat/completions", &chat(MOON)).bearer_auth("secret");
    assert_eq!(serving.reply(request).handoff, "shared; evaluated=1");
    let has = |path, line: &str| std::fs::read_to_string(path).unwrap().lines().any(|found| found == line);
    assert!(has(&of_backend, "ONEBIT_KV_SHARE=1") && has(&of_backend, "LLAMA_API_KEY=secret"));
    let url = std::fs::read_to_string(&of_provider).unwrap();
    let url = url.lines().find_map(|line| line.strip_prefix("ONEBIT_HYBRID_BACKEND_URL=")).unwrap().to_owned();
    assert!(url.starts_with("http://127.0.0.1:") && has(&of_provider, "LLAMA_API_KEY=secret"), "{url}");
}

#[test]
fn settings_come_from_the_environment_too() {
    let scene = Scene::new(PROGRAM);
    let record = scene.path("record");
    scene.break_provider(&format!("echo \"$@\" > '{}'; exec sleep 1000", record.display()));
    let mut command = scene.command(PROGRAM, &["--backend", &scene.path("backend").display().to_string()]);
    command.env("ONEBIT_HYBRID_PREFILL", scene.provider()).env("ONEBIT_HYBRID_ELFS", "/kernels");
    command.env("ONEBIT_HYBRID_PREFILL_TIMEOUT_S", "1").env("ONEBIT_KV_SHARE", "0").args(["--", "-c", "256"]);
    let serving = Serving::start(command);
    assert_eq!(serving.ask(MOON).handoff, "none; evaluated=13");
    serving.lines_until("ran past its limit of 1 s");
    let arguments = std::fs::read_to_string(record).unwrap();
    assert!(arguments.contains(" --fds 3") && arguments.trim_end().ends_with(" --elfs /kernels"), "{arguments}");
}

#[test]
fn health_is_the_backends_and_our_own() {
    let scene = Scene::new(PROGRAM);
    let spy = Spy::start(&scene.path(""), Manner::default());
    let slots = scene.path("").display().to_string();
    let serving = Serving::start(scene.command(PROGRAM, &["--backend-url", &spy.url, "--slot-dir", &slots]));
    let health = || serving.reply(serving.get("/health"));
    let well = health();
    assert_eq!((well.status, well.json()), (200, json!({"status": "ok", "backend": {"status": "ok"}, "waiting": 0})));
    drop(spy);
    let ill = health();
    assert_eq!(ill.status, 503, "{ill:?}");
    assert!(ill.json()["backend"]["status"].as_str().unwrap().contains("did not answer"), "{ill:?}");
}

#[test]
fn a_backend_that_dies_is_started_again() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    let first = serving.ask(MOON).text();
    for restarts in [1.0, 2.0] {
        let [backend] = serving.children()[..] else { panic!("one backend") };
        kill_process(Pid::from_raw(backend.cast_signed()).unwrap(), Signal::KILL).unwrap();
        serving.lines_until("it is started again");
        let next = serving.ask(MOON);
        assert_eq!((next.status, next.handoff.as_str(), next.text()), (200, "shared; evaluated=1", first.clone()));
        assert_eq!(serving.metric("kvshare_backend_restarts_total"), restarts);
        let health = serving.reply(serving.get("/health"));
        assert_eq!((health.status, &health.json()["backend"]["status"]), (200, &json!("ok")));
    }
}

#[test]
fn the_queue_is_bounded_and_in_order() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &["--queue", "2", "--", "-c", "256"]);
    let (gate, order) = (scene.path("gate"), scene.path("order"));
    scene.break_provider(&format!(
        "wc -l < \"$2\" >> '{}'\nwhile [ ! -e '{}' ]; do sleep 0.02; done\nexec '{PROGRAM}' reference-provider \"$@\"",
        order.display(),
        gate.display()
    ));
    let body = |length: u64| json!({"prompt": vec![300; length as usize], "max_tokens": 1});
    let ask = |length| serving.post("/v1/completions", &body(length));
    let mut waiting = Vec::new();
    for (length, queued) in [(10, 0.0), (11, 1.0), (12, 2.0)] {
        let request = ask(length);
        waiting.push(serving.spawn(async move { request.send().await.unwrap().status().as_u16() }));
        // Each has its place before the next one asks.
        eventually("it has its place", || {
            let has_begun = order.exists();
            (has_begun && serving.metric("kvshare_queue_length") == queued).then_some(())
        });
    }
    let refused = serving.reply(ask(13));
    assert_eq!((refused.status, refused.retry_after.as_deref()), (503, Some("1")), "{refused:?}");
    std::fs::write(gate, "").unwrap();
    for request in waiting {
        assert_eq!(serving.wait(request).unwrap(), 200);
    }
    let order = std::fs::read_to_string(order).unwrap();
    assert_eq!(order.split_whitespace().collect::<Vec<_>>(), ["9", "10", "11"]);
}

#[test]
fn the_provider_waits_for_its_lock() {
    let scene = Scene::new(PROGRAM);
    let path = scene.path("device.lock");
    let lock = path.display().to_string();
    let serving = scene.serve(PROGRAM, &["--provider-lock", &lock, "--prefill-timeout", "2", "--", "-c", "256"]);
    assert_eq!(serving.ask(MOON).handoff, "file; evaluated=1");
    let held = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(serving.ask(MOON).handoff.starts_with("none"));
    serving.hybrid_until("device.lock was held by somebody else");
    drop(held);
    assert_eq!(serving.ask(MOON).handoff, "file; evaluated=1");
}
