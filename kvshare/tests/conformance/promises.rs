//! What every kind of memory promises.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use kvshare::fd::{Facts, Kind as DescriptorKind, OpenMode};
use kvshare::handoff::{Cancel, Destination, Ending, ProviderFailure, ShareDesk};
use kvshare::header::{Header, Region};
use kvshare::layout::Layout;
use kvshare::map::{Access, Extent, Guard, MapError, MapOptions, MappedRegion};
use kvshare::memory::MemoryError;
use kvshare::rows::MappedCache;

use crate::Promise;
use crate::decoder::Decoder;
use crate::kinds::Kind;
use crate::roles::{self, CELLS, LEAVE, SURVIVED, WIDTH};
use crate::system;

pub const PROMISES: &[Promise] = &[
    ("a_cycle_hands_a_cache_over_without_copying_it", a_cycle_hands_a_cache_over_without_copying_it),
    ("a_cache_that_lies_elsewhere_in_its_memory_is_found", a_cache_that_lies_elsewhere_in_its_memory_is_found),
    ("a_decoder_that_is_killed_takes_nothing_with_it", a_decoder_that_is_killed_takes_nothing_with_it),
    ("a_provider_that_is_stopped_writes_no_more", a_provider_that_is_stopped_writes_no_more),
    ("one_that_writes_after_its_result_is_waited_for", one_that_writes_after_its_result_is_waited_for),
    ("a_provider_that_dies_leaves_memory_that_the_next_one_can_fill", a_provider_that_dies_leaves_usable_memory),
    ("a_stray_write_into_a_guard_page_faults", a_stray_write_into_a_guard_page_faults),
    ("a_stray_write_beside_guard_pages_does_not_fault", a_stray_write_beside_guard_pages_does_not_fault),
    ("a_region_has_the_size_asked_for_and_reads_as_zeros", a_region_has_the_size_asked_for_and_reads_as_zeros),
    ("a_region_past_the_end_is_refused", a_region_past_the_end_is_refused),
    ("sizes_and_names_that_cannot_be_are_refused", sizes_and_names_that_cannot_be_are_refused),
    ("a_descriptor_tells_what_it_is", a_descriptor_tells_what_it_is),
    ("a_cache_is_named_after_its_first_tensor", a_cache_is_named_after_its_first_tensor),
    ("a_region_that_is_dropped_is_freed", a_region_that_is_dropped_is_freed),
    ("cpu_access_begins_and_ends_in_any_order", cpu_access_begins_and_ends_in_any_order),
];

/// Of kinds that can be exported for reading only.
pub const OF_READ_ONLY: &[Promise] =
    &[("what_was_exported_for_reading_is_not_mapped_for_writing", a_read_only_export_is_not_mapped_for_writing)];

pub const READ_WRITE: MapOptions = MapOptions {
    access: Access::ReadWrite,
    guard: Guard::None,
    unsealed: kvshare::map::Unsealed::Refuse,
    transparent_huge: false,
};

fn whole(size: u64) -> Extent {
    Extent { offset: 0, size }
}

fn a_cycle_hands_a_cache_over_without_copying_it(kind: &Kind) {
    let decoder = Decoder::new(kind);
    let tokens: Vec<i32> = (1..=CELLS as i32 - 1).collect();
    decoder.run("good", &tokens, None).expect("the provider does well");
    assert!(decoder.rows() == Decoder::expected(&tokens));

    let identity = |descriptor: &OwnedFd| Facts::of(descriptor).expect("facts").identity;
    let received: Vec<_> = decoder.share().descriptors.iter().map(identity).collect();
    assert_eq!(received, decoder.memory.iter().map(identity).collect::<Vec<_>>(), "it is the same memory");
}

