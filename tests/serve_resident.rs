//! `kvshare-cli serve --resident-provider`: one process for all prompts, which is replaced when it fails and gone with the server.

use kvshare_tests::serving::{Reply, Scene, Serving, chat, eventually, runs};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";
const FLAGS: [&str; 4] = ["--resident-provider", "--", "-c", "256"];

fn shared(flags: &[&'static str]) -> Vec<&'static str> {
    [&["--kv-share"], flags].concat()
}

/// The processes of the server that stay to prefill.
fn providers(serving: &Serving) -> Vec<u32> {
    let is_resident = |id: &u32| {
        let arguments = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == b"--resident")
    };
    serving.children().into_iter().filter(is_resident).collect()
}

fn provider(serving: &Serving) -> u32 {
    eventually("there is one provider", || match providers(serving)[..] {
        [provider] => Some(provider),
        _ => None,
    })
}

fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn one_process_prefills_prompt_after_prompt_by_either_route() {
    let scene = Scene::new(PROGRAM);
    for (flags, handoff) in [(FLAGS.to_vec(), "file; evaluated=1"), (shared(&FLAGS), "shared; evaluated=1")] {
        let serving = scene.serve(PROGRAM, &flags);
        // It is started with the server.
        let first = provider(&serving);
        for question in [MOON, "Why does it rain?", MOON] {
            let reply = serving.ask(question);
            assert_eq!((reply.status, reply.handoff.as_str()), (200, handoff), "{reply:?}");
            if question == MOON {
                assert!(reply.text().contains("ball of rock"), "{reply:?}");
            }
        }
        assert_eq!(providers(&serving), [first]);
        let received = serving.metric("kvshare_descriptors_received_total");
        assert_eq!(serving.metric("kvshare_descriptors_closed_total"), received);
        let complaints = serving.complaints_until("prompt tokens");
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

#[test]
fn a_provider_or_a_decoder_that_died_is_replaced_and_the_next_prompt_handed_over() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &shared(&FLAGS));
    let text = serving.ask(MOON).text();
    let first = provider(&serving);
    send(first, Signal::KILL);
    eventually("it has ended", || (!runs(first)).then_some(()));
    let reply = serving.ask(MOON);
    assert_eq!((reply.text(), reply.handoff.as_str()), (text.clone(), "shared; evaluated=1"));
    let second = provider(&serving);
    assert_ne!(second, first);

    let decoder = serving.children().into_iter().find(|child| *child != second).unwrap();
    send(decoder, Signal::KILL);
    // The new decoder's cache lies in other memory, which the same provider is told of.
    // Whoever asks in between may get a bad gateway, or an answer that nobody handed over.
    let is_handed_over = |reply: &Reply| reply.handoff.starts_with("shared");
    let reply = eventually("the decoder is started again", || Some(serving.ask(MOON)).filter(is_handed_over));
    assert_eq!((reply.text(), reply.handoff.as_str()), (text, "shared; evaluated=1"));
    assert_eq!(provider(&serving), second);
}

#[test]
fn one_that_hangs_is_stopped_at_its_limit_and_started_again() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &shared(&[&["--prefill-timeout", "2"], &FLAGS[..]].concat()));
    let text = serving.ask(MOON).text();
    let first = provider(&serving);
    send(first, Signal::STOP);
    let reply = serving.ask(MOON);
    assert_eq!(reply.text(), text);
    assert!(reply.handoff.starts_with("none; evaluated="), "{reply:?}");
    serving.complaints_until("ran past its limit of 2 s");
    assert!(!runs(first));
    let reply = serving.ask(MOON);
    assert_eq!((reply.text(), reply.handoff.as_str()), (text, "shared; evaluated=1"));
}

#[test]
fn a_client_that_leaves_ends_it_and_the_next_has_a_new_one() {
    let scene = Scene::new(PROGRAM);
    let serving = scene.serve(PROGRAM, &shared(&FLAGS));
    let text = serving.ask(MOON).text();
    let first = provider(&serving);
    send(first, Signal::STOP);
    let received = || serving.metric("kvshare_descriptors_received_total");
    let before = received();
    let request = serving.post("/v1/chat/completions", &chat(MOON));
    let asked = serving.spawn(async move { request.send().await });
    eventually("the provider is asked", || (received() > before).then_some(()));
    asked.abort();
    serving.complaints_until("left while the provider ran");
    eventually("it has ended", || (!runs(first)).then_some(()));
    let reply = serving.ask(MOON);
    assert_eq!((reply.text(), reply.handoff.as_str()), (text, "shared; evaluated=1"));
}

#[test]
fn one_that_cannot_stay_is_said_at_the_start_and_for_each_prompt() {
    let scene = Scene::new(PROGRAM);
    scene.break_provider("echo 'what is --resident?' >&2; exit 2");
    let serving = scene.serve(PROGRAM, &shared(&FLAGS));
    let words = serving.complaints_until("it is started again for the next prompt").join("\n");
    assert!(words.contains("exit status 2") && words.contains("what is --resident?"), "{words}");
    let reply = serving.ask(MOON);
    assert!(reply.text().contains("ball of rock") && reply.handoff.starts_with("none; evaluated="), "{reply:?}");
    let words = serving.complaints_until("exit status 2").join("\n");
    assert!(words.contains("what is --resident?"), "{words}");
    scene.mend_provider();
    assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
}

#[test]
fn it_ends_with_the_server_however_that_ends() {
    let scene = Scene::new(PROGRAM);
    for signal in [Signal::TERM, Signal::KILL] {
        let mut serving = scene.serve(PROGRAM, &shared(&FLAGS));
        assert_eq!(serving.ask(MOON).handoff, "shared; evaluated=1");
        let provider = provider(&serving);
        serving.signal(signal);
        serving.ended();
        eventually("the provider has ended, too", || (!runs(provider)).then_some(()));
    }
}
