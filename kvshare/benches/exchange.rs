//! The exchange without a provider: mint a share, send its message, receive and check it, adopt. It must cost the same
//! whatever the regions' size and the prompt's length.
//!
//! A machine drifts more in a second than these shapes may differ. So they take turns: each round makes one exchange of
//! every shape, in an order that changes, and what is compared is the median of the ratios within a round. The message
//! alone, with one descriptor and with three, tells how much of a difference is the number of regions and not their size.
//!
//! `cargo bench -p kvshare --bench exchange -- --json` prints JSON, `--rounds N` makes more or fewer rounds.

use std::hint::black_box;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kvshare::handoff::ReceivedShare;
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::map::Unsealed;
use kvshare::memory::{Memfd, Reserve};
use kvshare::rows::allocate;
use kvshare::share::Ledger;
use kvshare::wire::{Limits, receive, send};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde_json::json;

const ROUNDS: usize = 3000;
/// Rounds before those that count.
const WARM_UP: usize = 200;

const SHAPES: [(u64, usize); 6] = [(1, 1), (64, 251), (512, 3189), (2240, 251), (2240, 3189), (2240, 12_722)];

/// How many descriptors a message alone has.
const MESSAGES: [usize; 2] = [1, 3];

/// The parts of an exchange.
const STAGES: [&str; 4] = ["send", "receive", "check", "adopt"];

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

    /// One exchange, and what each of its [`STAGES`] took.
    fn exchange(&mut self, (ours, theirs): &(UnixStream, UnixStream), tokens: &[i32]) -> [Duration; 4] {
        let deadline = Instant::now() + Duration::from_secs(60);
        let started = Instant::now();
        let number = self.ledger.mint(0, Instant::now()).expect("minted").get();
        let descriptors: Vec<BorrowedFd<'_>> = self.memory.iter().map(|memory| memory.as_fd()).collect();
        send(ours, &self.header, &descriptors, deadline).expect("sent");
        let sent = Instant::now();
        let message = receive(theirs, &Limits::default(), deadline).expect("received");
        let received = Instant::now();
        black_box(ReceivedShare::check(message, Unsealed::Refuse).expect("a share"));
        let checked = Instant::now();
        let share = self.ledger.recognize(0, Some(number), Instant::now()).expect("recognized");
        self.ledger.adopt(share, Instant::now()).expect("adopted");
        // What an adopting decoder keeps of the request: the ids, four bytes a token. No cell moves.
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        [sent - started, received - sent, checked - received, checked.elapsed()]
    }
}

/// The message of the largest shape with its first descriptor `count` times: what the number of descriptors alone costs.
fn message(decoder: &Decoder, count: usize, (ours, theirs): &(UnixStream, UnixStream)) -> Duration {
    let deadline = Instant::now() + Duration::from_secs(60);
    let started = Instant::now();
    send(ours, &decoder.header, &vec![decoder.memory[0].as_fd(); count], deadline).expect("sent");
    black_box(receive(theirs, &Limits::default(), deadline).expect("received"));
    started.elapsed()
}

/// The times of one shape, a round each, in microseconds.
#[derive(Default)]
struct Times {
    total: Vec<f64>,
    stages: [Vec<f64>; 4],
}

impl Times {
    fn add(&mut self, stages: [Duration; 4]) {
        self.total.push(microseconds(stages.iter().sum()));
        for (times, took) in self.stages.iter_mut().zip(stages) {
            times.push(microseconds(took));
        }
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of the ratios of two shapes' times in the same round.
fn ratio(times: &[f64], to: &[f64]) -> f64 {
    median(times.iter().zip(to).map(|(time, to)| time / to).collect())
}

/// Keeps this thread where it is: an exchange costs four times as much when it moves between two cores.
fn stay_on_one_core() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).expect("pinned");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|argument| *argument != name).nth(1);
    let rounds = after("--rounds").map_or(ROUNDS, |rounds| rounds.parse().expect("--rounds takes a number"));

    stay_on_one_core();
    let sockets = UnixStream::pair().expect("a socket pair");
    let mut decoders: Vec<Decoder> = SHAPES.iter().map(|(mebibytes, _)| Decoder::new(*mebibytes)).collect();
    let tokens = vec![7; SHAPES.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default()];
    let mut times: [Times; SHAPES.len()] = Default::default();
    let mut messages = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + rounds {
        let counts = round >= WARM_UP;
        for step in 0..SHAPES.len() {
            // Forwards and backwards in turn, each time from another shape on.
            let step = if round % 2 == 0 { step } else { SHAPES.len() - 1 - step };
            let shape = (step + round / 2) % SHAPES.len();
            let stages = decoders[shape].exchange(&sockets, &tokens[..SHAPES[shape].1]);
            if counts {
                times[shape].add(stages);
            }
        }
        // Whichever is second finds the first one's memory warm.
        for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let took = message(&decoders[SHAPES.len() - 1], MESSAGES[index], &sockets);
            if counts {
                messages[index].push(microseconds(took));
            }
        }
    }
    if arguments.iter().any(|argument| argument == "--json") {
        print_json(&decoders, &times, &messages);
    } else {
        print_table(&decoders, &times, &messages);
    }
}

fn print_table(decoders: &[Decoder], times: &[Times], messages: &[Vec<f64>; 2]) {
    println!(
        "medians in µs of {} rounds; ratio: median of the rounds' ratios to the first shape",
        times[0].total.len()
    );
    println!("\n    MiB  tokens  descriptors  header B     send  receive    check    adopt    total  ratio");
    for (((mebibytes, tokens), decoder), of_shape) in SHAPES.iter().zip(decoders).zip(times) {
        let stages: String = of_shape.stages.iter().map(|stage| format!("{:9.2}", median(stage.clone()))).collect();
        println!(
            "{mebibytes:7} {tokens:7} {:12} {:9}{stages}{:9.2} {:6.3}",
            decoder.memory.len(),
            decoder.header.len(),
            median(of_shape.total.clone()),
            ratio(&of_shape.total, &times[0].total),
        );
    }
    let [one, three] = messages;
    println!(
        "\nthe message alone, with 1 descriptor {:.2}, with 3 {:.2}: {:.3} times",
        median(one.clone()),
        median(three.clone()),
        ratio(three, one)
    );
}

fn print_json(decoders: &[Decoder], times: &[Times], messages: &[Vec<f64>; 2]) {
    let shapes = SHAPES.iter().zip(decoders).zip(times).map(|(((mebibytes, tokens), decoder), of_shape)| {
        let stages = STAGES.iter().zip(&of_shape.stages).map(|(name, stage)| (*name, median(stage.clone())));
        json!({
            "mebibytes": mebibytes, "tokens": tokens, "descriptors": decoder.memory.len(),
            "header_bytes": decoder.header.len(), "median_us": median(of_shape.total.clone()),
            "stages_us": stages.collect::<std::collections::BTreeMap<_, _>>(),
            "ratio": ratio(&of_shape.total, &times[0].total),
        })
    });
    let [one, three] = messages;
    let report = json!({
        "rounds": times[0].total.len(),
        "shapes": shapes.collect::<Vec<_>>(),
        "message": {"1": median(one.clone()), "3": median(three.clone()), "ratio": ratio(three, one)},
    });
    println!("{report:#}");
}
