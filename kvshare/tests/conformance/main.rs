//! What every kind of memory must do, written once and run against each kind that this machine has; then what is particular
//! to dma-bufs and to single kinds of them, as the kernel does it.
//!
//! Kinds that the machine lacks are left out, and named. `scripts/guest-suite.sh` runs all of them in a guest machine, with
//! `KVSHARE_ALL_KINDS=1`, which makes a missing kind a failure.

#[cfg(target_arch = "x86_64")]
mod answers;
mod decoder;
mod device_work;
mod dma_buf;
mod dma_heap;
mod drm_card;
mod kinds;
mod promises;
mod refusals;
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
        promises_of(kind).into_iter().flatten().map(|promise| trial(kind, promise)).collect::<Vec<_>>()
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// One thing that is promised: a sentence, and what shows it.
type Promise = (&'static str, fn(&kinds::Kind));

/// All that is promised of a kind.
fn promises_of(kind: &kinds::Kind) -> Vec<&'static [Promise]> {
    let mut all = vec![promises::PROMISES, refusals::PROMISES];
    if kind.read_only.is_some() {
        all.push(promises::OF_READ_ONLY);
    }
    if kind.is_dma_buf() {
        all.push(dma_buf::PROMISES);
    }
    if kind.is_dma_buf() && kind.read_only.is_some() {
        all.push(dma_buf::OF_READ_ONLY);
    }
    #[cfg(target_arch = "x86_64")]
    all.push(answers::PROMISES);
    #[cfg(target_arch = "x86_64")]
    if kind.is_dma_buf() {
        all.push(answers::OF_DMA_BUFS);
    }
    match kind.name {
        "memfd" => all.push(dma_buf::NOT_FOR_MEMFDS),
        "udmabuf" => all.push(udmabuf::PROMISES),
        "dma-heap" => all.push(dma_heap::PROMISES),
        "drm" => all.extend([drm_card::PROMISES, device_work::PROMISES]),
        _ => {}
    }
    all
}

fn trial(kind: &kinds::Kind, (sentence, show): &'static Promise) -> Trial {
    let (name, kind) = (kind.name, kind.clone());
    let shown = move || {
        show(&kind);
        Ok(())
    };
    Trial::test(*sentence, shown).with_kind(name)
}
