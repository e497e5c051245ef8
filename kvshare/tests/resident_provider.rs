//! A provider that is started once: it fills cache after cache, its mistakes cost it one prompt, and whatever else it does
//! ends it, after which the next prompt has a new one.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvshare::handoff::{
    Cancel, Destination, Ending, ProviderFailure, ProviderProgram, ProviderReport, ReceivedShare, ResidentProvider,
    ShareDesk,
};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, Layout, TensorType};
use kvshare::map::MapOptions;
use kvshare::memory::Memfd;
use kvshare::rows::{MappedCache, allocate};
use kvshare::wire::connect;

/// A model of 8 layers whose rows have 64 channels.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");
const LAYERS: u32 = 8;
const WIDTH: usize = 64;
const CELLS: u32 = 64;

/// One that speaks the protocol as its text says it, up to the word that the test gives.
const BY_HAND: &str = r#"
import json, os, signal, socket, sys, time
proxy = socket.socket(fileno=int(sys.argv[sys.argv.index("--resident") + 1]))
say = lambda word: proxy.send(json.dumps(word).encode())
# /memfd:resident:cache_k_l0 (deleted): K before V in a layer, as the header has them.
first_tensor = lambda name: (int(name.split("_l")[1].split(" ")[0].split(".")[0]), "cache_v" in name)
manner = sys.argv[1]
if manner == "never ready":
    time.sleep(1000)
