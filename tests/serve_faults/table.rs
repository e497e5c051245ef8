//! The table: a stage, what goes wrong there, and what comes of it.

use kvshare_tests::meddler::REACHED;

/// The reference provider, in a shell script that has our provider's arguments.
pub const PROVIDE: &str = concat!("'", env!("CARGO_BIN_EXE_kvshare-parts"), "' reference-provider \"$@\"");
const RESULT: &str = r#"echo '{"n_tokens": 12, "argmax": 0}'"#;

/// A row of the table.
pub struct Fault {
    pub stage: &'static str,
    pub kind: &'static str,
    pub cause: Cause,
    pub outcome: Outcome,
    /// Words of the one line that says why.
    pub reason: &'static str,
}

pub enum Cause {
    /// The provider is this shell script.
    Provider(String),
    /// The decoder meddles with a call (`meddler.rs`).
    Decoder(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The backend prefills the request itself.
    Own,
    /// The same, if the backend is back in time; else 502.
    OwnOrGateway,
    /// The file route carries it.
    File,
    /// 502.
    Gateway,
    /// The client has a part of its answer, and then an error.
    Broken,
    /// The client leaves when the fault has struck.
    Left,
    /// The client leaves in the middle of its answer.
    LeftMidway,
}

use Cause::{Decoder, Provider};
use Outcome::{Broken, File, Gateway, Left, LeftMidway, Own, OwnOrGateway};

/// A row.
pub fn fault(stage: &'static str, kind: &'static str, cause: Cause, outcome: Outcome, reason: &'static str) -> Fault {
    Fault { stage, kind, cause, outcome, reason }
}

fn provider(kind: &'static str, script: impl Into<String>, reason: &'static str) -> Fault {
    fault("provider", kind, Provider(script.into()), Own, reason)
}

/// Providers that are wrong on either route.
pub fn provider_faults() -> Vec<Fault> {
    let in_background = "sleep 1000 & echo started >&2";
    vec![
        provider("exits 3", "exit 3", "exit status 3"),
        provider("says why", "echo 'no such device' >&2; exit 1", "it said: no such device"),
        provider("is killed", "kill -9 $$", "signal 9"),
        provider("is killed while it writes", ": > rows.tmp; kill -9 $$", "signal 9"),
        provider("hangs", "exec sleep 1000", "ran past its limit of 3 s"),
        provider("ignores SIGTERM", "trap '' TERM; while :; do sleep 0.1; done", "signal 9"),
        // It holds standard output open, and its parent has ended well, but with nothing to say.
        provider("leaves a grandchild", format!("{in_background}; exit 0"), "printed no result"),
        provider("leaves a grandchild and fails", format!("{in_background}; exit 6"), "exit status 6"),
        provider("says nothing", "true", "printed no result"),
        provider("says nonsense", "echo nonsense", "nonsense"),
        provider(
            "prefilled too little",
            r#"echo '{"n_tokens": 1, "argmax": 0}'"#,
            "prefilled 1 tokens, but was given 12",
        ),
        provider("says more after its result", format!("{PROVIDE}; echo more"), "more"),
        provider(
            "has two results",
            format!("{PROVIDE}; echo '{{\"n_tokens\": 5, \"argmax\": 0}}'"),
            "prefilled 5 tokens",
        ),
        provider("prints 10 MB", "head -c 10000000 /dev/zero | tr '\\0' x; echo; exit 4", "exit status 4"),
        provider("complains for 10 MB", "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 5", "exit status 5"),
    ]
}

/// Providers whose state file is wrong.
pub fn state_file_faults() -> Vec<Fault> {
    let cut = format!("{PROVIDE} > result && truncate -s -1 \"$6\"; cat result");
    let file = |kind, script, reason| fault("state file", kind, Provider(script), Own, reason);
    vec![
        file("is missing", RESULT.to_owned(), "left no state file"),
        file("is empty", format!(": > \"$6\"; {RESULT}"), "is refused"),
        file("is cut", cut, "ends inside the V rows"),
        file("is a link", format!("ln -s /etc/passwd \"$6\"; {RESULT}"), "no regular file"),
        file("is of another order", format!("{PROVIDE} --v-trans"), "v_trans of the state file is 1"),
        file("is of another type", format!("{PROVIDE} --type-k f32"), "K of layer 0 is f32 in the state file"),
    ]
}

/// A decoder that shares, and refuses or stalls.
pub fn decoder_refusals() -> Vec<Fault> {
    vec![
        fault("tokenize", "409", Decoder("/tokenize refuse"), Own, "answered /tokenize with 409"),
        fault("tokenize", "stalls", Decoder("/tokenize stall"), Own, "did not answer /tokenize"),
        fault("share", "409", Decoder("action=share refuse"), File, "with 409"),
        fault("share", "stalls", Decoder("action=share stall"), File, "did not answer"),
        fault("share", "memory of a device", Decoder("action=share of-a-device"), Own, "cannot be mapped by the CPU"),
        fault("adopt", "409", Decoder("action=adopt refuse"), Own, "action=adopt with 409 Conflict: somebody meddled"),
        fault("adopt", "stalls", Decoder("action=adopt stall"), Own, "did not answer /slots/0?action=adopt"),
        fault("first byte", "stalls", Decoder("/v1/chat stall"), Gateway, "serve: the backend did not answer"),
        fault("stream", "stalls", Decoder("/v1/chat stall-midway"), Broken, "broke off its answer"),
        fault("stream", "breaks off", Decoder("/v1/chat break-midway"), Broken, "broke off its answer"),
    ]
}

/// The same, of the file route.
pub fn decoder_refusals_of_files() -> Vec<Fault> {
    vec![
        fault("restore", "409", Decoder("action=restore refuse"), Own, "action=restore with 409"),
        fault("restore", "stalls", Decoder("action=restore stall"), Own, "did not answer /slots/0?action=restore"),
    ]
}

/// Ends of a decoder that shares.
pub fn decoder_deaths() -> Vec<Fault> {
    vec![
        fault("share", "dies before the message", Decoder("action=share die"), OwnOrGateway, "action=share"),
        fault("share", "dies after the message", Decoder("action=share die-done"), OwnOrGateway, "action=share"),
        fault("adopt", "dies", Decoder("action=adopt die"), OwnOrGateway, "action=adopt"),
        fault("first byte", "dies", Decoder("/v1/chat die"), Gateway, "serve: the backend did not answer"),
        fault("stream", "dies", Decoder("/v1/chat die-midway"), Broken, "broke off its answer"),
    ]
}

/// Departures that both routes know.
pub fn departures() -> Vec<Fault> {
    let provider = |script: &str| Provider(format!(": > '{{dir}}/{REACHED}'; {script}"));
    vec![
        fault("tokenize", "client leaves", Decoder("/tokenize stall"), Left, "left while its prompt was tokenized"),
        fault("provider", "client leaves", provider("exec sleep 1000"), Left, "left while the provider ran"),
        fault(
            "provider",
            "client leaves, it ignores SIGTERM",
            provider("trap '' TERM; while :; do sleep 0.1; done"),
            Left,
            "ran",
        ),
        fault(
            "first byte",
            "client leaves",
            Decoder("/v1/chat stall"),
            Left,
            "left while the backend evaluated its prompt",
        ),
        fault(
            "stream",
            "client leaves",
            Decoder("/v1/chat stall-midway"),
            LeftMidway,
            "left while its answer was relayed",
        ),
    ]
}

/// Departures that only the shared route knows.
pub fn departures_from_memory() -> Vec<Fault> {
    let (share, adopt) = (Decoder("action=share stall"), Decoder("action=adopt stall"));
    vec![
        fault("share", "client leaves", share, Left, "left while the backend's cache was shared"),
        fault("adopt", "client leaves", adopt, Left, "left while its cells were adopted"),
    ]
}

/// One that only the file route knows.
pub fn departure_from_file() -> Fault {
    let restore = Decoder("action=restore stall");
    fault("restore", "client leaves", restore, Left, "left while its state file was restored")
}
