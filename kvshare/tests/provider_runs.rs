//! A proxy runs a provider: whatever it does, the run ends in time, says why, and leaves no process behind.

use std::path::Path;
use std::time::Duration;

use kvshare::fd::SpawnError;
use kvshare::handoff::{Cancel, Destination, Ending, ProviderFailure, ProviderProgram, ProviderReport};

const RESULT: &str = r#"echo '{"n_tokens": 2, "argmax": 7}'"#;

/// A provider that is a shell script; its arguments are `$1` and up.
fn script(script: &str) -> ProviderProgram {
    let leading_arguments = ["-c", script, "provider"].map(Into::into).to_vec();
    ProviderProgram { leading_arguments, ..ProviderProgram::new("/bin/sh", "model.gguf") }
}

struct Run {
    outcome: Result<ProviderReport, ProviderFailure>,
    log: Vec<String>,
    directory: tempfile::TempDir,
}

fn run_with(provider: &ProviderProgram, cancel: Option<&Cancel>) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Vec::new();
    let destination = Destination::File { name: "state.bin" };
    let outcome = provider.run(&[1, 2], destination, directory.path(), cancel, &mut |line| log.push(line.to_owned()));
    Run { outcome, log, directory }
}

fn run(provider: &ProviderProgram) -> Run {
    run_with(provider, None)
}