say({"type": "ready", "protocol": 2 if manner == "another protocol" else 1})
while True:
    text, descriptors, *_ = socket.recv_fds(proxy, 4096, 253)
    if not text:
        break
    order = json.loads(text)
    if order["type"] == "regions":
        announced, names = order["descriptors"], []
    if order["type"] != "prefill":
        names += [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
    for descriptor in descriptors:
        if order["type"] == "prefill":
            size = os.fstat(descriptor).st_size
            ids = memoryview(os.pread(descriptor, size, 0)).cast("I").tolist()
        os.close(descriptor)
    if order["type"] != "prefill":
        continue
    if len(names) != announced or sorted(names[1:], key=first_tensor) != names[1:]:
        say({"type": "failed", "id": order["id"], "error": f"{len(names)} of {announced}, in order {names}"})
        continue
    done = {"type": "done", "id": order["id"], "n_tokens": len(ids), "argmax": sum(ids)}
    if manner == "hangs":
        time.sleep(1000)
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    if manner == "dies":
        os.abort()
    if manner == "exits":
        sys.exit("no device")
    if manner == "hangs up":
        proxy.close()
        time.sleep(1000)
    if manner == "nonsense":
        proxy.send(b"done!")
    if manner == "a packet too long":
        proxy.send(b" " * 5000)
    if manner == "another prompt":
        done["id"] += 1
    if manner == "miscounts":
        done["n_tokens"] += 1
    if manner == "talks":
        print("not read by anybody", flush=True)
        sys.stderr.write("progress: 0.5\n")
        sys.stderr.flush()
    say(done)
"#;

fn by_hand(manner: &str) -> ProviderProgram {
    let leading_arguments = ["-c", BY_HAND, manner].map(Into::into).to_vec();
    ProviderProgram { leading_arguments, ..ProviderProgram::new("python3", MODEL) }
}

/// The example `provider`, which lies beside the directory of the test programs.
fn example() -> ProviderProgram {
    let path: PathBuf = std::env::current_exe().unwrap().with_file_name("../examples/provider");
    assert!(path.exists(), "{} is missing; build it: cargo build -p kvshare --examples", path.display());
    ProviderProgram::new(path, MODEL)
}

/// The tests count this process's descriptors, so they take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

/// A decoder's cache.
struct Decoder {
    header: Header,
    memory: Vec<OwnedFd>,
}

impl Decoder {
    fn new() -> Self {
        Self::of(header(
            &Geometry::uniform(LAYERS, WIDTH as u64, WIDTH as u64, CELLS.into(), TensorType::F32).layout().unwrap(),
        ))
    }

    fn of(header: Header) -> Self {
        let memory = allocate(&header, &Memfd::new(), "resident").unwrap();
        Self { header, memory }
    }

    fn share(&self, directory: &Path) -> ReceivedShare {
        let soon = Instant::now() + Duration::from_secs(60);
        let desk = ShareDesk::open(directory).unwrap();
        let path = desk.path().to_owned();
        let memory: Vec<BorrowedFd<'_>> = self.memory.iter().map(|memory| memory.as_fd()).collect();
        let text = self.header.to_json();
        std::thread::scope(|scope| {
            scope.spawn(|| connect(&path, soon).unwrap().send(&text, &memory, soon).unwrap());
            desk.receive(soon, Duration::from_secs(60), &Cancel::new().unwrap()).unwrap()
        })
    }

    /// Channel 0 of K, for each position of a layer.
    fn column(&self, layer: u32) -> Vec<f32> {
        let cache = MappedCache::map(&self.header, &self.memory, &MapOptions::default()).unwrap();
        let k = cache.k(layer).unwrap();
        (0..CELLS.into())
            .map(|position| {
                let mut row = [0.0; WIDTH];
                k.read_f32(position, &mut row).unwrap();
                row[0]
            })
            .collect()
    }
}

fn header(layout: &Layout) -> Header {
    Header::describe(layout, None, Some(Params::plain(CELLS, TensorType::F32)))
}

/// What the example writes into channel 0: `position + layer / token`.
fn expected(layer: u32, tokens: &[i32]) -> Vec<f32> {
    let value = |position: u32| match tokens.get(position as usize) {
        Some(&token) => position as f32 + layer as f32 / token as f32,
        None => 0.0,
    };
    (0..CELLS).map(value).collect()
}

struct Setting {
    provider: ResidentProvider,
    directory: tempfile::TempDir,
    log: Vec<String>,
}

impl Setting {
    fn new(program: ProviderProgram) -> Self {
        Self { provider: ResidentProvider::new(program), directory: directory(), log: Vec::new() }
    }

    fn fill(&mut self, decoder: &Decoder, tokens: &[i32]) -> Result<ProviderReport, ProviderFailure> {
        self.fill_unless(decoder, tokens, None)
    }

    fn fill_unless(
        &mut self,
        decoder: &Decoder,
        tokens: &[i32],
        cancel: Option<&Cancel>,
    ) -> Result<ProviderReport, ProviderFailure> {
        let share = decoder.share(self.directory.path());
        self.run(tokens, Destination::Shared(&share), cancel)
    }

    fn run(
        &mut self,
        tokens: &[i32],
        destination: Destination<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<ProviderReport, ProviderFailure> {
        let Self { provider, directory, log } = self;
        provider.run(tokens, destination, directory.path(), cancel, &mut |line| log.push(line.to_owned()))
    }

    fn id(&self) -> u32 {
        self.provider.id().expect("it runs")
    }
}

#[test]
fn one_process_fills_cache_after_cache() {
    let _alone = alone();
    let before = open_descriptors();
    let mut setting = Setting::new(example());
    let (first, second) = (Decoder::new(), Decoder::new());
    let mut ids = BTreeSet::new();
    for tokens in [vec![1, 2, 3], (1..=64).collect(), vec![7]] {
        let report = setting.fill(&first, &tokens).unwrap();
        assert_eq!(report.result.n_tokens, tokens.len() as u64);
        ids.insert(setting.id());
        assert_eq!(first.column(3)[..tokens.len()], expected(3, &tokens)[..tokens.len()]);
    }
    let kept = first.column(3);
    // The decoder was restarted: its cache is the same, and lies elsewhere.
    setting.fill(&second, &[5, 5]).unwrap();
    ids.insert(setting.id());
    assert_eq!((second.column(3), first.column(3)), (expected(3, &[5, 5]), kept));
    assert_eq!(ids.len(), 1, "one process");
    let id = setting.id();
    assert_eq!(
        setting.provider.stop(&mut |_| ()).unwrap(),
        Some(Ending::Exit(0)),
        "it ends by itself when nobody speaks to it"
    );
    assert!(!runs(id) && setting.provider.id().is_none() && setting.log.is_empty());
    drop((setting, first, second));
    assert_eq!(open_descriptors(), before);
}

#[test]
fn it_writes_the_state_file_that_a_one_shot_provider_writes() {
    let _alone = alone();
    let mut setting = Setting::new(example());
    let tokens = [3, 1, 4, 1, 5, 9];
    setting.run(&tokens, Destination::File { name: "resident.bin" }, None).unwrap();
    let directory = setting.directory.path();
    example().run(&tokens, Destination::File { name: "once.bin" }, directory, None, &mut |_| ()).unwrap();
    let read = |name| std::fs::read(directory.join(name)).unwrap();
    assert_eq!(read("resident.bin"), read("once.bin"));
    let refused = setting.run(&tokens, Destination::File { name: "../elsewhere.bin" }, None).unwrap_err();
    assert!(matches!(&refused, ProviderFailure::Said { words } if words.contains("no bare filename")), "{refused}");
}

#[test]
fn what_it_cannot_do_costs_it_one_prompt() {
    let _alone = alone();
    let mut setting = Setting::new(example());
    let decoder = Decoder::new();
    setting.fill(&decoder, &[1]).unwrap();
    let id = setting.id();
    let long: Vec<i32> = (0..65).collect();
    let other = header(&Geometry::uniform(LAYERS, 32, 32, CELLS.into(), TensorType::F32).layout().unwrap());
    for (decoder, tokens, words) in [
        (&decoder, &long[..], "65 tokens"),
        (&decoder, &[-1], "4294967295"),
        (&decoder, &[], "no token"),
        (&Decoder::of(other), &[1], "generation"),
    ] {
        let failure = setting.fill(decoder, tokens).unwrap_err();
        assert!(
            matches!(&failure, ProviderFailure::Said { words: said } if said.contains(words)),
            "{words}: {failure}"
        );
        assert!(failure.after_start() && !failure.may_still_write(), "{failure}");
        assert_eq!(setting.id(), id);
    }
    setting.fill(&decoder, &[2, 4]).unwrap();
    assert_eq!((setting.id(), decoder.column(1)[..2].to_vec()), (id, expected(1, &[2, 4])[..2].to_vec()));
}

#[test]
fn more_regions_than_one_packet_holds_arrive_all_the_same() {
    let _alone = alone();
    // Each tensor a region of its own, and each of those in memory of its own.
    let geometry = Geometry::uniform(150, 4, 4, CELLS.into(), TensorType::F32);
    let tensors = geometry.groups().unwrap().remove(0);
    let decoder = Decoder::of(header(&Layout::place(tensors.into_iter().map(|tensor| vec![tensor]))));
    assert_eq!(decoder.memory.len(), 300);
    let mut setting = Setting::new(by_hand("good"));
    let report = setting.fill(&decoder, &[20, 22]).unwrap();
    assert_eq!(report.result.argmax, 42, "the tokens arrived, too");
}

#[test]
fn one_that_died_in_between_is_replaced() {
    let _alone = alone();
    let mut setting = Setting::new(example());
    let decoder = Decoder::new();
    setting.fill(&decoder, &[1]).unwrap();
    let id = setting.id();
    let process = rustix::process::Pid::from_raw(id.cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    while runs(id) {
        std::thread::yield_now();
    }
    setting.fill(&decoder, &[9, 9, 9]).unwrap();
    assert_ne!(setting.id(), id);
    assert_eq!(decoder.column(2)[..3], expected(2, &[9, 9, 9])[..3]);
}

#[test]
fn whatever_else_goes_wrong_ends_it_and_the_next_prompt_has_a_new_one() {
    let _alone = alone();
    let decoder = Decoder::new();
    let before = open_descriptors();
    let signal = |number: i32| format!("signal {number}");
    for (manner, words, ending) in [
        ("dies", "ended badly", signal(6)),
        ("exits", "no device", "exit status 1".to_owned()),
        ("hangs up", "ended badly", signal(15)),
        ("nonsense", "done!", signal(15)),
        ("a packet too long", "more than 4096 bytes", signal(15)),
        ("another prompt", "no answer to prompt", signal(15)),
        ("another protocol", "must say first", signal(15)),
    ] {
        let mut setting = Setting::new(by_hand(manner));
        for _ in 0..2 {
            let failure = setting.fill(&decoder, &[1, 2]).unwrap_err();
            let text = failure.to_string();
            assert!(text.contains(words) && text.contains(&ending), "{manner}: {text}");
            assert!(setting.provider.id().is_none() && !failure.may_still_write(), "{manner}: {text}");
        }
    }
    let mut setting = Setting::new(by_hand("miscounts"));
    let failure = setting.fill(&decoder, &[1, 2]).unwrap_err();
    assert!(matches!(failure, ProviderFailure::WrongCount { reported: 3, given: 2 }), "{failure}");
    assert!(setting.provider.id().is_none());
    assert_eq!(open_descriptors(), before);
}

#[test]
fn a_limit_and_a_cancel_end_it_by_force_if_need_be() {
    let _alone = alone();
    let decoder = Decoder::new();
    for (manner, number) in [("hangs", 15), ("stubborn", 9), ("never ready", 15)] {
        let program = ProviderProgram { time_limit: Duration::from_millis(500), ..by_hand(manner) };
        let mut setting = Setting::new(program);
        let failure = setting.fill(&decoder, &[1]).unwrap_err();
        let as_expected =
            matches!(&failure, ProviderFailure::TimedOut { ending: Ending::Signal(by), .. } if *by == number);
        assert!(as_expected && !failure.may_still_write(), "{manner}: {failure}");
        assert!(setting.provider.id().is_none(), "{manner}");
    }
    let mut setting = Setting::new(by_hand("hangs"));
    let cancel = Cancel::new().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            cancel.cancel();
        });
        let failure = setting.fill_unless(&decoder, &[1], Some(&cancel)).unwrap_err();
        assert!(matches!(failure, ProviderFailure::Cancelled { ending: Ending::Signal(15) }), "{failure}");
    });
    assert!(setting.provider.id().is_none());
}

