//! Whatever runs out, at whatever point of a handoff: the request ends with a right answer or an error in words, nothing is
//! left behind, and once there is enough again the next request is served.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use kvshare_tests::serving::{REPORT, Scene, Serving, chat, eventually};
use kvshare_tests::traces::{self, Traces};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const MOON: &str = "What is the moon?";

/// What is said where a table of descriptors is full.
const FULL_TABLE: &[&str] = &["Too many open files", "ulimit -n"];

/// A user that has no processes.
const NOBODY_ELSE: u32 = 54321;

/// What a request ended with.
#[derive(Debug, Default)]
struct Ended {
    /// None where the connection broke off.
    status: Option<u16>,
    handoff: String,
    body: String,
}

/// A connection that the server has accepted while it still could.
struct Line {
    connection: BufReader<TcpStream>,
}

impl Line {
    fn open(serving: &Serving) -> Self {
        let address = serving.address().strip_prefix("http://").unwrap();
        let mut line = Self { connection: BufReader::new(TcpStream::connect(address).unwrap()) };
        line.send("GET /health HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(line.reply().status, Some(200));
        line
    }

    fn ask(&mut self, question: &str) -> Ended {
        let body = chat(question).to_string();
        let length = body.len();
        self.send(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        self.reply()
    }

    fn send(&mut self, request: &str) {
        self.connection.get_mut().write_all(request.as_bytes()).unwrap();
    }

    fn reply(&mut self) -> Ended {
        let (mut ended, mut length) = (Ended::default(), 0);
        loop {
            let mut line = String::new();
            if self.connection.read_line(&mut line).unwrap() == 0 {
                return Ended::default();
            }
            match line.trim_end().split_once(": ") {
                None if line.trim_end().is_empty() => break,
                None => ended.status = line.split(' ').nth(1).and_then(|status| status.parse().ok()),
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("x-kvshare-handoff", value)) => ended.handoff = value.to_owned(),
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.connection.read_exact(&mut body).unwrap();
        Ended { body: String::from_utf8(body).unwrap(), ..ended }
    }
}

/// The same command, under a shell's limit.
fn limited(command: &Command, limit: &str) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// A server whose handoffs work, as long as nothing runs out.
struct Setting {
    scene: Scene,
    serving: Serving,
    text: String,
    /// How a request goes with which nothing is wrong.
    good: String,
    before: Traces,
    /// Words of which one says what has run out.
    words: &'static [&'static str],
    /// How many requests went wrong.
    struck: usize,
}

impl Setting {
    fn new(scene: Scene, command: Command, words: &'static [&'static str]) -> Self {
        let serving = Serving::start(command);
        let first = serving.ask(MOON);
        assert!(first.handoff.ends_with("; evaluated=1"), "{first:?}");
        let before = Traces::of(&scene, &serving).unwrap();
        serving.complaints_until(REPORT);
        Self { text: first.text(), good: first.handoff, scene, serving, before, words, struck: 0 }
    }

    /// Asks once while something is short, and once more when it is not.
    fn strike(&mut self, name: &str, shorten: impl FnOnce(&Self), lengthen: impl FnOnce(&Self)) {
        let mut line = Line::open(&self.serving);
        shorten(self);
        let ended = line.ask(MOON);
        lengthen(self);
        match ended.status {
            Some(200) => assert!(ended.body.contains(&self.text), "{name}: {ended:?}"),
            Some(500..) => assert!(ended.body.contains("\"message\""), "{name}: {ended:?}"),
            _ => panic!("{name}: {ended:?}"),
        }
        drop(line);
        eventually(&format!("the next request is served after {name}"), || {
            let reply = self.serving.ask(MOON);
            assert!(matches!(reply.status, 200 | 502 | 503), "{name}: {reply:?}");
            (reply.status == 200 && reply.text() == self.text && reply.handoff == self.good).then_some(())
        });
        let complaints = self.serving.complaints_until(REPORT);
        if ended.handoff != self.good {
            let says = |line: &String| self.words.iter().any(|words| line.contains(words));
            assert!(complaints.iter().chain([&ended.body]).any(says), "{name}: {ended:?} {complaints:#?}");
            self.struck += 1;
        }
        self.before.are_again(&self.scene, &self.serving, name);
    }

    /// Nothing was lost in all this, and something really ran out.
    fn end(self) {
        let received = self.serving.metric("kvshare_descriptors_received_total");
        assert_eq!(self.serving.metric("kvshare_descriptors_closed_total"), received);
        assert!(self.struck > 0, "{:?} was never said", self.words);
    }
}

/// A server's command, on the shared route.
fn command(scene: &Scene) -> Command {
    command_with(scene, &["--kv-share"])
}

fn command_with(scene: &Scene, flags: &[&str]) -> Command {
    let (provider, backend) = (scene.provider(), scene.path("backend").display().to_string());
    let always = ["--timeout", "20", "--prefill-provider", &provider, "--backend", &backend, "--", "-c", "256"];
    scene.command(PROGRAM, &[flags, &always].concat())
}

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(process.cast_signed())
}