fn entries(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Whether the process that a script wrote the id of is gone: reaped, or a zombie that its new parent has yet to reap.
fn is_gone(pid_file: &Path) -> bool {
    let pid = std::fs::read_to_string(pid_file).unwrap();
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_provider_gets_the_contracts_arguments_and_its_result_is_read() {
    let mut provider = script(&format!(r#"echo "$@" >&2; cat "$2" >&2; pwd >&2; echo "$MARK" >&2; {RESULT}"#));
    provider.elfs = Some("/elfs".into());
    provider.environment = vec![("MARK".into(), "from the proxy".into())];
    let run = run(&provider);
    assert_eq!(run.outcome.unwrap().result.argmax, 7);
    let model = std::path::absolute("model.gguf").unwrap();
    let [arguments, first, second, directory, mark] = &run.log[..] else { panic!("{:?}", run.log) };
    let expected = format!(" --model {} --out state.bin --elfs /elfs", model.display());
    assert!(arguments.starts_with("--tokens ") && arguments.ends_with(&expected), "{arguments}");
    assert_eq!((first.as_str(), second.as_str()), ("1", "2"));
    assert_eq!(Path::new(directory), run.directory.path().canonicalize().unwrap());
    assert_eq!(mark, "from the proxy");
    assert!(entries(run.directory.path()).is_empty(), "the token file is gone");
}

#[test]
fn the_last_line_counts_and_the_rest_is_ignored() {
    let two = run(&script(&format!(r#"echo loading; echo '{{"n_tokens": 9, "argmax": 1}}'; {RESULT}"#)));
    assert_eq!(two.outcome.unwrap().result.argmax, 7);
    let much = run(&script(&format!("head -c 10000000 /dev/zero; echo; {RESULT}")));
    assert_eq!(much.outcome.unwrap().result.argmax, 7);
    let unended = run(&script(r#"printf '{"n_tokens": 2, "argmax": 5}'"#));
    assert_eq!(unended.outcome.unwrap().result.argmax, 5);
}

#[test]
fn a_result_that_is_none_is_refused_by_name() {
    let silent = run(&script("true")).outcome.unwrap_err();
    assert!(matches!(silent, ProviderFailure::NoResult), "{silent}");
    let nonsense = run(&script("echo all done")).outcome.unwrap_err();
    assert!(matches!(nonsense, ProviderFailure::BadResult(_)), "{nonsense}");
    let miscounted = run(&script(r#"echo '{"n_tokens": 3, "argmax": 7}'"#)).outcome.unwrap_err();
    assert!(matches!(miscounted, ProviderFailure::WrongCount { reported: 3, given: 2 }), "{miscounted}");
    assert!(miscounted.after_start());
}

#[test]
fn a_provider_that_fails_is_quoted() {
    let run = run(&script(&format!("echo 'no device' >&2; {RESULT}; exit 3")));
    assert_eq!(run.log, ["no device"]);
    let failure = run.outcome.unwrap_err();
    assert_eq!(failure.to_string(), "the provider ended badly (exit status 3); it said: no device");
    let talkative = self::run(&script("echo 'bad flag' >&2; echo >&2; echo usage >&2; echo 'see --help' >&2; exit 2"));
    let words = "the provider ended badly (exit status 2); it said: bad flag … see --help";
    assert_eq!(talkative.outcome.unwrap_err().to_string(), words);
    let killed = self::run(&script("kill -9 $$")).outcome.unwrap_err();
    assert!(matches!(killed, ProviderFailure::Failed { ending: Ending::Signal(9), .. }), "{killed}");
}

#[test]
fn a_provider_that_cannot_start_has_written_nothing() {
    let missing = run(&ProviderProgram::new("/no/such/provider", "m")).outcome.unwrap_err();
    assert!(matches!(missing, ProviderFailure::Start(_)), "{missing}");
    assert!(!missing.after_start() && missing.to_string().contains("/no/such/provider"), "{missing}");
    let forbidden = run(&ProviderProgram::new("/etc/passwd", "m")).outcome.unwrap_err();
    assert!(!forbidden.after_start(), "{forbidden}");
    let provider = script(RESULT);
    let nowhere = provider.run(&[1], Destination::File { name: "x" }, "/no/such".as_ref(), None, &mut |_| {});
    assert!(matches!(nowhere, Err(ProviderFailure::Prepare { .. })));
}

#[test]
fn a_launcher_becomes_the_provider_and_a_provider_that_is_not_there_is_named_before() {
    let mut provider = script(&format!(r#"echo "$MARK" >&2; {RESULT}"#));
    provider.launcher = ["/usr/bin/env", "MARK=launched"].map(Into::into).to_vec();
    let launched = run(&provider);
    assert_eq!((launched.outcome.unwrap().result.argmax, launched.log), (7, vec!["launched".to_owned()]));
    for (program, words) in
        [("/no/such/provider", "/no/such/provider"), ("no-such-provider", "PATH"), ("/etc", "a directory")]
    {
        provider.program = program.into();
        let failure = run(&provider).outcome.unwrap_err();
        assert!(matches!(failure, ProviderFailure::Start(_)), "{failure}");
        assert!(!failure.after_start() && failure.to_string().contains(words), "{failure}");
    }
}

#[test]
fn whoever_may_still_run_may_still_write() {
    let failed = |ending| ProviderFailure::Failed { ending, said: None };
    let unwatched = |gone| {
        let source = std::io::Error::from_raw_os_error(libc::EMFILE);
        ProviderFailure::Start(SpawnError::Unwatched { program: "provider".into(), source, gone })
    };
    let cases = [
        (failed(Ending::Exit(3)), false),
        (failed(Ending::HelpersRunning), true),
        (ProviderFailure::Cancelled { ending: Ending::Signal(15) }, false),
        (ProviderFailure::Cancelled { ending: Ending::HelpersRunning }, true),
        (ProviderFailure::Cancelled { ending: Ending::StillRunning }, true),
        (unwatched(true), false),
        (unwatched(false), true),
    ];
    for (failure, may_still_write) in cases {
        assert!(failure.after_start() && failure.may_still_write() == may_still_write, "{failure}");
    }
}

#[test]
fn a_provider_past_its_limit_is_stopped_with_its_helpers() {
    let pids = tempfile::tempdir().unwrap();
    let pid_file = pids.path().join("helper");
    let provider = script(&format!("sleep 1000 & echo $! > {}; wait", pid_file.display()));
    let provider = ProviderProgram { time_limit: Duration::from_millis(300), ..provider };
    let failure = run(&provider).outcome.unwrap_err();
    assert!(matches!(failure, ProviderFailure::TimedOut { ending: Ending::Signal(15), .. }), "{failure}");
    assert!(!failure.may_still_write());
    assert!(is_gone(&pid_file));
}

#[test]
fn a_provider_that_ignores_sigterm_is_killed() {
    // The shell restarts its sleep, so that the signal to the group does not end the script.
    let provider = script("trap '' TERM; while :; do sleep 0.05; done");
    let provider = ProviderProgram { time_limit: Duration::from_millis(100), ..provider };
    let failure = run(&provider).outcome.unwrap_err();
    assert!(matches!(failure, ProviderFailure::TimedOut { ending: Ending::Signal(9), .. }), "{failure}");
}

#[test]
fn a_helper_that_keeps_standard_output_open_does_not_hold_the_run() {
    let pids = tempfile::tempdir().unwrap();
    let pid_file = pids.path().join("helper");
    let run = run(&script(&format!("sleep 1000 & echo $! > {}; {RESULT}", pid_file.display())));
    assert_eq!(run.outcome.unwrap().result.argmax, 7);
    assert!(is_gone(&pid_file));
}

#[test]
fn a_cancelled_run_ends_and_says_so() {
    let cancel = Cancel::new().unwrap();
    let other = cancel.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        other.cancel();
    });
    let failure = run_with(&script("sleep 1000"), Some(&cancel)).outcome.unwrap_err();
    assert!(matches!(failure, ProviderFailure::Cancelled { ending: Ending::Signal(15) }), "{failure}");
    canceller.join().unwrap();
    let at_once = run_with(&script("sleep 1000"), Some(&cancel)).outcome.unwrap_err();
    assert!(matches!(at_once, ProviderFailure::Cancelled { .. }), "{at_once}");
}

#[test]
fn lines_are_cut_and_not_kept_for_ever() {
    let run = run(&script(&format!("head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; {RESULT}")));
    assert!(run.outcome.is_ok());
    let [line] = &run.log[..] else { panic!("{} lines", run.log.len()) };
    assert_eq!(line.chars().count(), (16 << 10) + 1);
    assert!(line.ends_with('…'));
}
