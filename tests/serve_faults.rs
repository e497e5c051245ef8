//! Whatever goes wrong with a handoff, the client gets the right answer, the log one line with the reason, nothing is
//! left behind, and the next request is handed over.

use std::path::PathBuf;

use kvshare_tests::serving::{Scene, Serving, chat, eventually, runs};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";
/// The reference provider, in a shell script that has our provider's arguments.
const PROVIDE: &str = concat!("'", env!("CARGO_BIN_EXE_kvshare-parts"), "' reference-provider \"$@\"");

/// What must be as before after each fault.
#[derive(Debug, PartialEq)]
struct Traces {
    processes: Vec<u32>,
    descriptors: usize,
    files: Vec<PathBuf>,
}

fn traces(scene: &Scene, serving: &Serving) -> Traces {
    let [slots] = &scene.leftovers()[..] else { panic!("one slot directory: {:?}", scene.leftovers()) };
    let files = std::fs::read_dir(slots).unwrap().map(|entry| entry.unwrap().path()).collect();
    Traces { processes: serving.children(), descriptors: serving.descriptors(), files }
}

/// Waits until everything is as `before`: what a fault leaves may take a moment to go.
fn nothing_is_left(scene: &Scene, serving: &Serving, before: &Traces, fault: &str) {
    let mut found = None;
    let what = format!("everything is as before {fault}: {before:?}");
    eventually(&what, || {
        let now = traces(scene, serving);
        let is_same = now == *before;
        if found.as_ref() != Some(&now) {
            eprintln!("{fault}: {now:?}");
            found = Some(now);
        }
        is_same.then_some(())
    });
}

/// Shell scripts in a provider's place, each with words of the reason.
fn broken_providers() -> Vec<(String, &'static str)> {
    vec![
        ("exit 3".to_owned(), "exit status 3"),
        ("echo 'no such device' >&2; exit 1".to_owned(), "no such device"),
        ("kill -9 $$".to_owned(), "signal 9"),
        ("exec sleep 1000".to_owned(), "ran past its limit of 2 s"),
        ("true".to_owned(), "printed no result"),
        ("echo nonsense".to_owned(), "nonsense"),
        (r#"echo '{"n_tokens": 1, "argmax": 0}'"#.to_owned(), "prefilled 1 tokens, but was given 12"),
        (format!("{PROVIDE}; echo more"), "more"),
        ("head -c 10000000 /dev/zero | tr '\\0' x; echo; exit 4".to_owned(), "exit status 4"),
        ("head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 5".to_owned(), "exit status 5"),
    ]
}

fn test_broken_providers(flags: &[&str], route: &str) {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &[flags, &["--prefill-timeout", "2", "--", "-c", "256"]].concat());
    let good = format!("{route}; evaluated=1");
    let first = serving.ask(MOON);
    assert_eq!(first.handoff, good);
    serving.lines_until("first byte");
    let before = traces(&scene, &serving);

    let mut faults = broken_providers();
    if route == "file" {
        let result = r#"echo '{"n_tokens": 12, "argmax": 0}'"#;
        let cut = format!("{PROVIDE} > \"$6.out\" && truncate -s -1 \"$6\"; rm \"$6.out\"");
        faults.push((result.to_owned(), "left no state file"));
        faults.push((format!(": > \"$6\"; {result}"), "is refused"));
        faults.push((format!("{cut}; {result}"), "is refused"));
    }
    for (script, reason) in faults {
        scene.break_provider(&script);
        let reply = serving.ask(MOON);
        assert_eq!((reply.status, reply.text()), (200, first.text()), "{script}");
        assert!(reply.handoff.starts_with("none; evaluated="), "{script}: {}", reply.handoff);
        let lines = serving.hybrid_until(reason);
        assert_eq!(lines.len(), 1, "{script}: {lines:?}");
        assert!(lines[0].ends_with("; the backend prefills this request itself"), "{script}: {lines:?}");
        nothing_is_left(&scene, &serving, &before, &script);

        scene.mend_provider();
        let next = serving.ask(MOON);
        assert_eq!((next.handoff.as_str(), next.text()), (good.as_str(), first.text()), "{script}");
        serving.lines_until("first byte");
    }
    nothing_is_left(&scene, &serving, &before, "all");
}

#[test]
fn a_broken_provider_on_the_file_route() {
    test_broken_providers(&[], "file");
}

#[test]
fn a_broken_provider_on_the_shared_route() {
    test_broken_providers(&["--kv-share"], "shared");
}