/// Two regions of one descriptor that is longer than both, as an export of a whole allocation is.
fn a_cache_that_lies_elsewhere_in_its_memory_is_found(kind: &Kind) {
    let mut groups = Decoder::geometry().groups().expect("tensors");
    let mut first = groups.remove(0);
    let second = first.split_off(first.len() / 2);
    let layout = Layout::place([first, second]);
    let mut header = Header::describe(&layout, None, Decoder::header().params);
    let chunks = layout.chunks();
    let (before, between) = (kind.page, 3 * kind.page);
    let second = (before + chunks[0].size + between).next_multiple_of(kind.page);
    header.regions = [before, second]
        .into_iter()
        .zip(chunks)
        .map(|(offset, chunk)| Region { fd: 0, offset, size: chunk.size, layout: chunk.hash, group: chunk.group })
        .collect();
    let decoder = Decoder::with_header(kind, "kvshare", header);
    assert_eq!(decoder.memory.len(), 1);
    let tokens = [3, 1, 4, 1, 5];
    decoder.run("good", &tokens, None).expect("the provider does well");
    assert!(decoder.rows() == Decoder::expected(&tokens));

    let held = kvshare::fd::size(&decoder.memory[0]).expect("a size").expect("it has one");
    let all = MappedRegion::map(&decoder.memory[0], whole(held), &[], &MapOptions::default()).expect("a mapping");
    let access = all.begin_cpu_access(Access::ReadOnly).expect("access");
    let mut bytes = vec![1; held as usize];
    all.view(0, held).expect("all of it").copy_to(&mut bytes).expect("equal lengths");
    access.end().expect("its end");
    let end = |region: &Region| region.end() as usize;
    let [first, last] = &decoder.header.regions[..] else { panic!("two regions") };
    for outside in [0..first.offset as usize, end(first)..last.offset as usize, end(last)..held as usize] {
        assert!(bytes[outside.clone()].iter().all(|&byte| byte == 0), "nothing is written to {outside:?}");
    }
}

fn a_decoder_that_is_killed_takes_nothing_with_it(kind: &Kind) {
    let ours = Decoder::new(kind);
    let desk = ShareDesk::open(ours.directory()).expect("a desk");
    let name = format!("killed-{}", kind.name);
    let mut decoder = roles::decoder(kind, &name, desk.path());
    let soon = Instant::now() + Duration::from_secs(60);
    let share = desk.receive(soon, Duration::from_secs(60), &Cancel::new().expect("a descriptor")).expect("a share");
    decoder.kill().expect("it runs");
    decoder.wait().expect("it ends");

    // The memory is whole for those who have it still.
    let tokens = [9, 8, 7];
    let log = &mut |line: &str| println!("provider: {line}");
    let provider = roles::provider("good");
    provider.run(&tokens, Destination::Shared(&share), ours.directory(), None, log).expect("the provider does well");
    assert!(Decoder::rows_in(&share.header, &share.descriptors) == Decoder::expected(&tokens));
    assert_ne!(system::kernel_keeps(&name), Some(!kind.is_dma_buf()), "the kernel lists dma-bufs");

    drop(share);
    assert!(!system::holds(&name));
    assert_ne!(system::kernel_keeps(&name), Some(true), "and gone with the last of them");
}

fn a_provider_that_is_stopped_writes_no_more(kind: &Kind) {
    let decoder = Decoder::new(kind);
    let cancel = Cancel::new().expect("a descriptor");
    let failure = std::thread::scope(|scope| {
        scope.spawn(|| {
            decoder.wait_for_a_row();
            cancel.cancel();
        });
        decoder.run("endless", &[1, 2, 3], Some(&cancel)).expect_err("it never ends by itself")
    });
    assert!(matches!(failure, ProviderFailure::Cancelled { .. }) && !failure.may_still_write(), "{failure}");

    let stamp = vec![1.0; WIDTH as usize];
    let mut cache = MappedCache::map(&decoder.header, &decoder.memory, &READ_WRITE).expect("a mapping");
    cache.k_mut(0).expect("a layer").write_f32(0, &stamp).expect("a row");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(decoder.rows()[0], stamp, "nobody writes over it");
}

fn one_that_writes_after_its_result_is_waited_for(kind: &Kind) {
    let decoder = Decoder::new(kind);
    let tokens = [1, 2, 3];
    decoder.run("late", &tokens, None).expect("it does well in the end");
    let mut rows = decoder.rows();
    assert_eq!(rows[CELLS as usize - 1], LEAVE, "its last write was waited for");
    rows[CELLS as usize - 1].fill(0.0);
    assert!(rows == Decoder::expected(&tokens));
}

