//! Whatever goes wrong with a handoff, the client gets the right answer or the right error, the log one line with the
//! reason, nothing is left behind, and the next request is served.

use std::path::PathBuf;

use kvshare_tests::meddler::{REACHED, SEEN};
use kvshare_tests::serving::{REPORT, Reply, Scene, Serving, chat, eventually};
use serde_json::json;
use table::Cause::{Decoder, Provider};
use table::Outcome::{Broken, File, Gateway, Left, LeftMidway, OwnOrGateway};
use table::{Fault, PROVIDE, fault};

#[path = "serve_faults/table.rs"]
mod table;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";

/// A server to which faults happen.
struct Setting {
    flags: &'static [&'static str],
    /// Further arguments of its decoder.
    decoder: &'static [&'static str],
    /// How a request goes with which nothing is wrong, and what the log complains of all the same.
    good: &'static str,
    complaint: Option<&'static str>,
}

const BY_FILE: Setting = Setting { flags: &[], decoder: &[], good: "file; evaluated=1", complaint: None };
const SHARED: Setting = Setting { flags: &["--kv-share"], good: "shared; evaluated=1", ..BY_FILE };

/// What must be as before after each fault.
#[derive(Debug, PartialEq)]
struct Traces {
    processes: usize,
    descriptors: usize,
    unix_sockets: usize,
    files: Vec<PathBuf>,
}

fn traces(scene: &Scene, serving: &Serving) -> Traces {
    let [slots] = &scene.leftovers()[..] else { panic!("one slot directory: {:?}", scene.leftovers()) };
    let files = std::fs::read_dir(slots).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (processes, descriptors) = (serving.children().len(), serving.descriptors());
    Traces { processes, descriptors, unix_sockets: serving.unix_sockets(), files }
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

fn strikes(setting: &Setting, faults: Vec<Fault>) {
    let scene = Scene::with_meddler(PROGRAM, setting.decoder);
    let serving = scene.serve(PROGRAM, &[setting.flags, &["--", "-c", "256"]].concat());
    let text = served(setting, &serving, "before all").text();
    let before = traces(&scene, &serving);
    for fault in faults {
        let name = format!("{}: {}", fault.stage, fault.kind);
        let restarts = || serving.metric("kvshare_backend_restarts_total");
        let restarted = restarts();
        match &fault.cause {
            Provider(script) => scene.break_provider(&script.replace("{dir}", &scene.path("").display().to_string())),
            Decoder(call) => scene.meddle(call),
        }
        let outcome = fault.outcome;
        match outcome {
            Broken => is_broken_off(&scene, &serving, &name),
            Left => leaves(&scene, &serving),
            LeftMidway => leaves_midway(&scene, &serving),
            _ => {
                let reply = serving.ask(MOON);
                match reply.status {
                    502 => assert!(matches!(outcome, Gateway | OwnOrGateway), "{name}: {reply:?}"),
                    _ => {
                        assert_eq!((reply.status, reply.text()), (200, text.clone()), "{name}");
                        let by_file = reply.handoff == "file; evaluated=1";
                        let own = reply.handoff.starts_with("none; evaluated=");
                        assert!(if outcome == File { by_file } else { own && outcome != Gateway }, "{name}: {reply:?}");
                    }
                }
            }
        }
        let complaints = serving.complaints_until(fault.reason);
        assert!(matches!(&complaints[..], [line] if line.contains(fault.reason)), "{name}: {complaints:?}");
        if fault.kind.starts_with("dies") {
            // Until its death is noticed, whoever asks gets a bad gateway.
            eventually("the decoder is started again", || (restarts() > restarted).then_some(()));
        }
        scene.mend_provider();
        let _ = (scene.take(REACHED), scene.take(SEEN));
        nothing_is_left(&scene, &serving, &before, &name);
        assert_eq!(served(setting, &serving, &name).text(), text, "{name}");
    }
    nothing_is_left(&scene, &serving, &before, "all");
    let received = serving.metric("kvshare_descriptors_received_total");
    assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received);
}