fn set_limit(process: u32, resource: Resource, most: u64) {
    let limit = Rlimit { current: Some(most), ..getrlimit(resource) };
    prlimit(pid(process), resource, limit).unwrap();
}

/// The limit under which a process has room for `free` more descriptors.
fn room_for(process: u32, free: usize) -> u64 {
    let is_open = |number: &u64| std::fs::exists(format!("/proc/{process}/fd/{number}")).unwrap();
    (0..).filter(|number| !is_open(number)).nth(free).unwrap()
}

#[test]
fn a_server_that_may_open_few_files_does_not_start_and_says_so() {
    for most in [8, 16, 63] {
        let scene = Scene::new(PROGRAM);
        let Output { status, stderr, .. } = limited(&command(&scene), &format!("-n {most}")).output().unwrap();
        let words = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(1), "{words}");
        let expected = format!("this process may open only {most} files, and a server needs 64 or more");
        assert!(words.contains(&expected) && words.lines().count() == 1, "{words}");
        assert!(scene.leftovers().is_empty(), "{:?}", scene.leftovers());
    }
}

#[test]
fn a_proxy_without_descriptors() {
    let scene = Scene::new(PROGRAM);
    let command = command(&scene);
    let mut setting = Setting::new(scene, command, FULL_TABLE);
    for free in 0..24 {
        setting.strike(
            &format!("{free} descriptors"),
            |setting| {
                let id = setting.serving.id();
                set_limit(id, Resource::Nofile, room_for(id, free));
            },
            |setting| set_limit(setting.serving.id(), Resource::Nofile, 1024),
        );
    }
    setting.end();
}

#[test]
fn a_decoder_without_descriptors() {
    let scene = Scene::new(PROGRAM);
    let command = command(&scene);
    let mut setting = Setting::new(scene, command, FULL_TABLE);
    for free in 0..10 {
        let decoder = |setting: &Setting| traces::decoder(&setting.serving).unwrap();
        setting.strike(
            &format!("{free} descriptors"),
            |setting| set_limit(decoder(setting), Resource::Nofile, room_for(decoder(setting), free)),
            |setting| set_limit(decoder(setting), Resource::Nofile, 1024),
        );
    }
    setting.end();
}

#[test]
fn a_decoder_without_memory() {
    let scene = Scene::new(PROGRAM);
    let command = command(&scene);
    let mut setting = Setting::new(scene, command, &["annot allocate memory", "its log says why", "did not answer"]);
    let used = |id: u32| {
        let pages = std::fs::read_to_string(format!("/proc/{id}/statm")).unwrap();
        pages.split(' ').next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
    };
    for mib in [0, 1, 4, 16] {
        // It is told the truth, and fails: its cells stay leased, so that the decoder needs others.
        setting.scene.break_provider("exit 3");
        setting.strike(
            &format!("{mib} MiB"),
            |setting| {
                let id = traces::decoder(&setting.serving).unwrap();
                set_limit(id, Resource::As, used(id) + (mib << 20));
            },
            |setting| {
                setting.scene.mend_provider();
                if let Some(id) = traces::decoder(&setting.serving) {
                    prlimit(pid(id), Resource::As, getrlimit(Resource::As)).unwrap();
                }
            },
        );
    }
    setting.end();
}

