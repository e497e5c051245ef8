//! Whoever dies or stands still at whichever step of a handoff: the request ends, nothing is left behind, nobody answers
//! from cells that somebody may still write, and the next request is served.

use kvshare_tests::client::{Answer, Client};
use kvshare_tests::meddler::{PASSED, REACHED, SEEN};
use kvshare_tests::serving::{Reply, Scene, Serving, eventually, runs};
use kvshare_tests::traces::{self, Traces};
use rustix::process::{Pid, kill_process};
use table::Fate;

#[path = "death/table.rs"]
mod table;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";
const HANDED_OVER: &str = "shared; evaluated=1";
const FLAGS: [&str; 8] = ["--kv-share", "--timeout", "4", "--prefill-timeout", "3", "--", "-c", "256"];

/// Where in the cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The decoder was asked to share and has not connected.
    WaitingForShare,
    /// Half of its message has come, with the descriptors.
    MessageArriving,
    /// The provider writes into the cells.
    ProviderWriting,
    /// It has said that it is done, and has not exited.
    ProviderDone,
    /// The decoder was asked to adopt and has not.
    Adopting,
    /// The client has the beginning of its answer.
    Completing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Decoder,
    Provider,
    Proxy,
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Kill,
    Stop,
}

impl Step {
    /// Has the next request stand still here, until there is a file `SEEN`.
    fn hold(self, scene: &Scene) {
        let path = |name| scene.path(name).display().to_string();
        match self {
            Self::WaitingForShare => scene.meddle("action=share hold"),
            Self::MessageArriving => scene.meddle("action=share hold-message"),
            Self::ProviderWriting => {
                scene.break_provider(&format!("exec '{PROGRAM}' writer before '{}' \"$@\"", path("")))
            }
            Self::ProviderDone => scene.break_provider(&format!(
                "'{PROGRAM}' reference-provider \"$@\"\n: > '{}'\nwhile [ ! -e '{}' ]; do sleep 0.02; done",
                path(REACHED),
                path(SEEN)
            )),
            Self::Adopting => scene.meddle("action=adopt hold"),
            Self::Completing => scene.meddle("/v1/chat hold-midway"),
        }
    }
}

/// A request that stands still at a step.
struct Held<'a> {
    scene: &'a Scene,
    serving: &'a Serving,
    client: Client,
    /// Where it stands still in the provider.
    provider: Option<u32>,
    /// The text of the right answer.
    text: &'a str,
    name: String,
}

impl Held<'_> {
    fn victim(&self, victim: Victim) -> u32 {
        match victim {
            Victim::Decoder => traces::decoder(self.serving).expect("a decoder"),
            Victim::Provider => self.provider.expect("a provider"),
            Victim::Proxy => self.serving.id(),
            Victim::Client => self.client.id(),
        }
    }

    /// Lets it go on.
    fn release(&self) {
        std::fs::write(self.scene.path(SEEN), "").unwrap();
    }

    /// Waits until those have done their part who do it without the proxy.
    fn others_are_done(&self) {
        eventually(&format!("the others go on: {}", self.name), || match self.provider {
            Some(provider) => (!runs(provider)).then_some(()),
            None => self.scene.path(PASSED).exists().then_some(()),
        });
    }

    /// Waits until the client has what it will get, and compares it with what it should.
    fn ends(self, fate: Fate) {
        let Self { client, provider, text, name, .. } = self;
        let answer = client.answer();
        let Answer { status, route, is_whole, .. } = &answer;
        let is_right = *status == Some(200) && *is_whole && answer.text == text;
        let is_own = is_right && route == "none";
        let is_as_expected = match fate {
            Fate::Shared => is_right && route == "shared",
            Fate::Served => is_right,
            Fate::Own => is_own,
            Fate::OwnOr502 => is_own || *status == Some(502),
            Fate::Is502 => *status == Some(502),
            Fate::Broken => *status == Some(200) && !is_whole && text.starts_with(&answer.text),
            Fate::Cut => !is_whole,
            Fate::Nobody | Fate::None => true,
        };
        assert!(is_as_expected, "{name}: {answer:?} instead of {fate:?}");
        // Whatever was answered, was answered without a writer.
        assert!(*status != Some(200) || provider.is_none_or(|provider| !runs(provider)), "{name}: {answer:?}");
    }
}

/// Each step at which there is such a victim, all at once: most of the time is spent waiting for deadlines.
fn strikes(victim: Victim, signal: Signal) {
    std::thread::scope(|scope| {
        for (step, fate) in table::column(victim, signal) {
            scope.spawn(move || strikes_at(step, victim, signal, fate));
        }
    });
}

