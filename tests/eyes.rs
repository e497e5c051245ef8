//! For the tests of the commands that look: a cache in memory, and the program run with its descriptors.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvshare::fd::{Output, Program};
use kvshare::header::{Header, ModelIdentity, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::{Access, MapOptions};
use kvshare::memory::{Memfd, RegionSource};
use kvshare::rows::{MappedCache, allocate};
use serde_json::Value;

/// A run of the program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said.
    pub stderr: String,
}

impl Ended {
    /// What it printed, as text.
    ///
    /// # Panics
    /// It is none.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text on standard output")
    }

    /// What it printed, as JSON.
    ///
    /// # Panics
    /// It is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The error that it printed as an object.
    ///
    /// # Panics
    /// There is none.
    pub fn json_error(&self) -> String {
        let last = self.stderr.lines().last().unwrap_or_default();
        let object: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("no JSON error: {self:?}"));
        object["error"]["message"].as_str().expect("a message").to_owned()
    }
}

/// Runs `program` with `arguments`; it inherits `descriptors` at 3 and up.
///
/// # Panics
/// It does not start, or does not end.
pub fn run(program: &str, arguments: &[&str], descriptors: &[BorrowedFd<'_>]) -> Ended {
    run_with(&[], program, arguments, descriptors)
}

/// [`run`] with variables set in the program's environment.
///
/// # Panics
/// As [`run`].
pub fn run_with(
    variables: &[(&str, &str)],
    program: &str,
    arguments: &[&str],
    descriptors: &[BorrowedFd<'_>],
) -> Ended {
    let program = Program::new(program).args(arguments).descriptors(descriptors.iter().copied());
    let program = variables.iter().fold(program, |program, (name, value)| program.env(*name, *value));
    let mut child = program.stdout(Output::Pipe).stderr(Output::Pipe).spawn().expect("the program starts");
    let reader = |stream: Option<OwnedFd>| {
        let mut stream = File::from(stream.expect("a pipe"));
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).expect("its output");
            bytes
        })
    };
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = child.wait(Instant::now() + Duration::from_secs(120)).expect("its status").expect("it ends");
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("a reader"));
    Ended { code: status.code(), stdout, stderr: String::from_utf8(stderr).expect("text on standard error") }
}

/// A cache in memory, with its header in a file.
pub struct Cache {
    /// The header.
    pub header: Header,
    /// The regions' memory.
    pub descriptors: Vec<OwnedFd>,
    directory: tempfile::TempDir,
}

impl Cache {
    /// A cache of `layers` layers of `width` channels and `cells` cells in a memfd; nothing is written in it.
    ///
    /// # Panics
    /// There is no such cache.
    pub fn new(layers: u32, width: u64, cells: u64, params: Params) -> Self {
        Self::new_in(&Memfd::new(), layers, width, cells, params)
    }

    fn new_in(source: &dyn RegionSource, layers: u32, width: u64, cells: u64, params: Params) -> Self {
        let geometry = Geometry::uniform(layers, width, width, cells, params.type_k);
        let geometry = Geometry { type_v: params.type_v, streams: params.n_stream.into(), ..geometry };
        let model = ModelIdentity { name: "tiny".to_owned(), sha256: None };
        let header = Header::describe(&geometry.layout().expect("a layout"), Some(model), Some(params));
        let descriptors = allocate(&header, source, "kvshare").expect("memory");
        let directory = tempfile::tempdir().expect("a directory");
        let cache = Self { header, descriptors, directory };
        std::fs::write(cache.header_path(), cache.header.to_json()).expect("the header is written");
        cache
    }

    /// Two layers of 64 channels in f16, 100 cells of which the first `rows` are written.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn small(rows: u64) -> Self {
        Self::small_in(&Memfd::new(), rows)
    }

    /// The same in memory of `source`.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn small_in(source: &dyn RegionSource, rows: u64) -> Self {
        let cache = Self::new_in(source, 2, 64, 100, Params::plain(100, TensorType::F16));
        cache.fill(rows);
        cache
    }

    /// Writes the first `rows` rows of every layer: element (layer, position, channel) of K is known to
    /// [`element`], that of V is its negative.
    ///
    /// # Panics
    /// There are not so many.
    pub fn fill(&self, rows: u64) {
        let mut mapped = self.mapped();
        let access = mapped.begin_cpu_access(Access::ReadWrite).expect("access");
        for layer in mapped.layers().to_vec() {
            for position in 0..rows {
                let row = |sign: f32| (0..layer.k.width).map(move |c| sign * element(layer.layer, position, c));
                let (k, v) = (row(1.0).collect::<Vec<_>>(), row(-1.0).collect::<Vec<_>>());
                mapped.k_mut(layer.layer).and_then(|mut rows| rows.write_f32(position, &k)).expect("a K row");
                mapped.v_mut(layer.layer).and_then(|mut rows| rows.write_f32(position, &v)).expect("a V row");
            }
        }
        access.end().expect("the end of the access");
    }

    /// The cache mapped for writing.
    ///
    /// # Panics
    /// It cannot be.
    pub fn mapped(&self) -> MappedCache {
        let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
        MappedCache::map(&self.header, &self.descriptors, &options).expect("a mapped cache")
    }

    /// Where the header lies.
    pub fn header_path(&self) -> PathBuf {
        self.path("header.json")
    }

    /// A path in a directory of the cache's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its descriptors, borrowed.
    pub fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().map(|descriptor| descriptor.as_fd()).collect()
    }

    /// Runs `program` with its descriptors, and `--fds` and `--layout` after `arguments`.
    ///
    /// # Panics
    /// It does not end.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Ended {
        let numbers: Vec<String> = (3..3 + self.descriptors.len()).map(|number| number.to_string()).collect();
        let (fds, layout) = (numbers.join(","), self.header_path());
        let layout = layout.to_str().expect("a path in UTF-8");
        run(program, &[arguments, &["--fds", &fds, "--layout", layout]].concat(), &self.borrowed())
    }

    /// All bytes of its descriptors.
    ///
    /// # Panics
    /// They cannot be read.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        let read = |descriptor: &OwnedFd| {
            let mapped = kvshare::fd::size(descriptor).expect("a size").expect("a memfd has one");
            let mut bytes = vec![0; usize::try_from(mapped).expect("a size that fits")];
            rustix::io::pread(descriptor, &mut bytes, 0).expect("its bytes");
            bytes
        };
        self.descriptors.iter().map(read).collect()
    }
}

/// A packed state file of one stream and `count` tokens as a server of a model with M-RoPE would save it: each cell is 12
/// bytes longer.
pub fn with_m_rope(file: &[u8], count: usize) -> Vec<u8> {
    // Magic, version, words, -1, pack version, tokens and their count, media, streams, cells.
    let cells = 24 + 4 * count + 4 + 4 + 4;
    let mut longer = file[..cells].to_vec();
    for cell in file[cells..][..12 * count].chunks(12) {
        longer.extend([&cell[..8], &[7; 12], &cell[8..]].concat());
    }
    longer.extend(&file[cells + 12 * count..]);
    longer
}

/// The number that [`Cache::fill`] writes: exact in f16, and never 0.
pub fn element(layer: u32, position: u64, channel: u64) -> f32 {
    (1 + layer) as f32 + position as f32 / 8.0 + channel as f32 / 64.0
}
