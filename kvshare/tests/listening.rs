//! A listening socket is reachable for its own user only, and two starters do not take each other's away.

mod own_process;

use kvshare::fd::{Child, Output, Program};
use kvshare::wire::{Limits, Listener, MAX_PATH_BYTES, WireError, check_inside, connect};
use own_process::in_a_process_of_its_own;
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn at_once() -> Instant {
    Instant::now() + Duration::from_millis(5)
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn slots() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    set_mode(directory.path(), 0o700);
    directory
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn two_processes_of_one_user_exchange_messages_and_know_each_other() {
    let directory = slots();
    let path = directory.path().join("kvshare-1.sock");
    let listener = Listener::bind(&path).unwrap();
    let ours = connect(&path, soon()).unwrap();
    let theirs = listener.accept(soon()).unwrap();
    ours.send(b"{\"there\":1}", &[], soon()).unwrap();
    assert_eq!(theirs.receive(&Limits::default(), soon()).unwrap().header, b"{\"there\":1}");
    theirs.send(b"{\"back\":1}", &[], soon()).unwrap();
    assert_eq!(ours.receive(&Limits::default(), soon()).unwrap().header, b"{\"back\":1}");

    let own = std::process::id() as i32;
    assert_eq!((ours.peer_pid(), theirs.peer_pid()), (own, own));
    assert_eq!(ours.peer_uid(), std::fs::metadata("/proc/self").unwrap().uid());
}

#[test]
fn the_socket_is_for_its_owner_only_and_leaves_nothing_behind() {
    let directory = slots();
    let path = directory.path().join("kvshare-1.sock");
    let listener = Listener::bind(&path).unwrap();
    for file in [&path, &directory.path().join("kvshare-1.sock.lock")] {
        assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o777, 0o600, "{}", file.display());
    }
    assert_eq!(listener.path(), path);
    drop(listener);
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn a_path_of_107_bytes_is_taken_and_one_of_108_is_refused() {
    let directory = slots();
    let path_of = |length: usize| {
        let name = length - directory.path().as_os_str().len() - 1;
        directory.path().join("s".repeat(name))
    };
    let path = path_of(MAX_PATH_BYTES);
    let listener = Listener::bind(&path).unwrap();
    connect(&path, soon()).unwrap();
    drop(listener);

    let path = path_of(MAX_PATH_BYTES + 1);
    for error in [Listener::bind(&path).unwrap_err(), connect(&path, soon()).unwrap_err()] {
        assert!(matches!(error, WireError::PathTooLong { length: 108, .. }), "{error:?}");
    }
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn a_path_that_names_no_file_is_refused() {
    for path in ["", "/", "..", "a\0b"] {
        for error in [Listener::bind(path).unwrap_err(), connect(Path::new(path), soon()).unwrap_err()] {
            assert!(matches!(error, WireError::NoFileName { .. }), "{path:?}: {error:?}");
        }
    }
}

#[test]
fn a_directory_that_others_can_use_is_refused() {
    let directory = slots();
    for mode in [0o755, 0o770, 0o707, 0o701, 0o1777] {
        set_mode(directory.path(), mode);
        let error = Listener::bind(directory.path().join("s")).unwrap_err();
        let bits = mode & 0o777;
        assert!(matches!(error, WireError::DirectoryIsOpen { mode, .. } if mode == bits), "{error:?}");
    }
    set_mode(directory.path(), 0o700);
    assert!(entries(directory.path()).is_empty(), "a refused bind leaves nothing");
}

#[test]
fn a_directory_that_is_missing_or_no_directory_is_refused() {
    let directory = slots();
    File::create(directory.path().join("file")).unwrap();
    for parent in ["missing", "file"] {
        let error = Listener::bind(directory.path().join(parent).join("s")).unwrap_err();
        assert!(matches!(error, WireError::Path { .. }), "{error:?}");
    }
}

#[test]
fn a_live_socket_is_left_alone_whoever_listens() {
    let directory = slots();
    let path = directory.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    assert!(matches!(Listener::bind(&path), Err(WireError::InUse { .. })));
    connect(&path, soon()).expect("the first still listens");
    drop(listener);

    let foreign = UnixListener::bind(&path).unwrap();
    assert!(matches!(Listener::bind(&path), Err(WireError::InUse { .. })), "one that takes no lock");
    drop(foreign);
    std::fs::remove_file(&path).unwrap();

    let _datagram = UnixDatagram::bind(&path).unwrap();
    assert!(matches!(Listener::bind(&path), Err(WireError::InUse { .. })), "one of another type");
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_in_its_place_is_not() {
    let directory = slots();
    let path = directory.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves its socket behind");
    std::fs::write(directory.path().join("s.lock"), "").unwrap();
    let listener = Listener::bind(&path).unwrap();
    connect(&path, soon()).unwrap();
    drop(listener);

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&path), Err(WireError::NotASocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();

    symlink("/elsewhere", &path).unwrap();
    assert!(matches!(Listener::bind(&path), Err(WireError::NotASocket { .. })));
}

#[test]
fn of_many_starters_at_one_path_exactly_one_listens() {
    let directory = slots();
    let path = directory.path().join("s");
    for _ in 0..20 {
        drop(UnixListener::bind(&path).unwrap());
        let start = std::sync::Barrier::new(8);
        let results: Vec<_> = std::thread::scope(|scope| {
            let starter = || {
                start.wait();
                Listener::bind(&path)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(starter)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(results.iter().all(|result| matches!(result, Ok(_) | Err(WireError::InUse { .. }))));
        connect(&path, soon()).expect("the winner can be reached");
        drop(results);
        assert!(entries(directory.path()).is_empty());
    }
}

#[test]
fn listeners_that_come_and_go_at_one_path_never_overlap() {
    let directory = slots();
    let path = directory.path().join("s");
    let listening = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5000 {
                    match Listener::bind(&path) {
                        Ok(listener) => {
                            assert_eq!(listening.fetch_add(1, Ordering::SeqCst), 0);
                            assert!(path.exists());
                            listening.fetch_sub(1, Ordering::SeqCst);
                            drop(listener);
                        }
                        Err(error) => assert!(matches!(error, WireError::InUse { .. }), "{error:?}"),
                    }
                }
            });
        }
    });
}

#[test]
fn only_its_own_socket_is_removed_at_the_end() {
    let directory = slots();
    let path = directory.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert_eq!(entries(directory.path()), ["s"]);
}

#[test]
fn connecting_where_nobody_listens_says_so() {
    let directory = slots();
    let path = directory.path().join("s");
    assert!(matches!(connect(&path, soon()), Err(WireError::NobodyListens { .. })));
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(connect(&path, soon()), Err(WireError::NobodyListens { .. })));
}

