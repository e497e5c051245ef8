//! A mapping that is dropped, or that fails half-way, leaves the address space as it was.
//!
//! The tests count the mappings of the whole process, so they are alone in this program and take turns. Other threads
//! of the test harness may come and go meanwhile: a few mappings more or less are theirs.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvshare::map::{Access, Extent, Guard, MapError, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource, Reserve};
use rustix::fs::{MemfdFlags, SealFlags};

static TURN: Mutex<()> = Mutex::new(());

/// What a harness thread may add between two counts: a stack, its guard, an allocator's arena.
const NOISE: usize = 16;

fn take_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mappings() -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    (maps.lines().count(), maps.lines().filter(|line| line.contains("memfd:returned")).count())
}

fn memory(size: u64) -> std::os::fd::OwnedFd {
    Memfd::new().reserve(Reserve::OnTouch).allocate("returned", size).expect("memory").descriptor
}

fn tensors(count: u64) -> Vec<Extent> {
    (0..count).map(|index| Extent { offset: index * 4096, size: 4000 }).collect()
}

#[test]
fn many_regions_come_and_go_without_a_trace() {
    let _turn = take_turn();
    let memory = memory(64 * 4096);
    let (before, _) = mappings();

    for round in 0..1000 {
        let guard = [Guard::None, Guard::Region, Guard::Tensor][round % 3];
        let options =
            MapOptions { access: Access::ReadWrite, guard, transparent_huge: round % 2 == 0, ..MapOptions::default() };
        let region = MappedRegion::map(&memory, Extent { offset: 0, size: 64 * 4096 }, &tensors(64), &options);
        drop(region.expect("a mapping"));
    }

    let (after, named) = mappings();
    assert_eq!(named, 0, "no mapping of the memory is left");
    assert!(after <= before + NOISE, "{before} mappings before, {after} after");
}

#[test]
fn a_region_that_is_mapped_shows_its_tensors_apart() {
    let _turn = take_turn();
    let options = MapOptions { guard: Guard::Tensor, ..MapOptions::default() };
    let region = MappedRegion::map(memory(64 * 4096), Extent { offset: 0, size: 64 * 4096 }, &tensors(64), &options);
    let region = region.expect("a mapping");

    assert_eq!(mappings().1, 64);
    drop(region);
    assert_eq!(mappings().1, 0);
}

/// The address space is reserved and guard pages are laid out when the kernel finds that the pool of huge pages is too
/// small.
#[test]
fn a_region_that_fails_half_way_leaves_nothing_mapped() {
    let _turn = take_turn();
    let size = 1 << 46;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let memory = rustix::fs::memfd_create("returned", flags).expect("a memfd in huge pages");
    rustix::fs::ftruncate(&memory, size).expect("a size");
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
    let (before, _) = mappings();

    let options = MapOptions { guard: Guard::Region, ..MapOptions::default() };
    for _ in 0..100 {
        let answer = MappedRegion::map(&memory, Extent { offset: 0, size }, &[], &options);
        assert_eq!(answer.err(), Some(MapError::HugePoolTooSmall { page_bytes: 2 << 20 }));
    }

    let (after, named) = mappings();
    assert_eq!(named, 0, "no mapping of the memory is left");
    assert!(after <= before + NOISE, "{before} mappings before, {after} after");
}

#[test]
fn an_open_cpu_access_outlives_its_region() {
    let _turn = take_turn();
    let region = MappedRegion::map(memory(4096), Extent { offset: 0, size: 4096 }, &[], &MapOptions::default());
    let region = region.expect("a mapping");
    let access = region.begin_cpu_access(Access::ReadOnly).expect("nothing to do");
    drop(region);

    assert_eq!(mappings().1, 0);
    access.end().expect("nothing to do");
}
