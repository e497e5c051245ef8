//! A program inherits exactly the descriptors it is given, and takes each of them once.

mod own_process;

use kvshare::fd::{Child, Facts, FdError, Output, Program, Signal, SpawnError, take_inherited};
use own_process::in_a_process_of_its_own;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

fn memfd(name: &str) -> OwnedFd {
    memfd_create(name, MemfdFlags::CLOEXEC).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn output(child: &mut Child) -> String {
    let mut text = String::new();
    File::from(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
    text
}

/// What a shell that inherits `descriptors` has open: number and link. `ls` looks at the shell, not at itself.
fn seen_by_a_child(descriptors: &[BorrowedFd<'_>]) -> BTreeMap<RawFd, String> {
    let mut child = Program::new("/bin/sh")
        .args(["-c", "ls -l /proc/$$/fd; exit"])
        .stdout(Output::Pipe)
        .stderr(Output::Null)
        .descriptors(descriptors.iter().copied())
        .spawn()
        .unwrap();
    let listing = output(&mut child);
    assert!(child.wait(soon()).unwrap().unwrap().success());
    listing
        .lines()
        .filter_map(|line| {
            let (left, link) = line.split_once(" -> ")?;
            Some((left.rsplit(' ').next()?.parse().ok()?, link.to_owned()))
        })
        .collect()
}

fn assert_child_sees(seen: &BTreeMap<RawFd, String>, names: &[String]) {
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), (0..3 + names.len() as RawFd).collect::<Vec<_>>());
    assert_eq!((seen[&0].as_str(), seen[&2].as_str()), ("/dev/null", "/dev/null"));
    assert!(seen[&1].starts_with("pipe:"));
    for (number, name) in (3..).zip(names) {
        assert_eq!(seen[&number], format!("/memfd:{name} (deleted)"));
    }
}

#[test]
fn a_program_sees_exactly_the_descriptors_it_is_given() {
    for count in [0, 1, 3, 64] {
        let names: Vec<String> = (0..count).map(|index| format!("given-{index}")).collect();
        let descriptors: Vec<OwnedFd> = names.iter().map(|name| memfd(name)).collect();
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        assert_child_sees(&seen_by_a_child(&borrowed), &names);
    }
}

#[test]
fn one_descriptor_can_be_given_twice() {
    let descriptor = memfd("twice");
    let seen = seen_by_a_child(&[descriptor.as_fd(), descriptor.as_fd()]);
    assert_child_sees(&seen, &["twice".to_owned(), "twice".to_owned()]);
}

#[test]
fn descriptors_that_already_sit_at_the_targets_are_placed_in_any_order() {
    let placed = [memfd("a"), memfd("b"), memfd("c")];
    let borrowed: Vec<_> = placed.iter().map(AsFd::as_fd).collect();
    let name = "descriptors_that_already_sit_at_the_targets_are_placed_in_any_order";
    in_a_process_of_its_own(name, &borrowed, || {
        let [a, b, c] = <[OwnedFd; 3]>::try_from(take_inherited(&[3, 4, 5]).unwrap()).unwrap();
        for (order, names) in [
            ([&a, &b, &c], ["a", "b", "c"]),
            ([&b, &a, &c], ["b", "a", "c"]),
            ([&c, &a, &b], ["c", "a", "b"]),
            ([&c, &b, &a], ["c", "b", "a"]),
        ] {
            let seen = seen_by_a_child(&order.map(AsFd::as_fd));
            assert_child_sees(&seen, &names.map(str::to_owned));
        }
    });
}

#[test]
fn programs_started_at_the_same_time_inherit_only_their_own() {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..15 {
                    let names = [format!("mine-{thread}-{round}"), format!("mine-{thread}-{round}-too")];
                    let descriptors = names.each_ref().map(|name| memfd(name));
                    assert_child_sees(&seen_by_a_child(&descriptors.each_ref().map(AsFd::as_fd)), &names);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..30 {
                let script = "ls -l /proc/$$/fd; exit";
                let std = std::process::Command::new("/bin/sh").args(["-c", script]).output().unwrap();
                let listing = String::from_utf8(std.stdout).unwrap();
                assert!(!listing.contains("memfd:mine"), "a program of another library inherited ours:\n{listing}");
            }
        });
    });
}