#[test]
fn waiting_for_a_peer_or_for_a_place_in_the_queue_ends_at_the_deadline() {
    let directory = slots();
    let path = directory.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    assert!(matches!(listener.accept(at_once()), Err(WireError::NoConnection { .. })));

    let mut waiting = Vec::new();
    let error = loop {
        assert!(waiting.len() < 1000, "the queue has no end");
        match connect(&path, at_once()) {
            Ok(connection) => waiting.push(connection),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WireError::NoConnection { .. }), "{error:?}");
    std::thread::scope(|scope| {
        let late = scope.spawn(|| connect(&path, soon()).map(drop));
        listener.accept(soon()).unwrap();
        late.join().unwrap().expect("a place that becomes free is taken");
    });
}

/// A Python program that runs as nobody, once it said that it is ready.
fn nobody(script: &str, argument: &Path) -> Child {
    let script = format!("import os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n{script}");
    let mut child = Program::new("python3").args(["-c", &script]).arg(argument).stdout(Output::Pipe).spawn().unwrap();
    let mut ready = [0; 6];
    File::from(child.stdout.take().unwrap()).read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    child
}

#[test]
fn a_stranger_is_turned_away_even_if_the_file_system_let_it_in() {
    if !nix::unistd::geteuid().is_root() {
        return; // Only root can start a program as somebody else.
    }
    let directory = slots();
    let path = directory.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    set_mode(directory.path(), 0o711);
    set_mode(&path, 0o666);
    let script =
        "peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1]); print('ready', flush=True); peer.recv(1)";
    let stranger = nobody(script, &path);
    let error = listener.accept(soon()).unwrap_err();
    let pid = stranger.id() as i32;
    assert!(matches!(error, WireError::Stranger { peer: 65534, ours: 0, pid: told } if told == pid), "{error:?}");
    connect(&path, soon()).unwrap();
    listener.accept(soon()).expect("the next one is served");
}

#[test]
fn a_cache_is_not_sent_to_a_stranger_that_listens() {
    if !nix::unistd::geteuid().is_root() {
        return; // Only root can start a program as somebody else.
    }
    let directory = slots();
    set_mode(directory.path(), 0o777);
    let path = directory.path().join("s");
    let script =
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('ready', flush=True); s.accept()";
    let _stranger = nobody(script, &path);
    let error = connect(&path, soon()).unwrap_err();
    assert!(matches!(error, WireError::Stranger { peer: 65534, ours: 0, .. }), "{error:?}");
}

