//! What must not be mapped is refused before it is, with an error that says why.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use kvshare::map::{Access, Extent, Guard, MapError, MapOptions, MappedRegion, Unsealed};
use kvshare::memory::{Memfd, RegionSource, Reserve};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

const READ_WRITE: MapOptions =
    MapOptions { access: Access::ReadWrite, guard: Guard::None, unsealed: Unsealed::Refuse, transparent_huge: false };

fn extent(offset: u64, size: u64) -> Extent {
    Extent { offset, size }
}

fn memory(size: u64) -> OwnedFd {
    Memfd::new().reserve(Reserve::OnTouch).allocate("refusals", size).expect("memory").descriptor
}

fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
    let memfd = rustix::fs::memfd_create("peer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&memfd, size).expect("a size");
    rustix::fs::fcntl_add_seals(&memfd, seals).expect("seals");
    memfd
}

fn refusal(descriptor: impl AsFd, region: Extent, options: &MapOptions) -> MapError {
    MappedRegion::map(descriptor, region, &[], options).expect_err("it must be refused")
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let descriptor = memory(16384);
    let max = isize::MAX as u64;
    let table = [
        (extent(0, 0), MapError::Empty),
        (extent(0, 100), MapError::Unaligned { field: "size", value: 100 }),
        (extent(512, 4096), MapError::Unaligned { field: "offset", value: 512 }),
        (extent(0, max + 1), MapError::TooLarge { size: max + 1 }),
        (extent(0, u64::MAX - 4095), MapError::TooLarge { size: u64::MAX - 4095 }),
        (extent(u64::MAX - 4095, 4096), MapError::Overflow { offset: u64::MAX - 4095, size: 4096 }),
        (extent(max - 4095, 4096), MapError::Overflow { offset: max - 4095, size: 4096 }),
        (extent(0, 20480), MapError::PastEnd { offset: 0, size: 20480, held: 16384 }),
        (extent(12288, 8192), MapError::PastEnd { offset: 12288, size: 8192, held: 16384 }),
        (extent(16384, 4096), MapError::PastEnd { offset: 16384, size: 4096, held: 16384 }),
        (extent(0, max - 4095), MapError::PastEnd { offset: 0, size: max - 4095, held: 16384 }),
    ];
    for (region, expected) in table {
        assert_eq!(refusal(&descriptor, region, &MapOptions::default()), expected, "{region:?}");
    }
}

#[test]
fn the_last_pages_of_a_descriptor_can_be_mapped() {
    let region = MappedRegion::map(memory(16384), extent(8192, 8192), &[], &READ_WRITE).expect("it ends at the end");
    assert_eq!((region.size(), region.extent()), (8192, extent(8192, 8192)));
}

#[test]
fn memory_that_lacks_any_of_the_three_seals_is_refused() {
    let (shrink, grow, seal) = (SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL);
    for seals in [SealFlags::empty(), shrink, shrink | grow, shrink | seal, grow | seal] {
        let unsealed = memfd(4096, seals);
        assert_eq!(refusal(&unsealed, extent(0, 4096), &MapOptions::default()), MapError::Unsealed, "{seals:?}");

        let accepting = MapOptions { unsealed: Unsealed::AcceptSigbus, ..MapOptions::default() };
        MappedRegion::map(&unsealed, extent(0, 4096), &[], &accepting).expect("accepted when asked to");
    }
}

#[test]
fn a_regular_file_counts_as_unsealed() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(4096).expect("a size");
    assert_eq!(refusal(&file, extent(0, 4096), &MapOptions::default()), MapError::Unsealed);
}

#[test]
fn accepting_unsealed_memory_does_not_lift_the_check_of_its_size() {
    let accepting = MapOptions { unsealed: Unsealed::AcceptSigbus, ..MapOptions::default() };
    let truncated = memfd(4096, SealFlags::empty());
    let expected = MapError::PastEnd { offset: 0, size: 8192, held: 4096 };
    assert_eq!(refusal(&truncated, extent(0, 8192), &accepting), expected);
}

#[test]
fn memory_that_may_not_be_written_is_mapped_for_reading_only() {
    let memory = memory(4096);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("opened again");
    let sealed = memfd(4096, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL);

    assert_eq!(refusal(&read_only, extent(0, 4096), &READ_WRITE), MapError::FileReadOnly);
    assert_eq!(refusal(&sealed, extent(0, 4096), &READ_WRITE), MapError::SealedAgainstWriting);
    MappedRegion::map(&read_only, extent(0, 4096), &[], &MapOptions::default()).expect("for reading");
}

#[test]
fn a_descriptor_that_cannot_be_read_is_refused() {
    let memory = memory(4096);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    for mode in [OFlags::WRONLY, OFlags::PATH] {
        let unreadable = rustix::fs::open(&path, mode | OFlags::CLOEXEC, Mode::empty()).expect("opened again");
        assert_eq!(refusal(unreadable, extent(0, 4096), &MapOptions::default()), MapError::NotReadable, "{mode:?}");
    }
}

#[test]
fn what_has_no_memory_for_the_cpu_is_refused_as_such() {
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let directory = File::open("/").expect("a directory");
    // A CUDA allocation's descriptor is a character device, too.
    let device = File::open("/dev/zero").expect("a character device");
    let descriptors: [OwnedFd; 4] = [pipe, socket.into(), directory.into(), device.into()];
    for descriptor in descriptors {
        assert_eq!(refusal(&descriptor, extent(0, 4096), &MapOptions::default()), MapError::NotByCpu, "{descriptor:?}");
    }
}

#[test]
fn tensors_that_cannot_have_guard_pages_are_refused() {
    let guarded = MapOptions { guard: Guard::Tensor, ..READ_WRITE };
    let outside = |offset, size| MapError::TensorOutside { offset, size, region: 16384 };
    let table = [
        (vec![extent(0, 0)], outside(0, 0)),
        (vec![extent(12288, 4097)], outside(12288, 4097)),
        (vec![extent(4096, u64::MAX)], outside(4096, u64::MAX)),
        (vec![extent(100, 100)], MapError::TensorUnaligned { offset: 100 }),
        (vec![extent(0, 4097), extent(4096, 10)], MapError::TensorsOverlap { offset: 4096, previous_end: 8192 }),
        (vec![extent(8192, 10), extent(0, 10)], MapError::TensorsOverlap { offset: 0, previous_end: 12288 }),
    ];
    let memory = memory(16384);
    for (tensors, expected) in table {
        let answer = MappedRegion::map(&memory, extent(0, 16384), &tensors, &guarded).err();
        assert_eq!(answer, Some(expected), "{tensors:?}");
    }
}

#[test]
fn an_error_names_the_values_and_the_remedy() {
    let table = [
        (
            refusal(memory(4096), extent(4096, 8192), &MapOptions::default()),
            "the region at offset 4096 of 8192 bytes ends after its descriptor, which holds 4096 bytes; the header and \
             the descriptor do not belong together",
        ),
        (
            MapError::DmaBufReadOnly,
            "the dma-buf was exported read-only; export it with DRM_RDWR, or map it for reading",
        ),
    ];
    for (error, expected) in table {
        assert_eq!(error.to_string(), expected);
    }
}
