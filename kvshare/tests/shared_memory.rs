//! What broke shared memory for others: the smallest input that shows it, and what happens here instead. The numbers
//! are public reports, each `owner/repository#number`.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use kvshare::map::{Access, Extent, MapError, MapOptions, MappedRegion, Unsealed};
use kvshare::memory::{FallbackReason, Memfd, MemoryError, Pages, RegionSource, Reserve};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

/// Set in a process that a test has started.
const CHILD: &str = "KVSHARE_SHARED_MEMORY_CHILD";

const PAGE: Extent = Extent { offset: 0, size: 4096 };

fn unsealed_memfd(size: u64) -> OwnedFd {
    let memfd = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&memfd, size).expect("a size");
    memfd
}

fn refusal(descriptor: impl AsFd, extent: Extent) -> MapError {
    MappedRegion::map(descriptor, extent, &[], &MapOptions::default()).expect_err("it must be refused")
}

/// Smithay/client-toolkit#173, rust-windowing/softbuffer#62: a peer truncated its memfd, and the receiver died.
#[test]
fn memory_that_a_peer_could_truncate_is_refused() {
    assert_eq!(refusal(unsealed_memfd(4096), PAGE), MapError::Unsealed);
}

/// The same reports: what the refusal prevents, and what accepting unsealed memory risks.
#[test]
fn a_truncation_of_memory_that_was_accepted_unsealed_ends_in_sigbus() {
    if std::env::var_os(CHILD).is_some() {
        let no_core_file = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Core, no_core_file).expect("a lower limit is always granted");
        let memfd = unsealed_memfd(4096);
        let accepting = MapOptions { unsealed: Unsealed::AcceptSigbus, ..MapOptions::default() };
        let region = MappedRegion::map(&memfd, PAGE, &[], &accepting).expect("accepted");
        rustix::fs::ftruncate(&memfd, 0).expect("nothing forbids it");
        let _ = region.view(0, 1).expect("in bounds").copy_to(&mut [0]);
        std::process::exit(0);
    }
    let receiver = Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "a_truncation_of_memory_that_was_accepted_unsealed_ends_in_sigbus"])
        .env(CHILD, "1")
        .output()
        .expect("a second process");
    assert_eq!(receiver.status.signal(), Some(Signal::BUS.as_raw()), "{}", receiver.status);
}

/// The same reports, from the exporter's side: what we hand out satisfies whoever checks as we do.
#[test]
fn allocated_memory_cannot_be_resized_and_takes_no_further_seal() {
    let memory = Memfd::new().allocate("sealed", 8192).expect("memory");
    for size in [0, 4096, 12288] {
        assert_eq!(rustix::fs::ftruncate(&memory.descriptor, size), Err(Errno::PERM), "{size}");
    }
    assert_eq!(rustix::fs::fcntl_add_seals(&memory.descriptor, SealFlags::WRITE), Err(Errno::PERM));
    assert_eq!(rustix::fs::fstat(&memory.descriptor).expect("its size").st_size, 8192);
}

/// mongodb/mongo-c-driver#1244: `ftruncate` allocates nothing, and a later touch raises `SIGBUS` when memory is out.
#[test]
fn memory_is_taken_at_once_unless_told_otherwise() {
    let bytes_taken = |reserve| {
        let memory = Memfd::new().reserve(reserve).allocate("reserve", 1 << 20).expect("memory");
        rustix::fs::fstat(&memory.descriptor).expect("its size").st_blocks * 512
    };
    assert_eq!((bytes_taken(Reserve::Now), bytes_taken(Reserve::OnTouch)), (1 << 20, 0));
}

/// A DMA heap that is asked for 1 TiB takes the process down. Nothing is asked of a machine that it does not have.
#[test]
fn more_memory_than_the_machine_has_is_refused_with_both_figures() {
    let size = 1 << 60;
    match Memfd::new().allocate("too-much", size) {
        Err(MemoryError::NotEnoughMemory { size: asked, available }) => {
            assert!(asked == size && 0 < available && available < size, "{asked} asked, {available} available");
        }
        answer => panic!("it must be refused, not {answer:?}"),
    }
}

/// oven-sh/bun#30019: a fallback of `MFD_NOEXEC_SEAL` lost sealing. (That the fallback itself keeps it is a test
/// beside the code, since it needs a kernel before 6.3.)
#[test]
fn allocated_memory_carries_the_seals_that_a_receiver_asks_for() {
    let memory = Memfd::new().allocate("seals", 4096).expect("memory");
    let seals = rustix::fs::fcntl_get_seals(&memory.descriptor).expect("a memfd has seals");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
    assert!(!seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE), "{seals:?}: regions are written");
}