#[test]
fn root_may_connect_to_a_user_and_a_directory_of_another_is_refused() {
    in_a_process_of_its_own("root_may_connect_to_a_user_and_a_directory_of_another_is_refused", &[], || {
        if !nix::unistd::geteuid().is_root() {
            return; // Only root can become somebody else.
        }
        let roots = slots();
        let users = slots();
        chown(users.path(), Some(65534), None).unwrap();
        let error = Listener::bind(users.path().join("s")).unwrap_err();
        assert!(matches!(error, WireError::DirectoryOfAnother { owner: 65534, ours: 0, .. }), "{error:?}");

        let path = users.path().join("s");
        nix::unistd::seteuid(65534.into()).unwrap();
        let listener = Listener::bind(&path).unwrap();
        nix::unistd::seteuid(0.into()).unwrap();
        let stranger = connect(&path, soon()).unwrap_err();
        assert!(matches!(stranger, WireError::Stranger { peer: 65534, .. }), "to root a user is a stranger");
        nix::unistd::seteuid(65534.into()).unwrap();
        assert_eq!(listener.accept(soon()).expect("to a user root is none").peer_uid(), 0);
        drop(listener);
        nix::unistd::seteuid(0.into()).unwrap();
        drop(roots);
    });
}

#[test]
fn a_socket_directly_inside_the_directory_is_accepted_however_it_is_written() {
    let directory = slots();
    let real = directory.path().canonicalize().unwrap();
    let _listener = Listener::bind(real.join("s")).unwrap();
    let other = slots();
    symlink(&real, other.path().join("link")).unwrap();
    for (path, directory) in [
        (PathBuf::from("s"), real.clone()),
        (PathBuf::from("./s"), real.clone()),
        (real.join("s"), real.clone()),
        (real.join("./s"), other.path().join("link")),
        (other.path().join("link/s"), real.clone()),
    ] {
        assert_eq!(check_inside(&path, &directory).unwrap(), real.join("s"), "{}", path.display());
    }
}

#[test]
fn a_socket_elsewhere_is_refused_however_it_is_written() {
    let directory = slots();
    let here = directory.path();
    std::fs::create_dir(here.join("below")).unwrap();
    let _below = UnixListener::bind(here.join("below/s")).unwrap();
    let elsewhere = slots();
    let _elsewhere = UnixListener::bind(elsewhere.path().join("s")).unwrap();
    symlink(elsewhere.path(), here.join("link")).unwrap();
    symlink(elsewhere.path().join("s"), here.join("linked-socket")).unwrap();
    symlink(here.join("below/s"), here.join("linked-below")).unwrap();
    let up_and_back = here.join("..").join(here.file_name().unwrap()).join("s");
    for path in [
        Path::new("below/s"),
        Path::new("link/s"),
        Path::new("linked-socket"),
        Path::new("linked-below"),
        Path::new("../s"),
        Path::new(".."),
        Path::new(""),
        Path::new("."),
        Path::new("/"),
        &elsewhere.path().join("s"),
        &up_and_back,
        &here.join("missing/s"),
    ] {
        let error = check_inside(path, here).unwrap_err();
        assert!(matches!(error, WireError::OutsideDirectory { .. }), "{}: {error:?}", path.display());
    }
}

#[test]
fn what_is_inside_and_no_socket_is_refused() {
    let directory = slots();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let check = |name: &str| check_inside(Path::new(name), directory.path()).unwrap_err();
    assert!(matches!(check("file"), WireError::NotASocket { .. }));
    assert!(matches!(check("missing"), WireError::NobodyListens { .. }));
    let error = check_inside(Path::new("s"), Path::new("/no/such/directory")).unwrap_err();
    assert!(matches!(error, WireError::Path { call: "realpath", .. }), "{error:?}");
}

#[test]
fn a_listener_needs_no_proc() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    in_a_process_of_its_own("a_listener_needs_no_proc", &[], || {
        let (root, directory) = (File::open("/").unwrap(), slots());
        rustix::process::chroot(directory.path()).unwrap();
        let listener = Listener::bind("/kvshare-1.sock").unwrap();
        connect(Path::new("/kvshare-1.sock"), soon()).unwrap();
        listener.accept(soon()).unwrap();
        drop(listener);
        assert_eq!(entries(Path::new("/")), [""; 0]);
        rustix::process::fchdir(root).unwrap();
        rustix::process::chroot(".").unwrap();
    });
}
