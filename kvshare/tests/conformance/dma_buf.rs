//! What the kernel does with any dma-buf, and what it refuses to do with a memfd.

use kvshare::fd::Facts;
use kvshare::map::{Access, Extent, Fence, Guard, MapError, MapOptions, MappedRegion};
use rustix::io::Errno;

use crate::Promise;
use crate::kinds::Kind;
use crate::promises::READ_WRITE;
use crate::system::{self, SYNC_END, SYNC_READ, SYNC_WRITE};

pub const PROMISES: &[Promise] = &[
    ("the_kernel_maps_nothing_past_its_end_and_nothing_privately", the_kernel_maps_nothing_past_its_end),
    ("a_part_that_is_mapped_by_itself_is_that_part_except_a_drm_drivers", a_part_that_is_mapped_by_itself),
    ("an_access_that_never_began_can_be_ended_except_a_udmabufs", an_access_that_never_began_can_be_ended),
    ("proc_tells_its_size_exporter_and_name", proc_tells_its_size_exporter_and_name),
    ("a_name_that_a_holder_made_up_hides_nothing", a_name_that_a_holder_made_up_hides_nothing),
    ("a_buffer_that_no_device_uses_has_a_fence_that_has_finished", an_idle_buffer_has_a_finished_fence),
    ("what_is_no_fence_is_refused_as_one", what_is_no_fence_is_refused_as_one),
];

/// Of kinds that can be exported for reading only.
pub const OF_READ_ONLY: &[Promise] =
    &[("what_was_exported_for_reading_can_be_synced_for_writing", a_read_only_export_can_be_synced_for_writing)];

pub const NOT_FOR_MEMFDS: &[Promise] = &[
    ("a_memfd_knows_no_operation_of_a_dma_buf", a_memfd_knows_no_operation_of_a_dma_buf),
    ("what_is_no_fence_is_refused_as_one", what_is_no_fence_is_refused_as_one),
];

fn the_kernel_maps_nothing_past_its_end(kind: &Kind) {
    let memory = kind.region("facts", 2);
    assert_eq!(system::mmap(&memory, 8192, true, true, 0), Ok(()));
    assert_eq!(system::mmap(&memory, 12288, true, true, 0), Err(Errno::INVAL));
    assert_eq!(system::mmap(&memory, 8192, true, true, 4096), Err(Errno::INVAL));
    assert_eq!(system::mmap(&memory, 8192, true, false, 0), Err(Errno::INVAL), "MAP_PRIVATE");
}

/// What a provider finds who maps a region at its offset, and why the library maps from the start.
fn a_part_that_is_mapped_by_itself(kind: &Kind) {
    let memory = kind.region("parts", 3);
    let mut all = MappedRegion::map(&memory, Extent { offset: 0, size: 12288 }, &[], &READ_WRITE).expect("a mapping");
    for page in 0..3 {
        all.view_mut(page * 4096, 1).expect("a byte").fill(page as u8 + 1);
    }
    let seen = system::first_byte(&memory, 8192).expect("a mapping");
    assert_eq!(seen, if kind.maps_parts() { 3 } else { 1 }, "mapped at an offset");
    let seen = system::first_byte_after_a_split(&memory, 8192).expect("a mapping");
    assert_eq!(seen, if kind.maps_parts() { 3 } else { 1 }, "mapped whole, and split by the kernel");

    let part = MappedRegion::map(&memory, Extent { offset: 8192, size: 4096 }, &[], &READ_WRITE).expect("a mapping");
    let mut byte = [0];
    part.view(0, 1).expect("a byte").copy_to(&mut byte).expect("equal lengths");
    assert_eq!(byte, [3], "the library's own mapping");

    let tensors = [Extent { offset: 0, size: 4096 }, Extent { offset: 8192, size: 4096 }];
    let guarded = MapOptions { guard: Guard::Tensor, ..READ_WRITE };
    let answer = MappedRegion::map(&memory, Extent { offset: 0, size: 12288 }, &tensors, &guarded).err();
    let exporter = kind.exporter.expect("a dma-buf has one").to_owned();
    assert_eq!(answer, (!kind.maps_parts()).then_some(MapError::GuardOfParts { exporter }));
}

fn an_access_that_never_began_can_be_ended(kind: &Kind) {
    let memory = kind.region("facts", 1);
    let expected = if kind.name == "udmabuf" { Err(Errno::INVAL) } else { Ok(()) };
    assert_eq!(system::sync(&memory, SYNC_END | SYNC_READ | SYNC_WRITE), expected);
}

fn a_read_only_export_can_be_synced_for_writing(kind: &Kind) {
    let memory = kind.read_only.expect("such a kind")(4096);
    assert_eq!(system::mmap(&memory, 4096, true, true, 0), Err(Errno::ACCESS));
    assert_eq!(system::mmap(&memory, 4096, false, true, 0), Ok(()));
    assert_eq!(system::sync(&memory, SYNC_READ | SYNC_WRITE), Ok(()));
    assert_eq!(system::sync(&memory, SYNC_END | SYNC_READ | SYNC_WRITE), Ok(()));
}

fn proc_tells_its_size_exporter_and_name(kind: &Kind) {
    let memory = kind.region("facts-in-proc", 2);
    assert_eq!(system::link(&memory), "/dmabuf:facts-in-proc");
    let fdinfo = system::fdinfo(&memory);
    let exporter = kind.exporter.expect("a dma-buf has one");
    for line in ["size:\t8192".to_owned(), format!("exp_name:\t{exporter}"), "name:\tfacts-in-proc".to_owned()] {
        assert!(fdinfo.lines().any(|found| found == line), "{line:?} is missing in {fdinfo:?}");
    }
}

fn a_name_that_a_holder_made_up_hides_nothing(kind: &Kind) {
    let memory = kind.region("made-up", 1);
    system::set_name(&memory, b"\xff\nexp_name:\tmade up, and long !").expect("any bytes will do");
    let facts = Facts::of(&memory).expect("facts");
    assert_eq!((facts.exporter.as_deref(), facts.size), (kind.exporter, Some(4096)));
}

fn an_idle_buffer_has_a_finished_fence(kind: &Kind) {
    let memory = kind.region("fences", 1);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let fence = Fence::export(&memory, access).expect("a fence");
        assert_eq!(fence.wait(std::time::Instant::now()), Ok(()));
        fence.attach(&memory, access).expect("a finished fence is attached");
    }
}

fn what_is_no_fence_is_refused_as_one(kind: &Kind) {
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    for descriptor in [pipe, kind.region("no-fence", 1)] {
        assert_eq!(Fence::from_descriptor(descriptor).err(), Some(MapError::NotAFence));
    }
}

fn a_memfd_knows_no_operation_of_a_dma_buf(kind: &Kind) {
    let memory = kind.region("facts", 1);
    assert_eq!(system::sync(&memory, SYNC_READ), Err(Errno::NOTTY));
    assert_eq!(system::set_name(&memory, &[b'a'; 31]), Err(Errno::NOTTY));
    assert_eq!(system::export_sync_file(&memory), Err(Errno::NOTTY));
    assert_eq!(Fence::export(&memory, Access::ReadOnly).err(), Some(MapError::NoFences));
}
