//! The shared route from end to end: a decoder sends its memory to a desk, a provider program fills it, and the decoder
//! reads there what the provider wrote. The provider is the library's example.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvshare::fd::{Output, Program};
use kvshare::handoff::{Cancel, Destination, Ending, ProviderFailure, ProviderProgram, ReceivedShare, ShareDesk};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::MapOptions;
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::provider::format_tokens;
use kvshare::rows::MappedCache;
use kvshare::share::Ledger;
use kvshare::wire::connect;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// A model of 8 layers whose rows have 64 channels.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");
const LAYERS: u32 = 8;
const WIDTH: usize = 64;
const CELLS: u32 = 64;

/// The tests count this process's descriptors, so they take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The example `provider`, which lies beside the directory of the test programs.
fn provider() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("../examples/provider");
    assert!(path.exists(), "{} is missing; build it: cargo build -p kvshare --examples", path.display());
    path
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

/// A decoder's cache: its header, and a memfd for each region.
struct Decoder {
    header: Header,
    memory: Vec<OwnedFd>,
}

impl Decoder {
    fn new(tensor_type: TensorType) -> Self {
        let layout = Geometry::uniform(LAYERS, WIDTH as u64, WIDTH as u64, CELLS.into(), tensor_type).layout().unwrap();
        let header = Header::describe(&layout, None, Some(Params::plain(CELLS, tensor_type)));
        let memory = |size| Memfd::new().allocate("shared-route", size).unwrap().descriptor;
        let memory = header.regions.iter().map(|region| memory(region.size)).collect();
        Self { header, memory }
    }

    /// Sends the header `text` with the memory, through a desk in `directory`.
    fn share(&self, text: &[u8], directory: &Path) -> ReceivedShare {
        let desk = ShareDesk::open(directory).unwrap();
        let path = desk.path().to_owned();
        std::thread::scope(|scope| {
            scope.spawn(|| connect(&path, soon()).unwrap().send(text, &self.descriptors(), soon()).unwrap());
            desk.receive(soon(), Duration::from_secs(20), &Cancel::new().unwrap()).unwrap()
        })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memory.iter().map(|memory| memory.as_fd()).collect()
    }

    /// Every row of every layer, K and then V, as the decoder reads them.
    fn rows(&self) -> Vec<Vec<f32>> {
        let cache = MappedCache::map(&self.header, &self.memory, &MapOptions::default()).unwrap();
        let mut rows = Vec::new();
        for layer in 0..LAYERS {
            for plane in [cache.k(layer).unwrap(), cache.v(layer).unwrap()] {
                for position in 0..CELLS.into() {
                    let mut row = vec![0.0; WIDTH];
                    plane.read_f32(position, &mut row).unwrap();
                    rows.push(row);
                }
            }
        }
        rows
    }
}

/// What the example writes: `channel + position + layer / token`, in K and in V, and nothing past the prompt.
fn expected(tokens: &[i32], tensor_type: TensorType) -> Vec<Vec<f32>> {
    let round = |value: f32| if tensor_type == TensorType::F16 { half::f16::from_f32(value).to_f32() } else { value };
    let row = |layer: u32, position: u32| match tokens.get(position as usize) {
        Some(&token) => {
            let value = |channel| (channel as u64 + u64::from(position)) as f32 + layer as f32 / token as f32;
            (0..WIDTH).map(|channel| round(value(channel))).collect()
        }
        None => vec![0.0; WIDTH],
    };
    let plane = |layer| (0..CELLS).map(move |position| (layer, position));
    let places = (0..LAYERS).flat_map(|layer| plane(layer).chain(plane(layer)));
    places.map(|(layer, position)| row(layer, position)).collect()
}

#[test]
fn the_decoder_reads_what_the_provider_wrote_and_nobody_keeps_a_descriptor() {
    let _alone = alone();
    let tokens: Vec<i32> = (1..=41).collect();
    let before = open_descriptors();
    for tensor_type in [TensorType::F32, TensorType::F16] {
        for names_tensors in [true, false] {
            let (decoder, directory) = (Decoder::new(tensor_type), directory());
            let mut ledger = Ledger::new(1, Duration::from_secs(600));
            let number = ledger.mint(0, Instant::now()).unwrap().get();
            let mut header = decoder.header.clone();
            if !names_tensors {
                (header.tensors, header.params) = (Vec::new(), None);
            }
            let share = decoder.share(&header.to_json(), directory.path());

            let program = ProviderProgram::new(provider(), MODEL);
            let mut log = Vec::new();
            let mut keep = |line: &str| log.push(line.to_owned());
            let report = program.run(&tokens, Destination::Shared(&share), directory.path(), None, &mut keep);
            assert_eq!(report.expect("the provider succeeds").result.n_tokens, 41);
            assert_eq!((log, std::fs::read_dir(directory.path()).unwrap().count()), (vec![], 0));

            let adopted = ledger.recognize(0, Some(number), Instant::now()).unwrap();
            ledger.adopt(adopted, Instant::now()).unwrap();
            assert!(decoder.rows() == expected(&tokens, tensor_type), "{tensor_type}, tensors: {names_tensors}");
        }
        assert_eq!(open_descriptors(), before);
    }
}