/// A request with which nothing is wrong.
fn served(setting: &Setting, serving: &Serving, after: &str) -> Reply {
    let reply = serving.ask(MOON);
    assert_eq!((reply.status, reply.handoff.as_str()), (200, setting.good), "after {after}: {reply:?}");
    let complaints = serving.complaints_until(REPORT);
    let as_expected = match (&complaints[..], setting.complaint) {
        ([], None) => true,
        ([line], Some(words)) => line.contains(words),
        _ => false,
    };
    assert!(as_expected, "after {after}: {complaints:?}");
    reply
}

fn streamed(serving: &Serving) -> reqwest::RequestBuilder {
    let mut body = chat(MOON);
    body["stream"] = json!(true);
    serving.post("/v1/chat/completions", &body)
}

fn is_broken_off(scene: &Scene, serving: &Serving, name: &str) {
    let seen = scene.path(SEEN);
    let end = serving.wait(async {
        let mut answer = streamed(serving).send().await.unwrap();
        assert!(answer.chunk().await.unwrap().is_some(), "{name}");
        std::fs::write(seen, "").unwrap();
        loop {
            match answer.chunk().await {
                Ok(Some(_)) => {}
                end => break end,
            }
        }
    });
    assert!(end.is_err(), "{name}: {end:?}");
}

fn leaves(scene: &Scene, serving: &Serving) {
    let request = serving.post("/v1/chat/completions", &chat(MOON));
    let waiting = serving.spawn(async move { request.send().await.map(drop) });
    eventually("the fault strikes", || scene.path(REACHED).exists().then_some(()));
    waiting.abort();
}

fn leaves_midway(scene: &Scene, serving: &Serving) {
    let mut answer = serving.wait(async { streamed(serving).send().await.unwrap() });
    assert!(serving.wait(answer.chunk()).unwrap().is_some());
    eventually("the fault strikes", || scene.path(REACHED).exists().then_some(()));
    serving.wait(async { drop(answer) });
}

#[test]
fn of_the_provider_on_the_file_route() {
    let setting = Setting { flags: &["--prefill-timeout", "3"], ..BY_FILE };
    strikes(&setting, table::provider_faults().into_iter().chain(table::state_file_faults()).collect());
}

#[test]
fn of_the_provider_on_the_shared_route() {
    strikes(&Setting { flags: &["--kv-share", "--prefill-timeout", "3"], ..SHARED }, table::provider_faults());
}

#[test]
fn of_the_decoder_that_refuses_or_stalls() {
    strikes(&Setting { flags: &["--kv-share", "--timeout", "5"], ..SHARED }, table::decoder_refusals());
    strikes(&Setting { flags: &["--timeout", "5"], ..BY_FILE }, table::decoder_refusals_of_files());
}

#[test]
fn of_the_decoder_that_dies() {
    // Each with a server of its own: one that dies again and again is started later and later.
    table::decoder_deaths().into_iter().for_each(|death| strikes(&SHARED, vec![death]));
    strikes(&BY_FILE, vec![fault("restore", "dies", Decoder("action=restore die"), OwnOrGateway, "action=restore")]);
    // It has sent half a message then.
    let complaint = Some("stalled: ");
    let setting = Setting { decoder: &["--misbehave", "stalls"], good: BY_FILE.good, complaint, ..SHARED };
    let during = Decoder("action=share die-done");
    strikes(&setting, vec![fault("share", "dies during the message", during, OwnOrGateway, "action=share")]);
}

#[test]
fn of_the_client_that_leaves() {
    strikes(&SHARED, table::departures().into_iter().chain(table::departures_from_memory()).collect());
    strikes(&BY_FILE, table::departures().into_iter().chain([table::departure_from_file()]).collect());
}