#[test]
fn a_program_that_does_not_stay_says_so() {
    let _alone = alone();
    let decoder = Decoder::new();
    let leading_arguments = ["-c", "echo 'unknown flag --resident' >&2; exit 2"].map(Into::into).to_vec();
    let mut setting = Setting::new(ProviderProgram { leading_arguments, ..ProviderProgram::new("/bin/sh", MODEL) });
    let failure = setting.fill(&decoder, &[1]).unwrap_err();
    assert_eq!(failure.to_string(), "the provider ended badly (exit status 2); it said: unknown flag --resident");
    let mut setting = Setting::new(ProviderProgram::new("/no/such/provider", MODEL));
    let failure = setting.fill(&decoder, &[1]).unwrap_err();
    assert!(matches!(failure, ProviderFailure::Start(_)) && !failure.after_start(), "{failure}");
}

#[test]
fn its_standard_error_is_logged_and_its_standard_output_is_not_read() {
    let _alone = alone();
    let decoder = Decoder::new();
    let mut setting = Setting::new(by_hand("talks"));
    for _ in 0..3 {
        setting.fill(&decoder, &[1]).unwrap();
    }
    setting.provider.stop(&mut |_| ()).unwrap();
    assert!(setting.log.iter().all(|line| line == "progress: 0.5") && setting.log.len() >= 2, "{:?}", setting.log);
}
