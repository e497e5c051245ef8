//! Views give access to the bytes they name and to no others.

use kvshare::map::{Access, Extent, Guard, MapError, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource};
use proptest::prelude::*;

const READ_WRITE: Access = Access::ReadWrite;

fn region(size: u64, tensors: &[Extent], guard: Guard, access: Access) -> MappedRegion {
    let memory = Memfd::new().allocate("views", size).expect("memory");
    let options = MapOptions { access, guard, ..MapOptions::default() };
    MappedRegion::map(memory.descriptor, Extent { offset: 0, size }, tensors, &options).expect("a mapping")
}

fn bytes(region: &MappedRegion, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.view(offset, len as u64).expect("in bounds").copy_to(&mut bytes).expect("equal lengths");
    bytes
}

#[test]
fn new_memory_reads_as_zeros() {
    assert_eq!(bytes(&region(8192, &[], Guard::None, Access::ReadOnly), 0, 8192), vec![0; 8192]);
}

#[test]
fn a_view_outside_its_region_is_refused() {
    let mut region = region(8192, &[], Guard::None, READ_WRITE);
    for (offset, len) in [(0, 8193), (8191, 2), (8192, 1), (8193, 0), (u64::MAX, 1), (1, u64::MAX)] {
        let expected = MapError::OutOfBounds { offset, len, size: 8192 };
        assert_eq!(region.view(offset, len).err(), Some(expected.clone()), "{offset}, {len}");
        assert_eq!(region.view_mut(offset, len).err(), Some(expected), "{offset}, {len}");
    }
    for (offset, len) in [(0, 8192), (8191, 1), (8192, 0), (0, 0)] {
        assert_eq!(region.view(offset, len).expect("in bounds").len() as u64, len);
    }
}

#[test]
fn a_part_outside_its_view_is_refused() {
    let mut region = region(4096, &[], Guard::None, READ_WRITE);
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX)] {
        let expected = MapError::OutOfBounds { offset: offset as u64, len: len as u64, size: 100 };
        let mut view = region.view_mut(50, 100).expect("in bounds");
        assert_eq!(view.as_view().sub(offset, len).err(), Some(expected.clone()), "{offset}, {len}");
        assert_eq!(view.sub(offset, len).err(), Some(expected), "{offset}, {len}");
    }
}

#[test]
fn a_part_starts_where_it_says() {
    let mut region = region(4096, &[], Guard::None, READ_WRITE);
    let mut view = region.view_mut(100, 10).expect("in bounds");
    view.sub(4, 2).expect("in bounds").copy_from(b"ab").expect("equal lengths");
    assert_eq!(bytes(&region, 103, 4), b"\0ab\0");
}

#[test]
fn filling_a_view_leaves_its_neighbours_alone() {
    let mut region = region(4096, &[], Guard::None, READ_WRITE);
    region.view_mut(10, 3).expect("in bounds").fill(7);
    assert_eq!(bytes(&region, 9, 5), [0, 7, 7, 7, 0]);
}

#[test]
fn a_buffer_of_another_length_is_refused() {
    let mut region = region(4096, &[], Guard::None, READ_WRITE);
    let mut view = region.view_mut(0, 8).expect("in bounds");
    assert_eq!(view.copy_from(&[1; 7]), Err(MapError::Length { view: 8, buffer: 7 }));
    assert_eq!(view.as_view().copy_to(&mut [1; 9]), Err(MapError::Length { view: 8, buffer: 9 }));
}

#[test]
fn a_region_that_is_mapped_for_reading_gives_no_view_for_writing() {
    let mut region = region(4096, &[], Guard::None, Access::ReadOnly);
    assert_eq!(region.view_mut(0, 1).err(), Some(MapError::MappedReadOnly));
    assert_eq!(region.begin_cpu_access(Access::ReadWrite).err(), Some(MapError::MappedReadOnly));
}

#[test]
fn cpu_access_to_a_memfd_needs_nothing_of_the_kernel() {
    let region = region(4096, &[], Guard::None, READ_WRITE);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        region.begin_cpu_access(access).expect("nothing to do").end().expect("nothing to do");
    }
}

