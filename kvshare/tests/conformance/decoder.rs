//! A decoder of the suite: a cache in memory of some kind, and how it gets to a provider and back.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use kvshare::handoff::{Cancel, Destination, ProviderFailure, ProviderProgram, ReceivedShare, ShareDesk};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::{Access, MapOptions};
use kvshare::rows::{self, MappedCache};
use kvshare::wire::connect;
use tempfile::TempDir;

use crate::kinds::Kind;
use crate::roles::{self, CELLS, LAYERS, WIDTH};

/// A decoder with a cache in memory of this kind, and a slot directory.
pub struct Decoder {
    pub header: Header,
    pub memory: Vec<OwnedFd>,
    /// How long a provider may run.
    pub limit: Duration,
    directory: TempDir,
}

impl Decoder {
    pub fn new(kind: &Kind) -> Self {
        Self::named(kind, "kvshare")
    }

    /// The same, with memory that is named after somebody else.
    pub fn named(kind: &Kind, name: &str) -> Self {
        Self::with_header(kind, name, Self::header())
    }

    /// The same, with a cache that lies elsewhere in its memory.
    pub fn with_header(kind: &Kind, name: &str, header: Header) -> Self {
        let memory = rows::allocate(&header, &*kind.source, name).expect("memory");
        let directory = tempfile::Builder::new().permissions(mode_0700()).tempdir().expect("a directory");
        Self { header, memory, limit: Duration::from_secs(60), directory }
    }

    /// What a decoder of the suite says of its cache.
    pub fn header() -> Header {
        let layout = Self::geometry().layout().expect("a layout");
        Header::describe(&layout, None, Some(Params::plain(CELLS as u32, TensorType::F32)))
    }

    /// What its cache consists of.
    pub fn geometry() -> Geometry {
        Geometry::uniform(LAYERS, WIDTH, WIDTH, CELLS, TensorType::F32)
    }

    /// Sends the header and the memory through a socket, as a decoder and a proxy do.
    pub fn share(&self) -> ReceivedShare {
        let desk = ShareDesk::open(self.directory.path()).expect("a desk");
        let path = desk.path().to_owned();
        std::thread::scope(|scope| {
            scope.spawn(|| self.send(&path));
            desk.receive(soon(), Duration::from_secs(60), &Cancel::new().expect("a descriptor")).expect("a share")
        })
    }

    /// A decoder's part of that.
    pub fn send(&self, socket: &Path) {
        let descriptors: Vec<_> = self.memory.iter().map(|memory| memory.as_fd()).collect();
        connect(socket, soon()).expect("a peer").send(&self.header.to_json(), &descriptors, soon()).expect("sent");
    }

    /// The slot directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a provider that plays this part.
    pub fn run(&self, role: &str, tokens: &[i32], cancel: Option<&Cancel>) -> Result<(), ProviderFailure> {
        self.run_program(&roles::provider(role), tokens, cancel)
    }

    /// Runs a provider.
    pub fn run_program(
        &self,
        program: &ProviderProgram,
        tokens: &[i32],
        cancel: Option<&Cancel>,
    ) -> Result<(), ProviderFailure> {
        let share = self.share();
        let program = ProviderProgram { time_limit: self.limit, ..program.clone() };
        let log = &mut |line: &str| println!("provider: {line}");
        program.run(tokens, Destination::Shared(&share), self.directory.path(), cancel, log).map(|_| ())
    }

    /// All K and V rows, as the decoder reads them.
    pub fn rows(&self) -> Vec<Vec<f32>> {
        Self::rows_in(&self.header, &self.memory)
    }

    /// All K and V rows of a cache in this memory.
    pub fn rows_in(header: &Header, memory: &[OwnedFd]) -> Vec<Vec<f32>> {
        let cache = MappedCache::map(header, memory, &MapOptions::default()).expect("a mapping");
        let access = cache.begin_cpu_access(Access::ReadOnly).expect("access");
        let mut rows = Vec::new();
        for layer in 0..LAYERS {
            for plane in [cache.k(layer).expect("a layer"), cache.v(layer).expect("a layer")] {
                for position in 0..CELLS {
                    let mut row = vec![0.0; WIDTH as usize];
                    plane.read_f32(position, &mut row).expect("a row");
                    rows.push(row);
                }
            }
        }
        access.end().expect("the end of the access");
        rows
    }

    /// Returns when a provider has begun to write.
    pub fn wait_for_a_row(&self) {
        while self.rows().concat().iter().all(|&value| value == 0.0) {
            std::thread::yield_now();
        }
    }

    /// What the rows are after a provider did well.
    pub fn expected(tokens: &[i32]) -> Vec<Vec<f32>> {
        let row = |layer, position| match position < tokens.len() as u64 {
            true => roles::row(layer, position, tokens),
            false => vec![0.0; WIDTH as usize],
        };
        let plane = |layer| (0..CELLS).map(move |position| row(layer, position));
        (0..LAYERS).flat_map(|layer| plane(layer).chain(plane(layer))).collect()
    }
}

fn mode_0700() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}