#[test]
fn a_provider_with_little_of_anything() {
    for flags in [&["--kv-share"][..], &[]] {
        let scene = Scene::new(PROGRAM);
        let command = command_with(&scene, flags);
        let mut setting = Setting::new(scene, command, &["the provider ended badly"]);
        let descriptors = (3..12).map(|count| format!("-n {count}"));
        let memory = [8, 16, 24, 32].map(|mib| format!("-v {}", mib << 10));
        let file = ["-f 0", "-f 8"].map(ToOwned::to_owned);
        for limit in descriptors.chain(memory).chain(file) {
            let script = format!("ulimit {limit}; exec '{PROGRAM}' reference-provider \"$@\"");
            setting.strike(
                &limit,
                |setting| setting.scene.break_provider(&script),
                |setting| setting.scene.mend_provider(),
            );
        }
        setting.end();
    }
}

#[test]
fn a_proxy_without_processes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a server as a user who has no other processes");
        return;
    }
    let scene = Scene::new(PROGRAM);
    let mut command = command(&scene);
    for name in ["", "tmp", "backend", "provider", "kvshare-tiny.gguf"] {
        std::os::unix::fs::chown(scene.path(name), Some(NOBODY_ELSE), Some(NOBODY_ELSE)).unwrap();
    }
    command.uid(NOBODY_ELSE).gid(NOBODY_ELSE);
    let mut setting = Setting::new(scene, command, &["Resource temporarily unavailable", "the provider ended badly"]);
    let threads = |id: u32| std::fs::read_dir(format!("/proc/{id}/task")).unwrap().count();
    // Root itself may be forbidden to limit somebody else's process (prlimit(2)).
    let set_limit = |setting: &Setting, most: &str| {
        let id = setting.serving.id().to_string();
        let mut limit = Command::new("prlimit");
        let limit = limit.args(["--pid", &id, &format!("--nproc={most}:")]).uid(NOBODY_ELSE).gid(NOBODY_ELSE);
        assert!(limit.status().unwrap().success());
    };
    // Its main thread, those of its runtime, and the one that keeps the backend: none is idle and could help out.
    let busy = 2 + std::thread::available_parallelism().unwrap().get();
    for free in 0..6 {
        setting.strike(
            &format!("{free} processes"),
            |setting| {
                eventually("no thread is idle", || (threads(setting.serving.id()) <= busy).then_some(()));
                let all: usize = traces::processes(&setting.scene).into_iter().map(threads).sum();
                set_limit(setting, &(all + free).to_string());
            },
            |setting| set_limit(setting, "1000"),
        );
    }
    setting.end();
}

/// A small file system over a directory, which only this thread and those whom it starts can see.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts it, if we may.
    fn mount(path: PathBuf) -> nix::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("size=4m"))?;
        Ok(Self { path })
    }

    /// Fills it, but for so many KiB.
    fn fill(&self, free: u64) {
        let mut filler = File::create(self.path.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        let length = filler.metadata().unwrap().len();
        filler.set_len(length - (free << 10)).unwrap();
    }

    fn empty(&self) {
        std::fs::remove_file(self.path.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_slot_directory_on_a_full_disk() {
    for flags in [&["--kv-share"][..], &[]] {
        let scene = Scene::new(PROGRAM);
        let command = command_with(&scene, flags);
        let disk = match SmallDisk::mount(scene.path("tmp")) {
            Ok(disk) => disk,
            Err(errno) => {
                eprintln!("skipped: a file system cannot be mounted here: {errno}");
                return;
            }
        };
        let mut setting = Setting::new(scene, command, &["No space left on device"]);
        for free in [0, 4, 8, 64, 1024] {
            setting.strike(&format!("{free} KiB"), |_| disk.fill(free), |_| disk.empty());
        }
        setting.end();
    }
}