#[test]
fn guarded_tensors_are_reached_by_the_same_offsets_as_unguarded_ones() {
    let tensors = [Extent { offset: 0, size: 7200 }, Extent { offset: 12288, size: 100 }];
    let memory = Memfd::new().allocate("offsets", 20480).expect("memory");
    let whole = Extent { offset: 4096, size: 16384 };
    let guarded = MapOptions { access: READ_WRITE, guard: Guard::Tensor, ..MapOptions::default() };
    let mut writer = MappedRegion::map(&memory.descriptor, whole, &tensors, &guarded).expect("a mapping");
    let reader = MappedRegion::map(&memory.descriptor, whole, &[], &MapOptions::default()).expect("a mapping");

    for (offset, text) in [(7190, b"tensor one"), (12378, b"tensor two")] {
        writer.view_mut(offset, 10).expect("in a tensor").copy_from(text).expect("equal lengths");
        assert_eq!(bytes(&reader, offset, 10), text);
    }
}

#[test]
fn a_view_across_guard_pages_is_refused() {
    let tensors = [Extent { offset: 4096, size: 100 }, Extent { offset: 8192, size: 4096 }];
    let mut region = region(16384, &tensors, Guard::Tensor, READ_WRITE);
    for (offset, len) in [(0, 1), (4095, 2), (8191, 2), (4096, 8192), (12287, 2), (12288, 1)] {
        let expected = MapError::AcrossGuard { offset, len };
        assert_eq!(region.view(offset, len).err(), Some(expected.clone()), "{offset}, {len}");
        assert_eq!(region.view_mut(offset, len).err(), Some(expected), "{offset}, {len}");
    }
}

#[test]
fn elements_that_do_not_lie_in_the_view_are_refused() {
    let mut region = region(4096, &[], Guard::None, READ_WRITE);
    // Element bytes, stride, buffer bytes; the view has 100.
    let table = [
        (0, 8, 8),
        (2, 1, 8),
        (2, 0, 8),
        (4, 8, 6),
        (2, 33, 8),
        (2, 99, 4),
        (101, 101, 101),
        (2, usize::MAX, 4),
        (2, usize::MAX / 2, 8),
    ];
    for (element_bytes, stride, buffer) in table {
        let expected = Err(MapError::Stride { element_bytes, stride, buffer, view: 100 });
        let mut view = region.view_mut(0, 100).expect("in bounds");
        assert_eq!(view.copy_strided_from(element_bytes, stride, &vec![0; buffer]), expected);
        assert_eq!(view.as_view().copy_strided_to(element_bytes, stride, &mut vec![0; buffer]), expected);
    }
}

#[test]
fn the_last_strided_element_may_end_with_the_view() {
    let mut region = region(4096, &[], Guard::None, READ_WRITE);
    let mut view = region.view_mut(0, 100).expect("in bounds");
    view.copy_strided_from(2, 98, b"abcd").expect("98 + 2 = 100");
    assert_eq!((bytes(&region, 0, 3), bytes(&region, 97, 4)), (b"ab\0".to_vec(), b"\0cd\0".to_vec()));
}

#[test]
fn a_region_moves_between_threads_and_several_read_it_at_once() {
    let mut region = region(8192, &[], Guard::None, READ_WRITE);
    let mut half = region.view_mut(4096, 4096).expect("in bounds");
    std::thread::scope(|threads| threads.spawn(move || half.fill(7)).join()).expect("it fills");

    let sums = std::thread::scope(|threads| {
        let sum = |offset| bytes(&region, offset, 4096).iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let readers = [0, 4096].map(|offset| threads.spawn(move || sum(offset)));
        readers.map(|reader| reader.join().expect("it sums"))
    });
    assert_eq!(sums, [0, 7 * 4096]);
    std::thread::spawn(move || drop(region)).join().expect("it is dropped elsewhere");
}

proptest! {
    #[test]
    fn strided_copies_agree_with_naive_ones(
        element_bytes in 1_usize..=9,
        gap in 0_usize..40,
        count in 0_usize..60,
        start in 0_usize..64,
        seed in any::<u8>(),
    ) {
        let stride = element_bytes + gap;
        let elements: Vec<u8> = (0..element_bytes * count).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect();
        let len = 4096 - start;
        let mut naive = vec![0xee; 4096];
        for (index, element) in elements.chunks(element_bytes).enumerate() {
            naive[start + index * stride..][..element_bytes].copy_from_slice(element);
        }

        let mut region = region(4096, &[], Guard::None, READ_WRITE);
        region.view_mut(0, 4096).expect("in bounds").fill(0xee);
        let mut view = region.view_mut(start as u64, len as u64).expect("in bounds");
        view.copy_strided_from(element_bytes, stride, &elements).expect("it fits");
        let mut gathered = vec![0; elements.len()];
        view.as_view().copy_strided_to(element_bytes, stride, &mut gathered).expect("it fits");

        prop_assert_eq!(gathered, elements);
        prop_assert_eq!(bytes(&region, 0, 4096), naive);
    }
}
