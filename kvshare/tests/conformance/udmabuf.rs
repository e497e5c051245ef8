//! What is particular to memfds that were made a dma-buf.

use std::os::fd::{AsFd, AsRawFd};

use kvshare::fd::{Facts, OpenMode};
use kvshare::map::{Access, Extent, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, MemoryError, RegionSource, Udmabuf, UdmabufPart};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, opcode};

use crate::Promise;
use crate::kinds::Kind;
use crate::promises::READ_WRITE;
use crate::system;

pub const PROMISES: &[Promise] = &[
    ("a_buffer_over_the_limit_is_refused_with_the_limits_name", over_the_limit),
    ("parts_of_several_memfds_become_one_buffer", parts_of_several_memfds_become_one_buffer),
    ("a_part_that_is_not_in_its_memfd_is_refused", a_part_that_is_not_in_its_memfd_is_refused),
    ("a_memfd_with_the_wrong_seals_is_refused", a_memfd_with_the_wrong_seals_is_refused),
    ("more_parts_than_the_kernel_allows_are_refused", more_parts_than_the_kernel_allows_are_refused),
    ("the_kernel_refuses_with_one_errno_what_the_library_tells_apart", the_kernel_refuses_with_one_errno),
    ("it_is_exported_for_reading_and_writing_and_cannot_be_opened_otherwise", it_is_exported_for_reading_and_writing),
    ("a_hole_in_the_memfd_parts_it_from_the_buffer_silently", a_hole_parts_memfd_and_buffer),
];

fn memfd(pages: u64) -> std::os::fd::OwnedFd {
    Memfd::new().allocate("part", pages * 4096).expect("memory").descriptor
}

fn part<'a>(memfd: &'a impl AsFd, offset: u64, size: u64) -> UdmabufPart<'a> {
    UdmabufPart { memfd: memfd.as_fd(), offset, size }
}

fn map(memory: impl AsFd, size: u64) -> MappedRegion {
    MappedRegion::map(memory, Extent { offset: 0, size }, &[], &READ_WRITE).expect("a mapping")
}

fn byte(region: &MappedRegion, offset: u64) -> u8 {
    let mut byte = [0];
    region.view(offset, 1).expect("a byte").copy_to(&mut byte).expect("equal lengths");
    byte[0]
}

fn over_the_limit(kind: &Kind) {
    let limit = std::fs::read_to_string("/sys/module/udmabuf/parameters/size_limit_mb").expect("the limit");
    let limit_mib: u64 = limit.trim().parse().expect("a number");
    let size = (limit_mib << 20) + 4096;
    let error = kind.source.allocate("large", size).expect_err("over the limit");
    assert_eq!(error, MemoryError::UdmabufTooLarge { size, limit_mib });
    let words = error.to_string();
    assert!(words.contains(&format!("the limit is {limit_mib} MiB")) && words.contains("size_limit_mb"), "{words}");
}

fn parts_of_several_memfds_become_one_buffer(_: &Kind) {
    let (first, second) = (memfd(4), memfd(2));
    map(&first, 16384).view_mut(8192, 1).expect("a byte").fill(1);
    map(&second, 8192).view_mut(0, 1).expect("a byte").fill(2);
    let parts = [part(&first, 8192, 8192), part(&second, 0, 4096)];
    let joined = Udmabuf::new().join("joined", &parts).expect("a buffer");
    assert_eq!(joined.size, 12288);
    let mut region = map(&joined.descriptor, 12288);
    assert_eq!((byte(&region, 0), byte(&region, 8192)), (1, 2));

    let access = region.begin_cpu_access(Access::ReadWrite).expect("access");
    region.view_mut(4096, 1).expect("a byte").fill(3);
    access.end().expect("its end");
    assert_eq!(byte(&map(&first, 16384), 12288), 3, "a page that only fallocate took shows what was written");
    assert_eq!(byte(&region, 4096), 3, "and keeps it");
}