#[test]
fn starting_a_program_leaves_close_on_exec_and_the_table_as_they_were() {
    in_a_process_of_its_own("starting_a_program_leaves_close_on_exec_and_the_table_as_they_were", &[], || {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let descriptor = memfd("kept");
        let before = open();
        seen_by_a_child(&[descriptor.as_fd()]);
        Program::new("/no/such/program").descriptors([descriptor.as_fd()]).stdout(Output::Pipe).spawn().unwrap_err();
        assert_eq!(open(), before);
        assert!(Facts::of(&descriptor).unwrap().close_on_exec);
    });
}

#[test]
fn inherited_descriptors_are_taken_once_and_close_on_exec_again() {
    let given = [memfd("first"), memfd("second"), memfd("third")];
    let borrowed: Vec<_> = given.iter().map(AsFd::as_fd).collect();
    in_a_process_of_its_own("inherited_descriptors_are_taken_once_and_close_on_exec_again", &borrowed, || {
        let own = memfd("opened here");
        let own_number = std::os::fd::AsRawFd::as_raw_fd(&own);
        for (numbers, expected) in [
            (vec![3, 4, 2], "StandardStream { number: 2 }"),
            (vec![-1], "StandardStream { number: -1 }"),
            (vec![3, 4, 3], "Repeated { number: 3 }"),
            (vec![3, 19_999], "NotOpen { number: 19999 }"),
            (vec![3, i32::MAX], "NotOpen { number: 2147483647 }"),
            (vec![3, own_number], &format!("NotInherited {{ number: {own_number} }}")),
        ] {
            assert_eq!(format!("{:?}", take_inherited(&numbers).unwrap_err()), expected);
        }

        let taken = take_inherited(&[4, 3]).expect("the failed attempts took nothing");
        let facts: Vec<Facts> = taken.iter().map(|descriptor| Facts::of(descriptor).unwrap()).collect();
        assert_eq!(
            facts.iter().map(|facts| facts.name.as_deref()).collect::<Vec<_>>(),
            [Some("second"), Some("first")]
        );
        assert!(facts.iter().all(|facts| facts.close_on_exec));

        assert!(matches!(take_inherited(&[5, 3]), Err(FdError::TakenBefore { number: 3 })));
        drop(taken);
        assert!(matches!(take_inherited(&[3]), Err(FdError::TakenBefore { number: 3 })), "also after it was closed");
        assert_eq!(take_inherited(&[5]).unwrap().len(), 1);
    });
}

#[test]
fn each_reason_not_to_start_has_its_own_error() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str, mode: u32| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let not_executable = write("not-executable", "#!/bin/sh\n", 0o644);
    let no_interpreter = write("no-interpreter", "#!/no/such/shell\n", 0o755);
    let no_format = write("no-format", "echo a script without its first line\n", 0o755);
    let written = write("written", "#!/bin/sh\n", 0o755);
    let _writer = std::fs::OpenOptions::new().write(true).open(&written).unwrap();

    let error = |program: Program<'_>| program.spawn().expect_err("nothing to start");
    use SpawnError as E;
    assert!(matches!(error(Program::new("/no/such/program")), E::Missing { .. }));
    assert!(matches!(error(Program::new(not_executable.join("below-a-file"))), E::Missing { .. }));
    assert!(matches!(error(Program::new("")), E::NotInPath { .. }));
    assert!(matches!(error(Program::new("no-such-program-anywhere")), E::NotInPath { .. }));
    assert!(matches!(error(Program::new(&not_executable)), E::NotExecutable { .. }));
    assert!(matches!(error(Program::new(directory.path())), E::IsDirectory { .. }));
    assert!(matches!(error(Program::new(no_interpreter)), E::InterpreterMissing { .. }));
    assert!(matches!(error(Program::new(no_format)), E::UnknownFormat { .. }));
    assert!(matches!(error(Program::new(written)), E::BeingWritten { .. }));
    assert!(matches!(error(Program::new("true").current_dir("/no/such/dir")), E::WorkingDirectory { .. }));
    assert!(matches!(error(Program::new("true").current_dir(not_executable)), E::WorkingDirectory { .. }));
    assert!(matches!(error(Program::new("true").arg("a\0b")), E::NulByte { part: "argument", .. }));
    assert!(matches!(error(Program::new("true").arg("a".repeat(1 << 20))), E::ArgumentsTooLong));
}

