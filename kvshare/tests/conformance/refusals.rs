//! Whatever is refused, and wherever it fails midway, nothing stays open, mapped or in the kernel.

use std::fs;
use std::process::ExitCode;

use kvshare::header::Region;
use kvshare::map::{Access, Extent, Fence, MapOptions, MappedRegion};
use kvshare::memory::{DmaHeap, Drm, Memfd, RegionSource, Udmabuf, UdmabufPart};
use kvshare::rows::{self, MappedCache};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Promise;
use crate::decoder::Decoder;
use crate::drm_card;
use crate::kinds::Kind;
use crate::promises::READ_WRITE;
use crate::roles;
use crate::system;

pub const PROMISES: &[Promise] = &[("what_is_refused_leaves_nothing_behind", what_is_refused_leaves_nothing_behind)];

/// All memory that is made here is named so.
const NAME: &str = "refused";

/// In a process of its own, whose descriptors are counted and made scarce.
fn what_is_refused_leaves_nothing_behind(kind: &Kind) {
    let end = roles::player(&format!("refusals {}", kind.name)).status().expect("a second process");
    assert!(end.success(), "{end}");
    let name = format!("{NAME}-{}", kind.name);
    assert_ne!(system::kernel_keeps(&name), Some(true), "the process has ended");
}

/// The process's part.
pub fn leave_nothing(kind: &Kind) -> ExitCode {
    let name = format!("{NAME}-{}", kind.name);
    let before = held();
    // The first round may open what the process keeps for good.
    for round in 1..=3 {
        refuse(kind, &name);
        run_out(kind, &name);
        let now = held();
        assert_eq!(now, before, "round {round}");
        assert_ne!(system::kernel_keeps(&name), Some(true), "round {round}");
    }
    ExitCode::SUCCESS
}

/// What this process has open, and which regions it has mapped.
fn held() -> Vec<String> {
    let links = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let opened = links.filter_map(|entry| {
        let entry = entry.ok()?;
        let target = fs::read_link(entry.path()).ok()?;
        // Without the list itself.
        (!target.starts_with("/proc")).then(|| format!("{}: {}", entry.file_name().display(), target.display()))
    });
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let mapped = maps.lines().filter(|line| line.contains(NAME) || line.contains("/dmabuf:"));
    let mut all: Vec<_> = opened.chain(mapped.map(ToOwned::to_owned)).collect();
    all.sort();
    all
}

/// Everything of this kind that is refused.
fn refuse(kind: &Kind, name: &str) {
    let source = &*kind.source;
    for (name, size) in [(name, 0), (name, 4097), (name, 1 << 60), ("a\0b", 4096)] {
        source.allocate(name, size).expect_err("it cannot be");
    }
    refuse_of_kind(kind.name, source, name);
    let memory = kind.region(name, 2);
    let size = 2 * kind.page;
    for (offset, size) in [(0, size + 4096), (size, 4096), (1, 4096), (0, 0)] {
        MappedRegion::map(&memory, Extent { offset, size }, &[], &READ_WRITE).expect_err("it lies elsewhere");
    }
    let tensors = [Extent { offset: 0, size: 2 * size }];
    let guarded = MapOptions { guard: kvshare::map::Guard::Tensor, ..READ_WRITE };
    MappedRegion::map(&memory, Extent { offset: 0, size }, &tensors, &guarded).expect_err("the tensor is too long");
    let region =
        MappedRegion::map(&memory, Extent { offset: 0, size }, &[], &MapOptions::default()).expect("a mapping");
    region.begin_cpu_access(Access::ReadWrite).expect_err("it is mapped for reading");
    Fence::from_descriptor(memory).expect_err("it is no fence");
    if let Some(read_only) = kind.read_only {
        let extent = Extent { offset: 0, size: 4096 };
        MappedRegion::map(read_only(4096), extent, &[], &READ_WRITE).expect_err("it is for reading");
    }
    // The second of two regions is too long for its memory, and the first has been mapped by then.
    let decoder = Decoder::named(kind, name);
    let mut header = decoder.header.clone();
    header.regions.push(Region { fd: 1, offset: 0, size: 1 << 30, layout: 0, group: 1 });
    let short = kind.region(name, 1);
    let memory = [decoder.memory.into_iter().next().expect("one region"), short];
    MappedCache::map(&header, &memory, &READ_WRITE).expect_err("it is too short");
    header.regions[1].size = 1 << 50;
    rows::allocate(&header, source, name).expect_err("no machine has it");
}

fn refuse_of_kind(kind: &str, source: &dyn RegionSource, name: &str) {
    match kind {
        "udmabuf" => {
            source.allocate(name, 1 << 40).expect_err("over the limit");
            let open = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
            ftruncate(&open, 4096).expect("a size");
            let good = Memfd::new().allocate(name, 4096).expect("memory").descriptor;
            let part = |memfd, offset| UdmabufPart { memfd, offset, size: 4096 };
            use std::os::fd::AsFd as _;
            for parts in
                [[part(good.as_fd(), 0), part(open.as_fd(), 0)], [part(good.as_fd(), 0), part(good.as_fd(), 4096)]]
            {
                Udmabuf::new().join(name, &parts).expect_err("the second part is no part");
            }
        }
        "dma-heap" => {
            source.allocate(name, 1 << 40).expect_err("no machine has it");
            DmaHeap::new("no-such-heap").allocate(name, 4096).expect_err("there is none");
        }
        "drm" => {
            source.allocate(name, 1 << 32).expect_err("over the kernel's count");
            Drm::new("/dev/null").allocate(name, 4096).expect_err("it is no card");
            let memfd = Memfd::new().allocate(name, 4096).expect("memory").descriptor;
            Drm::new(drm_card::node()).import(memfd).expect_err("it is no dma-buf");
        }
        _ => {}
    }
}

/// Has fewer and fewer descriptors left for a whole cache's way from its allocation to an access.
fn run_out(kind: &Kind, name: &str) {
    let limit = getrlimit(Resource::Nofile);
    let (mut failures, mut successes) = (0, 0);
    for left in 0..12 {
        let lowest = rustix::io::dup(std::io::stderr()).expect("a descriptor");
        let next = std::os::fd::AsRawFd::as_raw_fd(&lowest) as u64;
        drop(lowest);
        setrlimit(Resource::Nofile, Rlimit { current: Some(next + left), ..limit }).expect("a lower limit");
        let header = Decoder::header();
        let cache = rows::allocate(&header, &*kind.source, name).and_then(|memory| {
            let cache = MappedCache::map(&header, &memory, &READ_WRITE)?;
            cache.begin_cpu_access(Access::ReadWrite)?.end()?;
            if kind.is_dma_buf() {
                Fence::export(&memory[0], Access::ReadOnly)?.attach(&memory[0], Access::ReadOnly)?;
            }
            Ok(())
        });
        setrlimit(Resource::Nofile, limit).expect("the limit from before");
        match cache {
            Ok(()) => successes += 1,
            Err(_) => failures += 1,
        }
    }
    assert!(failures > 0 && successes > 0, "{failures} failures, {successes} successes");
}