fn a_provider_that_dies_leaves_usable_memory(kind: &Kind) {
    let decoder = Decoder::new(kind);
    let tokens = [5, 6, 7];
    let failure = decoder.run("dying", &tokens, None).expect_err("it dies");
    assert!(matches!(failure, ProviderFailure::Failed { ending: Ending::Signal(_), .. }), "{failure}");
    let mut rows = decoder.rows();
    assert_eq!(rows.remove(0), roles::row(0, 0, &tokens), "what it wrote before");
    assert!(rows.concat().iter().all(|&value| value == 0.0), "and nothing else");

    decoder.run("good", &tokens, None).expect("the next provider does well");
    assert!(decoder.rows() == Decoder::expected(&tokens));
}

fn a_stray_write_into_a_guard_page_faults(kind: &Kind) {
    let page = kind.page as i64;
    let table = [
        (Guard::Region, 0, -1),
        (Guard::Region, 0, 4 * page),
        (Guard::Tensor, 0, page),
        (Guard::Tensor, 2 * kind.page, -1),
        (Guard::Tensor, 2 * kind.page, page),
    ];
    let memory = kind.region("stray", 4);
    for (guard, offset, distance) in table.into_iter().filter(|(guard, ..)| can_guard(kind, *guard)) {
        let end = roles::end_of_stray(&memory, kind.page, guard, offset, distance);
        assert!(roles::faulted(end), "{guard:?}, {distance} bytes from {offset}: {end}");
    }
}

fn can_guard(kind: &Kind, guard: Guard) -> bool {
    guard != Guard::Tensor || kind.maps_parts()
}

fn a_stray_write_beside_guard_pages_does_not_fault(kind: &Kind) {
    let page = kind.page as i64;
    let table = [
        (Guard::None, 2 * kind.page, 1, 2 * page + 1),
        (Guard::Region, 0, page, page),
        (Guard::Tensor, 0, page - 1, page - 1),
        (Guard::Tensor, 2 * kind.page, 1, 2 * page + 1),
    ];
    for (guard, offset, distance, hit) in table.into_iter().filter(|(guard, ..)| can_guard(kind, *guard)) {
        let memory = kind.region("stray", 4);
        let end = roles::end_of_stray(&memory, kind.page, guard, offset, distance);
        assert_eq!(end.code(), Some(SURVIVED), "{guard:?}, {distance} bytes from {offset}: {end}");
        let region = MappedRegion::map(&memory, whole(4 * kind.page), &[], &MapOptions::default()).expect("a mapping");
        let mut byte = [0];
        region.view(hit as u64, 1).expect("a byte").copy_to(&mut byte).expect("equal lengths");
        assert_eq!(byte, [7], "{guard:?}: another process sees it");
    }
}

fn a_read_only_export_is_not_mapped_for_writing(kind: &Kind) {
    let memory = kind.read_only.expect("such a kind")(4096);
    let expected = if kind.is_dma_buf() { MapError::DmaBufReadOnly } else { MapError::FileReadOnly };
    assert_eq!(Facts::of(&memory).expect("facts").access, OpenMode::ReadOnly);
    assert_eq!(MappedRegion::map(&memory, whole(kind.page), &[], &READ_WRITE).err(), Some(expected));
    let region = MappedRegion::map(&memory, whole(kind.page), &[], &MapOptions::default()).expect("for reading");
    assert_eq!(region.begin_cpu_access(Access::ReadWrite).err(), Some(MapError::MappedReadOnly));
    region.begin_cpu_access(Access::ReadOnly).expect("for reading").end().expect("its end");
}

fn a_region_has_the_size_asked_for_and_reads_as_zeros(kind: &Kind) {
    for pages in [1, 5] {
        let size = pages * kind.page;
        let memory = kind.region("sizes", pages);
        assert_eq!(kvshare::fd::size(&memory).expect("a size"), Some(size));
        let mut region = MappedRegion::map(&memory, whole(size), &[], &READ_WRITE).expect("a mapping");
        let access = region.begin_cpu_access(Access::ReadWrite).expect("access");
        let mut bytes = vec![1; size as usize];
        region.view(0, size).expect("all of it").copy_to(&mut bytes).expect("equal lengths");
        assert!(bytes.iter().all(|&byte| byte == 0));
        region.view_mut(size - 1, 1).expect("its last byte").copy_from(&[9]).expect("equal lengths");
        access.end().expect("the end of the access");
    }
}