/// servo/ipc-channel#271: a descriptor without close-on-exec reaches programs that it is not meant for.
#[test]
fn allocated_memory_is_not_inherited_by_a_program_that_is_started() {
    let memory = Memfd::new().allocate("close-on-exec", 4096).expect("memory");
    let flags = rustix::io::fcntl_getfd(&memory.descriptor).expect("its flags");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

/// rust-vmm/vhost#63: size + offset wrapped around and passed the check.
#[test]
fn an_offset_and_a_size_that_wrap_around_are_refused() {
    let memory = Memfd::new().allocate("wraps", 8192).expect("memory");
    let wraps = Extent { offset: u64::MAX - 4095, size: 8192 };
    let expected = MapError::Overflow { offset: wraps.offset, size: wraps.size };
    assert_eq!(refusal(&memory.descriptor, wraps), expected);
}

/// RazrFalcon/memmap2-rs#144: a length over `isize::MAX` makes every pointer into the mapping undefined behaviour.
#[test]
fn a_region_larger_than_half_the_address_space_is_refused() {
    let size = isize::MAX as u64 + 1;
    assert_eq!(refusal(unsealed_memfd(4096), Extent { offset: 0, size }), MapError::TooLarge { size });
    assert_eq!(Memfd::new().allocate("too-large", size).err(), Some(MemoryError::TooLarge { size }));
}

/// firecracker-microvm/firecracker#5480: the check against the end of the file was dropped.
#[test]
fn a_region_past_the_end_of_its_memory_is_refused() {
    let memory = Memfd::new().allocate("past-end", 4096).expect("memory");
    let expected = MapError::PastEnd { offset: 0, size: 8192, held: 4096 };
    assert_eq!(refusal(&memory.descriptor, Extent { offset: 0, size: 8192 }), expected);
}

/// RazrFalcon/memmap2-rs#117: a `&[u8]` over memory that another process writes is undefined behaviour. A view that
/// exists while its bytes change is not.
#[test]
fn a_view_sees_what_is_written_while_it_exists() {
    let memory = Memfd::new().allocate("changes", 4096).expect("memory");
    let writing = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    let mut peer = MappedRegion::map(&memory.descriptor, PAGE, &[], &writing).expect("a mapping");
    let region = MappedRegion::map(&memory.descriptor, PAGE, &[], &MapOptions::default()).expect("a mapping");
    let view = region.view(0, 1).expect("in bounds");

    let seen = [1, 2].map(|value| {
        peer.view_mut(0, 1).expect("in bounds").fill(value);
        let mut byte = [0];
        view.copy_to(&mut byte).expect("equal lengths");
        byte[0]
    });
    assert_eq!(seen, [1, 2]);
}

/// diwic/shmem-ipc#4: a hugetlb file whose size is not a multiple of its pages is `EINVAL`. Where the pool is empty,
/// as it is on most machines, the region comes in smaller pages and says so.
#[test]
fn a_region_in_huge_pages_is_usable_whatever_the_pool_holds() {
    let memory = Memfd::new().pages(Pages::HUGE_2_MIB).allocate("huge", 28672).expect("memory");
    let file_size = rustix::fs::fstat(&memory.descriptor).expect("its size").st_size;
    let asked: Vec<Pages> = memory.fallbacks.iter().map(|fallback| fallback.asked).collect();
    let expected: (i64, &[Pages]) = match memory.pages {
        Pages::Huge { .. } => (2 << 20, &[]),
        Pages::TransparentHuge => (28672, &[Pages::HUGE_2_MIB]),
        _ => (28672, &[Pages::HUGE_2_MIB, Pages::TransparentHuge]),
    };
    assert_eq!((file_size, asked.as_slice()), expected, "{:?}", memory.fallbacks);

    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    let part = Extent { offset: 4096, size: 24576 };
    let mut region = MappedRegion::map(&memory.descriptor, part, &[], &options).expect("a mapping");
    region.view_mut(24575, 1).expect("the last byte").fill(7);
}

/// The same report, for pages that no kernel has.
#[test]
fn huge_pages_of_a_size_that_there_is_no_pool_for_are_replaced_by_smaller_ones() {
    for page_bytes in [0, 1, 3, 4096, 3 << 20, 1 << 63] {
        let asked = Pages::Huge { page_bytes };
        let memory = Memfd::new().pages(asked).allocate("no-such-pool", 4096).expect("memory");
        let first = memory.fallbacks.first().map(|fallback| (fallback.asked, &fallback.reason));
        assert_eq!(first, Some((asked, &FallbackReason::NoSuchPool)));
    }
}

/// A hugetlb memfd that a peer has not reserved: mapping it answers `ENOMEM` when the pool is empty.
#[test]
fn huge_pages_that_the_pool_does_not_hold_are_named_when_they_are_mapped() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let memfd = rustix::fs::memfd_create("not-reserved", flags).expect("a memfd in huge pages");
    // More than the pool of any machine.
    rustix::fs::ftruncate(&memfd, 1 << 46).expect("a size");
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");

    let expected = MapError::HugePoolTooSmall { page_bytes: 2 << 20 };
    assert_eq!(refusal(&memfd, Extent { offset: 0, size: 1 << 46 }), expected);
}

/// vllm-project/vllm#1771, ggml-org/llama.cpp#23523: a container's `/dev/shm` of 64 MB was too small. A memfd is not
/// in it.
#[test]
fn memory_does_not_depend_on_the_size_of_dev_shm() {
    let memory = Memfd::new().reserve(Reserve::OnTouch).allocate("not-in-dev-shm", 1 << 40).expect("memory");
    let link = rustix::fs::readlink(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory.descriptor)),
        Vec::new(),
    );
    assert_eq!(link.expect("its name").to_bytes(), b"/memfd:not-in-dev-shm (deleted)");
}

/// Sizes and names that no source can take.
#[test]
fn a_size_or_a_name_that_cannot_be_is_refused() {
    let long = "x".repeat(250);
    let table = [
        ("a", 0, MemoryError::Empty),
        ("a", 1, MemoryError::Unaligned { size: 1 }),
        ("a", 4097, MemoryError::Unaligned { size: 4097 }),
        ("a", u64::MAX, MemoryError::TooLarge { size: u64::MAX }),
        (long.as_str(), 4096, MemoryError::Name { name: long.clone() }),
        ("a\0b", 4096, MemoryError::Name { name: "a\0b".to_owned() }),
    ];
    for (name, size, expected) in table {
        assert_eq!(Memfd::new().allocate(name, size).err(), Some(expected));
    }
}