fn a_part_that_is_not_in_its_memfd_is_refused(_: &Kind) {
    let memory = memfd(2);
    for (offset, size) in [(0, 12288), (8192, 4096), (100, 4096), (4096, 4196), (u64::MAX - 4095, 4096)] {
        let parts = [part(&memory, 0, 4096), part(&memory, offset, size)];
        let error = Udmabuf::new().join("parts", &parts).expect_err("no part of it");
        let expected = match size.is_multiple_of(4096) {
            true => MemoryError::Part { index: 1, offset, size, held: 8192, page: 4096 },
            false => MemoryError::Unaligned { size: 4096 + size },
        };
        assert_eq!(error, expected);
    }
}

fn a_memfd_with_the_wrong_seals_is_refused(_: &Kind) {
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK | SealFlags::WRITE] {
        let memfd = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&memfd, 4096).expect("a size");
        fcntl_add_seals(&memfd, seals).expect("seals");
        let error = Udmabuf::new().join("seals", &[part(&memfd, 0, 4096)]).expect_err("wrong seals");
        assert_eq!(error, MemoryError::PartSeals { index: 0 }, "{seals:?}");
    }
}

fn more_parts_than_the_kernel_allows_are_refused(_: &Kind) {
    let memory = memfd(1);
    let parts = vec![part(&memory, 0, 4096); 1025];
    let error = Udmabuf::new().join("parts", &parts).expect_err("too many");
    assert_eq!(error, MemoryError::TooManyParts { count: 1025, limit: 1024 });
    Udmabuf::new().join("parts", &parts[1..]).expect("just as many as allowed");
}

/// `UDMABUF_CREATE` and its argument (linux/udmabuf.h): the memfd and flags, offset, size.
const CREATE: Opcode = opcode::write::<[u64; 3]>(b'u', 0x42);

fn the_kernel_refuses_with_one_errno(_: &Kind) {
    let device = std::fs::File::open("/dev/udmabuf").expect("the device");
    let refusal = |size: u64, seals: SealFlags| {
        let memfd = memfd_create("refused", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&memfd, size).expect("a size");
        fcntl_add_seals(&memfd, seals).expect("seals");
        let argument = [memfd.as_raw_fd() as u64, 0, size];
        // SAFETY: the kernel reads three numbers, as linux/udmabuf.h says. Other processes are not affected.
        unsafe { rustix::ioctl::ioctl(&device, Setter::<{ CREATE }, [u64; 3]>::new(argument)) }
    };
    let (shrink, write) = (SealFlags::SHRINK, SealFlags::WRITE);
    for (size, seals) in [(4096, SealFlags::empty()), (4096, shrink | write), ((64 << 20) + 4096, shrink)] {
        assert_eq!(refusal(size, seals), Err(Errno::INVAL), "{size}, {seals:?}");
    }
}

/// Why nothing is shown here of a udmabuf that was exported for reading: there is none.
fn it_is_exported_for_reading_and_writing(kind: &Kind) {
    let memory = kind.region("access-mode", 1);
    assert_eq!(Facts::of(&memory).expect("facts").access, OpenMode::ReadWrite);
    assert_eq!(system::reopened(&memory).err(), Some(Errno::NXIO));
}

fn a_hole_parts_memfd_and_buffer(_: &Kind) {
    let memory = memfd(2);
    let mut of_memfd = map(&memory, 8192);
    of_memfd.view_mut(0, 8192).expect("all of it").fill(1);
    let buffer = Udmabuf::new().join("hole", &[part(&memory, 0, 8192)]).expect("a buffer");
    let of_buffer =
        MappedRegion::map(&buffer.descriptor, Extent { offset: 0, size: 8192 }, &[], &MapOptions::default());
    let of_buffer = of_buffer.expect("a mapping");
    fallocate(&memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).expect("a hole");
    assert_eq!((byte(&of_memfd, 0), byte(&of_buffer, 0)), (0, 1), "the buffer keeps the old page");
    of_memfd.view_mut(0, 8192).expect("all of it").fill(2);
    assert_eq!((byte(&of_buffer, 0), byte(&of_buffer, 4096)), (1, 2), "and sees only the other");
}