#[test]
fn of_the_client_that_leaves_the_queue() {
    let scene = Scene::with_meddler(PROGRAM, &[]);
    let serving = scene.serve(PROGRAM, &["--", "-c", "256"]);
    let before = traces(&scene, &serving);
    let (reached, seen) = (scene.path(REACHED), scene.path(SEEN));
    let wait = format!(": > '{}'; while [ ! -e '{}' ]; do sleep 0.02; done", reached.display(), seen.display());
    scene.break_provider(&format!("{wait}\nexec {PROVIDE}"));
    let ask = || {
        let request = serving.post("/v1/chat/completions", &chat(MOON));
        serving.spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) })
    };
    let first = ask();
    eventually("the first has the slot", || reached.exists().then_some(()));
    let second = ask();
    eventually("the second waits", || (serving.metric("kvshare_queue_length") == 1.0).then_some(()));
    second.abort();
    let complaints = serving.complaints_until("left");
    assert_eq!(complaints, ["hybrid: the client left while it waited for the slot"]);
    assert_eq!(serving.metric("kvshare_queue_length"), 0.0);
    std::fs::write(seen, "").unwrap();
    assert_eq!(serving.wait(first).unwrap().unwrap(), 200);
    nothing_is_left(&scene, &serving, &before, "a client that left the queue");
}

#[test]
fn of_the_message() {
    for (kind, reason) in [
        ("never-connects", "delivered no cache to the socket within 6 s"),
        ("stalls", "stalled: "),
        ("dies", "closed the connection after"),
        ("huge-length", "4294967295 bytes"),
        ("bad-json", "JSON"),
        ("wrong-hash", "layout"),
        ("wrong-digest", "digest"),
        ("missing-descriptor", "descriptor"),
        ("extra-descriptor", "descriptor"),
        ("socket-as-region", "a socket cannot be a region"),
        ("too-small", "descriptor"),
        ("unsealed", "is not sealed"),
    ] {
        let scene = Scene::with_backend(PROGRAM, &["--misbehave", kind]);
        let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
        let before = traces(&scene, &serving);
        for _ in 0..2 {
            let setting = Setting { good: BY_FILE.good, complaint: Some(reason), ..SHARED };
            assert!(served(&setting, &serving, kind).text().contains("ball of rock"), "{kind}");
        }
        nothing_is_left(&scene, &serving, &before, kind);
        let received = serving.metric("kvshare_descriptors_received_total");
        assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received, "{kind}");
    }
}

#[test]
fn of_a_share_that_has_expired() {
    let scene = Scene::with_backend(PROGRAM, &["--share-lifetime", "0"]);
    let serving = scene.serve(PROGRAM, &["--kv-share", "--", "-c", "256"]);
    let reply = serving.ask(MOON);
    assert_eq!((reply.status, reply.handoff.as_str()), (200, "none; evaluated=13"), "{reply:?}");
    let lines = serving.complaints_until("action=adopt with 400");
    assert!(matches!(&lines[..], [line] if line.ends_with("; the backend prefills this request itself")), "{lines:?}");
}

#[test]
fn of_a_provider_that_is_not_there() {
    let scene = Scene::new(PROGRAM);
    let backend = scene.path("backend").display().to_string();
    for (provider, reason) in [("/no/such/provider", "does not exist"), ("no-such-provider", "no directory of PATH")] {
        for flags in [&[][..], &["--kv-share"]] {
            let arguments = ["--prefill-provider", provider, "--backend", &backend];
            let serving = Serving::start(scene.command(PROGRAM, &[&arguments, flags, &["--", "-c", "256"]].concat()));
            let before = traces(&scene, &serving);
            let reply = serving.ask(MOON);
            assert_eq!((reply.status, reply.handoff.as_str()), (200, "none; evaluated=13"), "{provider}, {flags:?}");
            assert_eq!(serving.complaints_until(reason).len(), 1, "{provider}, {flags:?}");
            nothing_is_left(&scene, &serving, &before, provider);
        }
    }
}
