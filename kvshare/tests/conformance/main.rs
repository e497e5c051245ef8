//! What every kind of memory must do, written once and run against each kind that this machine has; then what is particular
//! to dma-bufs and to single kinds of them, as the kernel does it.
//!
//! Kinds that the machine lacks are left out, and named. `scripts/guest-suite.sh` runs all of them in a guest machine, with
//! `KVSHARE_ALL_KINDS=1`, which makes a missing kind a failure.

mod decoder;
mod device_work;
mod dma_buf;
mod dma_heap;
mod drm_card;
mod kinds;
mod promises;
mod roles;
mod system;
mod udmabuf;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A machine that has every kind says so, and means it.
const ALL_KINDS: &str = "KVSHARE_ALL_KINDS";

fn main() -> ExitCode {
    if let Some(ended) = roles::play() {
        return ended;
    }
    let arguments = Arguments::from_args();
    let (kinds, left_out) = kinds::of_this_machine();
    for kind in &left_out {
        println!("left out: {kind}");
    }
    if !left_out.is_empty() && std::env::var_os(ALL_KINDS).is_some() {
        println!("{ALL_KINDS} is set, so no kind may be left out");
        return ExitCode::FAILURE;
    }
    let trials = kinds.iter().flat_map(|kind| {
        let of_all = trials(kind.name, promises::PROMISES, kind);
        let of_dma_bufs = if kind.is_dma_buf() { dma_buf::PROMISES } else { &[] };
        let of_device = if kind.name == "drm" { device_work::PROMISES } else { &[] };
        let of_kind = match kind.name {
            "memfd" => dma_buf::NOT_FOR_MEMFDS,
            "udmabuf" => udmabuf::PROMISES,
            "dma-heap" => dma_heap::PROMISES,
            "drm" => drm_card::PROMISES,
            _ => &[],
        };
        of_all
            .chain(trials(kind.name, of_dma_bufs, kind))
            .chain(trials(kind.name, of_kind, kind))
            .chain(trials(kind.name, of_device, kind))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// One thing that is promised: a sentence, and what shows it.
type Promise = (&'static str, fn(&kinds::Kind));

fn trials(name: &'static str, promises: &'static [Promise], kind: &kinds::Kind) -> impl Iterator<Item = Trial> + use<> {
    let kind = kind.clone();
    promises.iter().map(move |(sentence, show)| {
        let kind = kind.clone();
        Trial::test(*sentence, move || {
            show(&kind);
            Ok(())
        })
        .with_kind(name)
    })
}
