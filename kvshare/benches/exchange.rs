//! The exchange without a provider: mint a share, send its message, receive and check it, adopt. It must cost the same
//! whatever the regions' size and the prompt's length.

mod paired;

use std::hint::black_box;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kvshare::handoff::{KnownHeader, ReceivedShare};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::Unsealed;
use kvshare::memory::{Memfd, Reserve};
use kvshare::rows::allocate;
use kvshare::share::Ledger;
use kvshare::wire::{Limits, receive, send};
use paired::{Way, compare, stay_on_one_core};

struct Decoder {
    header: Vec<u8>,
    /// The receiver knows it from the first exchange on.
    known: KnownHeader,
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
            known: KnownHeader::default(),
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
        black_box(ReceivedShare::check(message, Unsealed::Refuse, &self.known).expect("a share"));

        let share = self.ledger.recognize(0, Some(number), Instant::now()).expect("recognized");
        self.ledger.adopt(share, Instant::now()).expect("adopted");
        // What an adopting decoder keeps of the request: the ids, four bytes a token. No cell moves.
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
    }
}

/// MiB of regions and tokens of a prompt.
const SHAPES: [(u64, usize); 6] = [(1, 1), (64, 251), (512, 3189), (2240, 251), (2240, 3189), (2240, 12_722)];

fn main() {
    stay_on_one_core();
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let ways = SHAPES.map(|(mebibytes, n_tokens)| {
        let mut decoder = Decoder::new(mebibytes);
        let name = format!("{mebibytes} MiB in {} regions, {n_tokens} tokens", decoder.memory.len());
        let tokens = vec![7; n_tokens];
        let (ours, theirs) = (&ours, &theirs);
        Way::new(name, move || decoder.exchange(ours, theirs, &tokens))
    });
    compare("exchange", 4000, ways);
}
