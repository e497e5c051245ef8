use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::cpu_access::retried;
use super::fence::judge;
use super::mapping::Mapping;
use super::placement::{MapFrom, Piece, Placement, place};
use super::region::{ENOTSUPP, explain};
use super::{Access, Extent, Guard, MapError};
use crate::map::descriptor::Mappable;
use crate::memory::{Memfd, RegionSource};

const KIB_4: u64 = 4096;
const MIB_2: u64 = 2 << 20;

fn extent(offset: u64, size: u64) -> Extent {
    Extent { offset, size }
}

#[test]
fn an_unguarded_region_takes_no_more_than_its_pages() {
    let piece = Piece { visible: extent(0, 8192), file: extent(4096, 8192), at: 0, first: 0 };
    assert_eq!(
        place(extent(4096, 8192), &[], Guard::None, MapFrom::Offset, KIB_4, KIB_4),
        Ok(Placement { bytes: 8192, alignment: 4096, pieces: vec![piece] })
    );
}

#[test]
fn a_guarded_region_lies_between_two_pages() {
    let piece = Piece { visible: extent(0, 8192), file: extent(4096, 8192), at: 4096, first: 4096 };
    assert_eq!(
        place(extent(4096, 8192), &[], Guard::Region, MapFrom::Offset, KIB_4, KIB_4),
        Ok(Placement { bytes: 16384, alignment: 4096, pieces: vec![piece] })
    );
}

#[test]
fn a_region_of_a_buffer_that_is_mapped_from_its_start_is_seen_at_its_own_offset() {
    let whole = extent(0, 8192);
    for (guard, gap) in [(Guard::None, 0), (Guard::Region, 4096)] {
        let piece = Piece { visible: whole, file: extent(0, 20480), at: gap, first: gap + 12288 };
        assert_eq!(
            place(extent(12288, 8192), &[], guard, MapFrom::Start, KIB_4, KIB_4),
            Ok(Placement { bytes: 20480 + 2 * gap, alignment: 4096, pieces: vec![piece] })
        );
    }
}

#[test]
fn guarded_tensors_lie_between_pages_and_what_is_between_them_is_left_out() {
    let tensors = [extent(0, 7200), extent(12288, 1)];
    let pieces = vec![
        Piece { visible: extent(0, 8192), file: extent(4096, 8192), at: 4096, first: 4096 },
        Piece { visible: extent(12288, 4096), file: extent(16384, 4096), at: 16384, first: 16384 },
    ];
    assert_eq!(
        place(extent(4096, 16384), &tensors, Guard::Tensor, MapFrom::Offset, KIB_4, KIB_4),
        Ok(Placement { bytes: 24576, alignment: 4096, pieces })
    );
}

#[test]
fn a_region_in_the_middle_of_huge_pages_is_seen_at_its_own_offset() {
    let piece = Piece { visible: extent(0, MIB_2), file: extent(0, 2 * MIB_2), at: 0, first: 4096 };
    assert_eq!(
        place(extent(4096, MIB_2), &[], Guard::None, MapFrom::Offset, MIB_2, MIB_2),
        Ok(Placement { bytes: 4 << 20, alignment: 2 << 20, pieces: vec![piece] })
    );
}

#[test]
fn guards_must_follow_at_once_even_where_pages_are_huge() {
    let refused = |offset, size| Err(MapError::GuardNeedsSmallerPages { offset, size, page_bytes: MIB_2 });
    let table = [
        (extent(0, MIB_2), Guard::Region, Ok(3 * MIB_2)),
        (extent(0, MIB_2), Guard::Tensor, Ok(3 * MIB_2)),
        (extent(0, MIB_2 + 4096), Guard::Region, refused(0, MIB_2 + 4096)),
        (extent(4096, MIB_2), Guard::Region, refused(4096, MIB_2)),
        (extent(4096, MIB_2), Guard::Tensor, refused(4096, MIB_2)),
    ];
    for (region, guard, expected) in table {
        let answer = place(region, &[extent(0, region.size)], guard, MapFrom::Offset, MIB_2, MIB_2);
        assert_eq!(answer.map(|placement| placement.bytes as u64), expected, "{region:?}, {guard:?}");
    }
}

#[test]
fn transparent_huge_pages_are_possible_where_address_and_offset_agree() {
    let tensors = [extent(0, 5 << 20), extent(6 << 20, 4096), extent(7 << 20, 9 << 20)];
    for guard in [Guard::None, Guard::Region, Guard::Tensor] {
        let placement = place(extent(12288, 16 << 20), &tensors, guard, MapFrom::Offset, KIB_4, MIB_2).expect("a plan");
        for piece in placement.pieces {
            assert_eq!(piece.at as u64 % MIB_2, piece.file.offset % MIB_2, "{guard:?}, {piece:?}");
        }
    }
}

#[test]
fn a_plan_larger_than_the_address_space_is_refused() {
    let largest = isize::MAX as u64 - 4095;
    let answer = place(extent(0, largest), &[], Guard::Region, MapFrom::Offset, KIB_4, KIB_4);
    assert_eq!(answer, Err(MapError::TooLarge { size: largest + 8192 }));
}

#[test]
fn what_no_driver_can_map_is_reported_by_the_kernels_own_answer() {
    let memory = Memfd::new().allocate("explain", 4096).expect("memory");
    let facts = Mappable::of(memory.descriptor.as_fd()).expect("facts");
    let table = [
        (Errno::INVAL, MapError::NotByCpu),
        (Errno::NODEV, MapError::NotByCpu),
        (ENOTSUPP, MapError::NotByCpu),
        (Errno::NOMEM, MapError::System { call: "mmap", errno: Errno::NOMEM }),
        (Errno::AGAIN, MapError::System { call: "mmap", errno: Errno::AGAIN }),
    ];
    for (errno, expected) in table {
        assert_eq!(explain(errno, &facts), expected);
    }
}

#[test]
fn memory_that_the_kernel_will_not_map_leaves_an_error_and_no_mapping() {
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let placement = place(extent(0, 4096), &[], Guard::Region, MapFrom::Offset, KIB_4, KIB_4).expect("a plan");
    assert_eq!(Mapping::new(pipe.as_fd(), placement, Access::ReadOnly, false).err(), Some(Errno::NODEV));
}

#[test]
fn a_cpu_access_is_asked_for_again_when_the_kernel_was_interrupted() {
    let mut answers = [Err(Errno::INTR), Err(Errno::AGAIN), Ok(()), Err(Errno::IO)].into_iter();
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(retried(later, || answers.next().expect("an answer")), Ok(()));
    assert_eq!(answers.len(), 1, "and no more often than that");
}

#[test]
fn a_cpu_access_that_the_kernel_never_grants_ends_at_the_deadline() {
    for again in [Errno::AGAIN, Errno::INTR] {
        assert_eq!(retried(Instant::now(), || Err(again)), Err(MapError::DeviceBusy));
    }
    let later = Instant::now() + Duration::from_secs(60);
    let refused = Err(MapError::System { call: "DMA_BUF_IOCTL_SYNC", errno: Errno::INVAL });
    assert_eq!(retried(later, || Err(Errno::INVAL)), refused, "another answer is final");
}

#[test]
fn a_fence_says_whether_the_devices_work_went_well() {
    let table = [
        (1, Ok(())),
        (0, Err(MapError::DeviceBusy)),
        (-110, Err(MapError::DeviceFailed { errno: Errno::TIMEDOUT })),
        (i32::MIN, Err(MapError::DeviceFailed { errno: Errno::IO })),
    ];
    for (status, expected) in table {
        assert_eq!(judge(status), expected, "{status}");
    }
}