#[test]
fn a_provider_that_ignores_sigterm_or_leaves_a_grandchild_is_gone_before_the_next_request() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &["--kv-share", "--prefill-timeout", "0.5", "--", "-c", "256"]);
    let first = serving.ask(MOON);
    let before = traces(&scene, &serving);
    let pid = scene.path("pid");
    let note = format!("echo $! > '{}'", pid.display());
    for (script, reason) in [
        (format!("trap '' TERM; sleep 1000 & {note}; while :; do wait; done"), "signal 9"),
        // It holds standard output open, and its parent has ended well, but with nothing to say.
        (format!("sleep 1000 & {note}; exit 0"), "printed no result"),
    ] {
        serving.lines_until("first byte");
        scene.break_provider(&script);
        let reply = serving.ask(MOON);
        assert_eq!((reply.status, reply.text()), (200, first.text()), "{script}");
        let grandchild = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        eventually("the grandchild is gone", || (!runs(grandchild)).then_some(()));
        assert_eq!(serving.hybrid_until(reason).len(), 1, "{script}");
        nothing_is_left(&scene, &serving, &before, &script);
        scene.mend_provider();
        assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
    }
}

#[test]
fn a_provider_that_is_not_there() {
    let scene = Scene::new(PROGRAM);
    for (provider, reason) in [("/no/such/provider", "does not exist"), ("no-such-provider", "no directory of PATH")] {
        for flags in [&[][..], &["--kv-share"]] {
            let backend = scene.path("backend").display().to_string();
            let arguments = ["--prefill-provider", provider, "--backend", &backend];
            let serving = Serving::start(scene.command(PROGRAM, &[&arguments, flags, &["--", "-c", "256"]].concat()));
            let reply = serving.ask(MOON);
            assert_eq!((reply.status, reply.handoff.as_str()), (200, "none; evaluated=13"), "{provider}, {flags:?}");
            assert_eq!(serving.hybrid_until(reason).len(), 1, "{provider}, {flags:?}");
        }
    }
}

#[test]
fn a_decoder_whose_share_goes_wrong_is_handed_a_file() {
    for kind in [
        "never-connects",
        "stalls",
        "dies",
        "huge-length",
        "bad-json",
        "wrong-hash",
        "wrong-digest",
        "missing-descriptor",
        "extra-descriptor",
        "socket-as-region",
        "too-small",
        "unsealed",
    ] {
        let scene = Scene::with_backend(PROGRAM, &["--misbehave", kind]);
        let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
        let before = traces(&scene, &serving);
        for _ in 0..2 {
            let reply = serving.ask(MOON);
            assert_eq!((reply.status, reply.handoff.as_str()), (200, "file; evaluated=1"), "{kind}");
            assert!(reply.text().contains("ball of rock"), "{kind}: {reply:?}");
            let lines = serving.hybrid_until("first byte");
            let [reason, report] = &lines[..] else { panic!("{kind}: {lines:?}") };
            assert!(reason.ends_with("; this request takes the file route"), "{kind}: {reason}");
            assert!(report.contains("share 0.000 ms"), "{kind}: {report}");
        }
        nothing_is_left(&scene, &serving, &before, kind);
        let received = serving.metric("kvshare_descriptors_received_total");
        assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received, "{kind}");
    }
}

#[test]
fn a_decoder_that_refuses_to_adopt_prefills_the_request_itself() {
    let scene = Scene::with_backend(PROGRAM, &["--share-lifetime", "0"]);
    let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    let before = traces(&scene, &serving);
    let reply = serving.ask(MOON);
    assert_eq!((reply.status, reply.handoff.as_str()), (200, "none; evaluated=13"), "{reply:?}");
    assert!(reply.text().contains("ball of rock"), "{reply:?}");
    let lines = serving.hybrid_until("action=adopt with 400");
    assert!(matches!(&lines[..], [line] if line.ends_with("; the backend prefills this request itself")), "{lines:?}");
    nothing_is_left(&scene, &serving, &before, "a refused adopt");
}

#[test]
fn a_client_that_leaves_takes_its_handoff_with_it() {
    let scene = Scene::new(PROGRAM);
    for flags in [&[][..], &["--kv-share"]] {
        let serving = scene.serve(PROGRAM, &[flags, &["--", "-c", "256"]].concat());
        let good = serving.ask(MOON).handoff;
        let before = traces(&scene, &serving);
        let pid = scene.path("pid");
        let _ = std::fs::remove_file(&pid);
        scene.break_provider(&format!("echo $$ > '{}'; exec sleep 1000", pid.display()));
        let request = serving.post("/v1/chat/completions", &chat(MOON));
        let waiting = serving.spawn(async move { request.send().await.map(drop) });
        let provider = eventually("the provider runs", || std::fs::read_to_string(&pid).ok()?.trim().parse().ok());
        waiting.abort();
        eventually("the provider is stopped", || (!runs(provider)).then_some(()));
        nothing_is_left(&scene, &serving, &before, "a client that left");
        scene.mend_provider();
        assert_eq!(serving.ask(MOON).handoff, good, "{flags:?}");
    }
}