#[test]
fn a_provider_that_refuses_has_written_nothing_and_writes_no_more() {
    let _alone = alone();
    let before = open_descriptors();
    let (decoder, directory) = (Decoder::new(TensorType::F16), directory());
    let share = decoder.share(&decoder.header.to_json(), directory.path());
    let program = ProviderProgram::new(provider(), MODEL);
    let mut log = Vec::new();
    let mut keep = |line: &str| log.push(line.to_owned());
    let failure = program.run(&[1; 65], Destination::Shared(&share), directory.path(), None, &mut keep).unwrap_err();
    assert!(matches!(failure, ProviderFailure::Failed { ending: Ending::Exit(1), .. }), "{failure}");
    assert!(failure.after_start() && !failure.may_still_write());
    assert_eq!(log, ["the prompt has 65 tokens, but the decoder's cache only 64 cells; shorten it, or raise its -c"]);
    assert!(decoder.rows() == expected(&[], TensorType::F16));
    drop((share, decoder));
    assert_eq!(open_descriptors(), before);
}

/// What a provider is started with.
struct Start {
    header: Header,
    memory: Vec<OwnedFd>,
    fds: &'static str,
    tokens: String,
    model: &'static str,
}

impl Start {
    /// Runs the example: its exit code, and what it wrote to standard error.
    fn run(&self) -> (Option<i32>, String) {
        let directory = directory();
        std::fs::write(directory.path().join("tokens"), &self.tokens).unwrap();
        std::fs::write(directory.path().join("header"), self.header.to_json()).unwrap();
        let mut child = Program::new(provider())
            .args(["--tokens", "tokens", "--model", self.model, "--layout", "header", "--fds", self.fds])
            .current_dir(directory.path())
            .descriptors(self.memory.iter().map(|memory| memory.as_fd()))
            .stdout(Output::Pipe)
            .stderr(Output::Pipe)
            .spawn()
            .unwrap();
        let [stdout, stderr] = [child.stdout.take(), child.stderr.take()].map(|pipe| {
            let mut text = String::new();
            File::from(pipe.unwrap()).read_to_string(&mut text).unwrap();
            text
        });
        let code = child.wait(soon()).unwrap().unwrap().code();
        assert_eq!(stdout.is_empty(), code != Some(0), "only a success has a result");
        (code, stderr)
    }
}

fn sealed(size: u64) -> OwnedFd {
    Memfd::new().allocate("shared-route-other", size).unwrap().descriptor
}

fn unsealed(size: u64) -> OwnedFd {
    let memfd = memfd_create("shared-route-unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, size).unwrap();
    memfd
}

#[test]
fn what_a_provider_cannot_use_ends_it_with_a_reason_and_nothing_written() {
    let _alone = alone();
    let before = open_descriptors();
    type Change = fn(&mut Start);
    let cases: [(Change, i32, &str); 13] = [
        (|start| start.header.regions[0].layout ^= 1, 1, "announces the layout hash"),
        (|start| start.header.regions[0].size += 4096, 1, "ends at byte"),
        (|start| start.memory[0] = sealed(4096), 1, "which is only 4096 bytes long"),
        (|start| start.memory[0] = unsealed(start.header.regions[0].size), 1, "the memory is not sealed"),
        (|start| start.memory.clear(), 1, "no descriptor is open at 3"),
        (
            |start| {
                start.memory.push(sealed(4096));
                start.fds = "3,4";
            },
            1,
            "--fds has 2 descriptors, but the header names 1",
        ),
        (|start| start.fds = "9", 1, "no descriptor is open at 9; was this program started with it?"),
        (|start| start.fds = "3,3", 1, "descriptor 3 is listed twice"),
        (|start| start.fds = "2", 2, "--fds has \"2\", which is no descriptor number from 3 up"),
        (
            |start| start.tokens = format_tokens(&[1; 65]),
            1,
            "the prompt has 65 tokens, but the decoder's cache only 64",
        ),
        (|start| start.tokens.clear(), 1, "has no token in it"),
        (|start| start.tokens = "1\nx\n".to_owned(), 1, "line 2 of the token file is \"x\""),
        (
            |start| {
                start.header.tensors.clear();
                start.model = "/no/such/model.gguf";
            },
            1,
            "cannot read the model file /no/such/model.gguf",
        ),
    ];
    for (change, code, words) in cases {
        let decoder = Decoder::new(TensorType::F16);
        let memory = decoder.memory.iter().map(|memory| memory.try_clone().unwrap()).collect();
        let tokens = format_tokens(&[1, 2]);
        let mut start = Start { header: decoder.header.clone(), memory, fds: "3", tokens, model: MODEL };
        change(&mut start);
        let (found, said) = start.run();
        assert!(found == Some(code) && said.contains(words), "expected {code} and {words:?}: {found:?}, {said}");
        assert!(decoder.rows() == expected(&[], TensorType::F16), "{words:?}");
    }
    assert_eq!(open_descriptors(), before);
}