fn a_region_past_the_end_is_refused(kind: &Kind) {
    let held = 2 * kind.page;
    let memory = kind.region("past-the-end", 2);
    for (offset, size) in [(0, held + 4096), (4096, held), (held, 4096), (1 << 40, 4096)] {
        let answer = MappedRegion::map(&memory, Extent { offset, size }, &[], &MapOptions::default()).err();
        assert_eq!(answer, Some(MapError::PastEnd { offset, size, held }));
    }
    let last = Extent { offset: held - 4096, size: 4096 };
    MappedRegion::map(&memory, last, &[], &READ_WRITE).expect("its last bytes");
}

fn sizes_and_names_that_cannot_be_are_refused(kind: &Kind) {
    let table = [
        ("a", 0, MemoryError::Empty),
        ("a", 4097, MemoryError::Unaligned { size: 4097 }),
        ("a", u64::MAX, MemoryError::TooLarge { size: u64::MAX }),
        ("a\0b", 4096, MemoryError::Name { name: "a\0b".to_owned() }),
    ];
    for (name, size, expected) in table {
        assert_eq!(kind.source.allocate(name, size).err(), Some(expected), "{name:?}, {size}");
    }
}

fn a_descriptor_tells_what_it_is(kind: &Kind) {
    let memory = kind.region("kvshare:a-name-of-31-bytes-at-mostX", 1);
    let facts = Facts::of(&memory).expect("facts");
    assert_eq!((facts.access, facts.close_on_exec), (OpenMode::ReadWrite, true));
    assert_eq!((facts.size, facts.exporter.as_deref()), (Some(kind.page), kind.exporter));
    facts.check_region().expect("it can be a region");
    let (expected, name, seals) = match kind.is_dma_buf() {
        true => (DescriptorKind::DmaBuf, "kvshare:a-name-of-31-bytes-at-m", false),
        false => (DescriptorKind::Memfd, "kvshare:a-name-of-31-bytes-at-mostX", true),
    };
    assert_eq!((facts.kind, facts.name.as_deref(), facts.seals.is_some()), (expected, Some(name), seals));
}

fn a_cache_is_named_after_its_first_tensor(kind: &Kind) {
    let decoder = Decoder::new(kind);
    let names: Vec<_> = decoder.memory.iter().map(|memory| Facts::of(memory).expect("facts").name).collect();
    assert_eq!(names, [Some("kvshare:cache_k_l0..".to_owned())]);
}

fn a_region_that_is_dropped_is_freed(kind: &Kind) {
    let name = format!("freed-{}", kind.name);
    let memory = kind.region(&name, 1);
    let region = MappedRegion::map(&memory, whole(kind.page), &[], &READ_WRITE).expect("a mapping");
    let access = region.begin_cpu_access(Access::ReadWrite).expect("access");
    assert!(system::holds(&name));
    assert_ne!(system::kernel_keeps(&name), Some(!kind.is_dma_buf()), "the kernel lists dma-bufs");
    drop((memory, region));
    assert_eq!(system::holds(&name), kind.is_dma_buf(), "an open access keeps a dma-buf");
    drop(access);
    assert!(!system::holds(&name));
    assert_ne!(system::kernel_keeps(&name), Some(true));
}

fn cpu_access_begins_and_ends_in_any_order(kind: &Kind) {
    let memory = kind.region("access", 1);
    let region = MappedRegion::map(&memory, whole(kind.page), &[], &READ_WRITE).expect("a mapping");
    let first = region.begin_cpu_access(Access::ReadOnly).expect("access");
    let second = region.begin_cpu_access(Access::ReadWrite).expect("it excludes nobody");
    first.end().expect("its end");
    drop(second);
    region.begin_cpu_access(Access::ReadOnly).expect("again").end().expect("its end");
}