#[test]
fn more_descriptors_than_the_limit_allows_are_refused_before_anything_starts() {
    in_a_process_of_its_own("more_descriptors_than_the_limit_allows_are_refused_before_anything_starts", &[], || {
        use rustix::process::{Resource, Rlimit, setrlimit};
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
        let descriptor = memfd("many");
        for count in [31, 61, 62, 500] {
            let error = Program::new("true").descriptors(vec![descriptor.as_fd(); count]).spawn().unwrap_err();
            assert!(matches!(error, SpawnError::TooManyDescriptors { count: told, limit: Some(64) } if told == count));
        }
        assert_child_sees(&seen_by_a_child(&[descriptor.as_fd(); 10]), &vec!["many".to_owned(); 10]);
    });
}

#[test]
fn nothing_starts_where_the_table_has_no_place_to_watch_it_from() {
    in_a_process_of_its_own("nothing_starts_where_the_table_has_no_place_to_watch_it_from", &[], || {
        use rustix::process::{Resource, Rlimit, setrlimit};
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("started");
        let filling: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let error = Program::new("/usr/bin/touch").arg(&mark).spawn().unwrap_err();
        assert!(matches!(error, SpawnError::TooManyDescriptors { count: 0, limit: Some(64) }), "{error}");
        drop(filling);
        assert!(!mark.exists());
        assert!(Program::new("/usr/bin/touch").arg(&mark).spawn().unwrap().wait(soon()).unwrap().unwrap().success());
        assert!(mark.exists());
    });
}

#[test]
fn a_program_gets_its_arguments_variables_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Program::new("sh")
        .arg("-c")
        .args(["echo \"$0 $1 $KVSHARE_TEST_WORD\"; pwd", "zero", "one word"])
        .env("KVSHARE_TEST_WORD", "first")
        .env("KVSHARE_TEST_WORD", "second")
        .current_dir(directory.path())
        .stdout(Output::Pipe)
        .spawn()
        .unwrap();
    let directory = directory.path().canonicalize().unwrap();
    assert_eq!(output(&mut child), format!("zero one word second\n{}\n", directory.display()));
}

#[test]
fn a_relative_path_is_relative_to_the_starter() {
    let here = std::env::current_dir().unwrap();
    let up: String = here.components().skip(1).map(|_| "../").collect();
    let child = Program::new(format!("{up}bin/sh")).args(["-c", "exit 7"]).current_dir("/tmp").spawn();
    assert_eq!(child.unwrap().wait(soon()).unwrap().unwrap().code(), Some(7));
}

#[test]
fn standard_error_can_be_read_apart_from_standard_output() {
    let mut child = Program::new("sh")
        .args(["-c", "echo out; echo err >&2"])
        .stdout(Output::Pipe)
        .stderr(Output::Pipe)
        .spawn()
        .unwrap();
    let mut errors = String::new();
    File::from(child.stderr.take().unwrap()).read_to_string(&mut errors).unwrap();
    assert_eq!((output(&mut child).as_str(), errors.as_str()), ("out\n", "err\n"));
}

#[test]
fn a_program_starts_with_no_signal_ignored_or_blocked() {
    use nix::sys::signal::{SigSet, Signal::SIGTERM};
    SigSet::from(SIGTERM).thread_block().unwrap();
    let arguments = ["-E", "^Sig(Ign|Blk)", "/proc/self/status"];
    let mut child = Program::new("grep").args(arguments).stdout(Output::Pipe).spawn().unwrap();
    // This test program ignores SIGPIPE, as all of Rust's do. The C library keeps signals 32 and up to itself.
    let masks = output(&mut child);
    let masks: Vec<u64> = masks
        .split_whitespace()
        .filter_map(|word| u64::from_str_radix(word, 16).ok())
        .map(|mask| mask & 0x7fff_ffff)
        .collect();
    assert_eq!(masks, [0, 0]);
}

#[test]
fn the_exit_status_tells_code_and_signal_apart() {
    let status = |script: &str| -> ExitStatus {
        Program::new("/bin/sh").args(["-c", script]).spawn().unwrap().wait(soon()).unwrap().unwrap()
    };
    assert_eq!(status("exit 0").code(), Some(0));
    assert_eq!(status("exit 255").code(), Some(255));
    assert_eq!(status("kill -TERM $$").signal(), Some(libc::SIGTERM));
    assert_eq!(status("kill -TERM $$").code(), None);
}

