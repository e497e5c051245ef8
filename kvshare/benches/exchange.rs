//! The exchange without a provider: mint a share, send its message, receive and check it, adopt. It must cost the same
//! whatever the regions' size and the prompt's length.

use std::hint::black_box;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kvshare::handoff::ReceivedShare;
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::Unsealed;
use kvshare::memory::{Memfd, Reserve};
use kvshare::rows::allocate;
use kvshare::share::Ledger;
use kvshare::wire::{Limits, receive, send};

struct Decoder {
    header: Vec<u8>,
    memory: Vec<OwnedFd>,
    ledger: Ledger,
    tokens: Vec<i32>,
}

impl Decoder {
    /// 28 layers of Qwen3-0.6B's widths and as many cells as bring the regions to about `mebibytes`.
    fn new(mebibytes: u64) -> Self {
        let cells = (mebibytes << 20) / (28 * 2 * 1024 * 2);
        let layout = Geometry::uniform(28, 1024, 1024, cells.max(1), TensorType::F16).layout().expect("a layout");
        let header = Header::describe(&layout, None, Some(Params::plain(cells as u32, TensorType::F16)));
        Self {
            header: header.to_json(),
            memory: allocate(&header, &Memfd::new().reserve(Reserve::OnTouch), "bench").expect("memory"),
            ledger: Ledger::new(1, Duration::from_secs(600)),
            tokens: Vec::new(),
        }
    }

    fn exchange(&mut self, ours: &UnixStream, theirs: &UnixStream, tokens: &[i32]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let number = self.ledger.mint(0, Instant::now()).expect("minted").get();
        let descriptors: Vec<BorrowedFd<'_>> = self.memory.iter().map(|memory| memory.as_fd()).collect();
        send(ours, &self.header, &descriptors, deadline).expect("sent");

        let message = receive(theirs, &Limits::default(), deadline).expect("received");
        black_box(ReceivedShare::check(message, Unsealed::Refuse).expect("a share"));

        let share = self.ledger.recognize(0, Some(number), Instant::now()).expect("recognized");
        self.ledger.adopt(share, Instant::now()).expect("adopted");
        // What an adopting decoder keeps of the request: the ids, four bytes a token. No cell moves.
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
    }
}

fn exchange(criterion: &mut Criterion) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let mut group = criterion.benchmark_group("exchange");
    for (mebibytes, tokens) in [(1, 1), (64, 251), (512, 3189), (2240, 251), (2240, 3189), (2240, 12_722)] {
        let mut decoder = Decoder::new(mebibytes);
        let tokens = vec![7; tokens];
        let id = BenchmarkId::new(format!("{mebibytes} MiB"), format!("{} tokens", tokens.len()));
        group.bench_function(id, |bencher| bencher.iter(|| decoder.exchange(&ours, &theirs, &tokens)));
    }
    group.finish();
}

criterion_group!(benches, exchange);
criterion_main!(benches);
