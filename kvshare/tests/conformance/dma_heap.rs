//! What is particular to a DMA heap.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use kvshare::memory::{DmaHeap, MemoryError, RegionSource};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

use crate::Promise;
use crate::kinds::Kind;

pub const PROMISES: &[Promise] = &[
    ("more_than_the_machine_has_is_refused_before_the_heap_is_asked", more_than_the_machine_has),
    ("a_heap_that_does_not_exist_is_named_in_the_error", a_heap_that_does_not_exist),
    ("a_name_that_leads_elsewhere_is_refused", a_name_that_leads_elsewhere_is_refused),
    ("the_heaps_of_the_machine_are_listed", the_heaps_of_the_machine_are_listed),
];

/// `DMA_HEAP_IOCTL_ALLOC` and its argument (linux/dma-heap.h).
const ALLOC: Opcode = opcode::read_write::<Allocation>(b'H', 0);

#[repr(C)]
struct Allocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// Memory of the system heap that was exported for reading.
pub fn read_only(size: u64) -> OwnedFd {
    let heap = File::open("/dev/dma_heap/system").expect("the system heap");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut data = Allocation { len: size, fd: 0, fd_flags: flags.bits(), heap_flags: 0 };
    // SAFETY: the kernel reads and writes one structure, as linux/dma-heap.h says, and the descriptor that it opened is
    // ours alone. No other process has a part in it.
    unsafe {
        rustix::ioctl::ioctl(heap.as_fd(), Updater::<{ ALLOC }, Allocation>::new(&mut data)).expect("memory");
        OwnedFd::from_raw_fd(data.fd as i32)
    }
}

fn more_than_the_machine_has(kind: &Kind) {
    let error = kind.source.allocate("large", 1 << 40).expect_err("no machine has it");
    assert!(matches!(error, MemoryError::NotEnoughMemory { size, .. } if size == 1 << 40), "{error}");
}

fn a_heap_that_does_not_exist(_: &Kind) {
    let error = DmaHeap::new("no-such-heap").allocate("a", 4096).expect_err("there is none");
    let path = "/dev/dma_heap/no-such-heap".into();
    assert_eq!(error, MemoryError::Device { path, kind: "dma-heap", errno: Errno::NOENT });
    assert!(error.to_string().ends_with("the heaps of this machine are the files in /dev/dma_heap"), "{error}");
}

fn a_name_that_leads_elsewhere_is_refused(_: &Kind) {
    for name in ["", ".", "..", "../udmabuf", "system/", "a\0b"] {
        let error = DmaHeap::new(name).allocate("a", 4096).expect_err("no heap's name");
        assert_eq!(error, MemoryError::HeapName { name: name.to_owned() });
    }
}

fn the_heaps_of_the_machine_are_listed(_: &Kind) {
    assert!(DmaHeap::names().contains(&"system".to_owned()));
}