fn strikes_at(step: Step, victim: Victim, signal: Signal, fate: Fate) {
    let name = format!("{step:?}: {victim:?}, {signal:?}");
    let scene = Scene::with_meddler(PROGRAM, &[]);
    let mut serving = scene.serve(PROGRAM, &FLAGS);
    let first = serving.ask(MOON);
    assert_eq!(first.handoff, HANDED_OVER, "{name}: {first:?}");
    let text = first.text();
    let before = Traces::of(&scene, &serving).expect("a server, a decoder and a directory");

    step.hold(&scene);
    let client = Client::start(PROGRAM, serving.address());
    eventually(&format!("the step is reached: {name}"), || scene.path(REACHED).exists().then_some(()));
    let provider = traces::provider(&serving);
    let held = Held { scene: &scene, serving: &serving, client, provider, text: &text, name: name.clone() };
    let id = held.victim(victim);
    match signal {
        Signal::Kill => send(id, rustix::process::Signal::KILL),
        Signal::Stop => {
            send(id, rustix::process::Signal::STOP);
            eventually("it stands still", || is_stopped(id).then_some(()));
        }
    }
    let go_on = || send(id, rustix::process::Signal::CONT);

    match (victim, signal) {
        (Victim::Decoder, Signal::Kill) | (Victim::Proxy, Signal::Kill) => {
            held.release();
            held.ends(fate);
        }
        (Victim::Decoder, Signal::Stop) => {
            held.release();
            held.ends(fate);
            go_on();
        }
        (Victim::Provider, _) => held.ends(fate),
        (Victim::Proxy, Signal::Stop) => {
            held.release();
            held.others_are_done();
            go_on();
            held.ends(fate);
        }
        (Victim::Client, Signal::Kill) => {
            serving.lines_until("the client left");
            held.release();
            held.ends(fate);
        }
        (Victim::Client, Signal::Stop) => {
            held.release();
            scene.mend_provider();
            is_served(&serving, &text, victim, &name);
            go_on();
            held.ends(fate);
        }
    }

    scene.mend_provider();
    if (victim, signal) == (Victim::Proxy, Signal::Kill) {
        serving.ended();
        eventually(&format!("all of it is gone: {name}"), || traces::processes(&scene).is_empty().then_some(()));
        serving = scene.serve(PROGRAM, &FLAGS);
    }
    is_served(&serving, &text, victim, &name);
    assert!(provider.is_none_or(|provider| !runs(provider)), "{name}");
    before.are_again(&scene, &serving, &name);
    let received = serving.metric("kvshare_descriptors_received_total");
    assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received, "{name}");
}

/// The next request is answered as the first one was; after the decoder was struck, as soon as that is there again.
fn is_served(serving: &Serving, text: &str, victim: Victim, name: &str) {
    eventually(&format!("the next request is served: {name}"), || {
        let reply = serving.ask(MOON);
        let is_right = reply.status == 200 && reply.text() == text;
        assert!(is_right || reply.status == 502 && victim == Victim::Decoder, "{name}: {reply:?}");
        let is_handed_over = is_right && reply.handoff == HANDED_OVER;
        assert!(is_handed_over || victim == Victim::Decoder, "{name}: {reply:?}");
        is_handed_over.then_some(())
    });
}

fn send(process: u32, signal: rustix::process::Signal) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
}

/// Whether a signal has stopped a process (proc_pid_stat(5)).
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Asks of a provider that is this script and writes nonsense as long as it can, and then of the usual one.
fn writes_late(script: &str, is_as_expected: impl Fn(&Reply, &str) -> bool) {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &FLAGS);
    let text = serving.ask(MOON).text();
    let before = Traces::of(&scene, &serving).expect("a server, a decoder and a directory");
    let writer = format!("'{PROGRAM}' writer");
    let script = script.replace("WRITER", &writer).replace("PROVIDER", &format!("'{PROGRAM}' reference-provider"));
    scene.break_provider(&script.replace("DIR", &scene.path("").display().to_string()));
    let reply = serving.ask(MOON);
    let still_there = traces::processes(&scene).len();
    assert!(scene.path(REACHED).exists(), "it has written");
    assert!(is_as_expected(&reply, &text), "{reply:?}");
    assert_eq!(still_there, 2, "a writer outlived the answer: {reply:?}");
    scene.mend_provider();
    is_served(&serving, &text, Victim::Provider, script.as_str());
    before.are_again(&scene, &serving, &script);
}

#[test]
fn a_provider_that_writes_after_its_result_is_not_believed_before_its_end() {
    writes_late("exec WRITER after DIR \"$@\"", |reply, text| {
        reply.handoff.starts_with("none") && reply.text() == text
    });
}

#[test]
fn a_child_that_writes_on_is_gone_before_the_cells_are_adopted() {
    // What it wrote until then stands in the cells, as whatever a provider writes does.
    let script = "WRITER before DIR \"$@\" & while [ ! -e DIR/reached ]; do sleep 0.02; done; PROVIDER \"$@\"";
    writes_late(script, |reply, _| reply.status == 200);
}

#[test]
fn a_decoder_is_killed() {
    strikes(Victim::Decoder, Signal::Kill);
}

#[test]
fn a_decoder_is_stopped() {
    strikes(Victim::Decoder, Signal::Stop);
}

#[test]
fn a_provider_is_killed() {
    strikes(Victim::Provider, Signal::Kill);
}

#[test]
fn a_provider_is_stopped() {
    strikes(Victim::Provider, Signal::Stop);
}

#[test]
fn a_proxy_is_killed() {
    strikes(Victim::Proxy, Signal::Kill);
}

#[test]
fn a_proxy_is_stopped() {
    strikes(Victim::Proxy, Signal::Stop);
}

#[test]
fn a_client_is_killed() {
    strikes(Victim::Client, Signal::Kill);
}

#[test]
fn a_client_is_stopped() {
    strikes(Victim::Client, Signal::Stop);
}
