//! Several ways to do one thing, timed in turn: each round runs every way once, so that a machine that becomes slower or
//! faster meanwhile does so for all of them. Criterion times one after the other, and on a busy machine the drift between
//! them is larger than what is to be seen.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread and those that it starts on one core: across two, what is timed is how soon the other one wakes.
pub fn stay_on_one_core() {
    let allowed = sched_getaffinity(None).expect("the cores that may be used");
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).expect("a core"));
    sched_setaffinity(None, &one).expect("a core of ours");
}

/// One way to do the thing, with its name.
pub struct Way<'a> {
    name: String,
    once: Box<dyn FnMut() + 'a>,
    times: Vec<Duration>,
}

impl<'a> Way<'a> {
    pub fn new(name: impl Into<String>, once: impl FnMut() + 'a) -> Self {
        Self { name: name.into(), once: Box::new(once), times: Vec::new() }
    }

    fn run(&mut self) -> Duration {
        let start = Instant::now();
        (self.once)();
        start.elapsed()
    }
}

/// Runs `rounds` rounds after a tenth as many to warm up, and prints for each way its median time and the median of its
/// ratios to the first way in the same round.
pub fn compare<'a>(title: &str, rounds: usize, ways: impl IntoIterator<Item = Way<'a>>) {
    let mut ways: Vec<Way<'a>> = ways.into_iter().collect();
    for round in 0..rounds / 10 + rounds {
        for way in &mut ways {
            let time = way.run();
            if round >= rounds / 10 {
                way.times.push(time);
            }
        }
    }
    let first = ways[0].times.clone();
    println!("\n{title}: {rounds} rounds\n{:>12} {:>7}", "median", "ratio");
    for way in &mut ways {
        let ratios = way.times.iter().zip(&first).map(|(time, first)| time.as_secs_f64() / first.as_secs_f64());
        let ratio = median(ratios.collect());
        let time = median(way.times.iter().map(|time| time.as_secs_f64() * 1e6).collect());
        println!("{time:>9.1} µs {ratio:>7.2}  {}", way.name);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