#[test]
fn waiting_ends_at_the_deadline_and_the_status_stays_known() {
    let mut child = Program::new("sleep").arg("100").spawn().unwrap();
    assert!(child.try_wait().unwrap().is_none());
    assert!(child.wait(Instant::now() + Duration::from_millis(20)).unwrap().is_none());
    child.signal_group(Signal::TERM).unwrap();
    let status = child.wait(soon()).unwrap().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    assert_eq!((child.try_wait().unwrap(), child.wait(soon()).unwrap()), (Some(status), Some(status)));
    child.signal_group(Signal::KILL).expect("a signal to a program that is gone goes nowhere");
}

/// A shell that starts a grandchild and then does `and_then`; the pipe ends when both are gone.
fn with_a_grandchild(and_then: &str) -> (Child, File) {
    let script = format!("sleep 100 & echo started; {and_then}");
    let mut child = Program::new("/bin/sh").args(["-c", &script]).stdout(Output::Pipe).spawn().unwrap();
    let mut stdout = File::from(child.stdout.take().unwrap());
    let mut line = [0; 8];
    stdout.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"started\n");
    (child, stdout)
}

/// Looks once, without waiting: whoever has waited for a child need not wait for its group.
fn assert_all_are_gone(stdout: File) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let ended = poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&Timespec::default())).unwrap();
    assert_eq!(ended, 1, "a process that should be gone still holds the pipe");
    assert_eq!((&stdout).read(&mut [0]).unwrap(), 0, "the last process that held the pipe has ended");
}

#[test]
fn a_signal_reaches_grandchildren() {
    let (mut child, stdout) = with_a_grandchild("wait");
    child.signal_group(Signal::KILL).unwrap();
    assert_eq!(child.wait(soon()).unwrap().unwrap().signal(), Some(libc::SIGKILL));
    assert_all_are_gone(stdout);
}

#[test]
fn a_grandchild_left_behind_dies_when_its_parent_was_waited_for() {
    let (mut child, stdout) = with_a_grandchild("exit 3");
    assert_eq!(child.wait(soon()).unwrap().unwrap().code(), Some(3));
    assert_all_are_gone(stdout);
}

#[test]
fn dropping_a_child_kills_its_group_and_reaps_it() {
    let (child, stdout) = with_a_grandchild("wait");
    let id = child.id();
    drop(child);
    assert_all_are_gone(stdout);
    assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "it is reaped, not a zombie");
}

#[test]
fn a_grandchild_that_nobody_reaps_is_gone_all_the_same() {
    // The subshell leaves the group, and becomes a program that does not wait for the grandchild that it has there.
    let script = "( sleep 100 & exec setsid sleep 30 >/dev/null ) & echo started; sleep 0.2; exit 3";
    let mut child = Program::new("/bin/sh").args(["-c", script]).stdout(Output::Pipe).spawn().unwrap();
    let mut stdout = File::from(child.stdout.take().unwrap());
    stdout.read_exact(&mut [0; 8]).unwrap();
    assert_eq!(child.wait(soon()).unwrap().unwrap().code(), Some(3));
    assert_all_are_gone(stdout);
}

#[test]
fn a_grandchild_that_we_may_not_kill_is_told_of() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // A program that becomes root's, whoever starts it. It ends by itself.
    let directory = tempfile::tempdir().unwrap();
    let setpriv = directory.path().join("setpriv");
    std::fs::copy("/usr/bin/setpriv", &setpriv).unwrap();
    std::fs::set_permissions(&setpriv, Permissions::from_mode(0o4755)).unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let as_nobody = || {
        // The calling thread alone becomes another user.
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let script = format!("{} --reuid 0 sleep 4 & sleep 0.5; exit 0", setpriv.display());
        let mut child = Program::new("/bin/sh").args(["-c", &script]).spawn().unwrap();
        let error = child.wait(soon()).unwrap_err();
        assert!(matches!(error, FdError::GroupRemains { status } if status.success()), "{error}");
        std::thread::sleep(Duration::from_secs(4));
        assert!(child.wait(soon()).unwrap().unwrap().success(), "now it is gone");
    };
    std::thread::scope(|scope| scope.spawn(as_nobody).join().unwrap());
}
