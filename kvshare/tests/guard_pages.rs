//! A stray access faults at once where guard pages were asked for.
//!
//! Each fault is provoked in a process of its own: the test starts this program again, for itself alone, and looks at
//! how that process ends.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use kvshare::map::{Access, Extent, Guard, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

/// Set in a process that a test has started.
const CHILD: &str = "KVSHARE_GUARD_PAGES_CHILD";

/// How such a process ends if nothing stops it. A harness that found no test to run would end with 0.
const SURVIVED: i32 = 42;

/// Two tensors of 7200 bytes; each takes two pages, of which the last 992 bytes are padding.
const TENSORS: [Extent; 2] = [Extent { offset: 0, size: 7200 }, Extent { offset: 8192, size: 7200 }];
const REGION: Extent = Extent { offset: 0, size: 16384 };

fn map(guard: Guard, access: Access) -> MappedRegion {
    let memory = Memfd::new().allocate("guard-pages", REGION.size).expect("memory");
    let options = MapOptions { access, guard, ..MapOptions::default() };
    MappedRegion::map(memory.descriptor, REGION, &TENSORS, &options).expect("a mapping")
}

/// Runs `stray_access` in a process of its own, and says how that ended.
fn end_of(test: &str, stray_access: impl FnOnce()) -> ExitStatus {
    if std::env::var_os(CHILD).is_some() {
        let no_core_file = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Core, no_core_file).expect("a lower limit is always granted");
        stray_access();
        std::process::exit(SURVIVED);
    }
    let this_program = std::env::current_exe().expect("the test's own path");
    let output = Command::new(this_program).args(["--exact", test, "--nocapture"]).env(CHILD, "1").output();
    output.expect("a second process").status
}

fn faults(end: ExitStatus) -> bool {
    end.signal() == Some(Signal::SEGV.as_raw())
}

/// Writes one byte as faulty code would, `distance` bytes from the region's byte `offset`.
fn write_stray(region: &mut MappedRegion, offset: u64, distance: isize) {
    let start = region.view_mut(offset, 1).expect("a byte of a tensor").as_mut_ptr();
    // SAFETY: deliberately none: it is what guard pages are for. The memory is this test's own; the byte is one of the
    // same region, or one that no process can write.
    unsafe { start.wrapping_offset(distance).write_volatile(7) };
}

/// Reads likewise.
fn read_stray(region: &MappedRegion, offset: u64, distance: isize) -> u8 {
    let start = region.view(offset, 1).expect("a byte of a tensor").as_ptr();
    // SAFETY: as in `write_stray`.
    unsafe { start.wrapping_offset(distance).read_volatile() }
}

#[test]
fn a_write_past_a_guarded_tensors_pages_faults() {
    let end = end_of("a_write_past_a_guarded_tensors_pages_faults", || {
        write_stray(&mut map(Guard::Tensor, Access::ReadWrite), 0, 8192);
    });
    assert!(faults(end), "{end}");
}

#[test]
fn a_write_before_a_guarded_tensor_faults() {
    let end = end_of("a_write_before_a_guarded_tensor_faults", || {
        write_stray(&mut map(Guard::Tensor, Access::ReadWrite), 8192, -1);
    });
    assert!(faults(end), "{end}");
}

#[test]
fn a_read_past_the_last_guarded_tensor_faults() {
    let end = end_of("a_read_past_the_last_guarded_tensor_faults", || {
        read_stray(&map(Guard::Tensor, Access::ReadOnly), 8192, 8192);
    });
    assert!(faults(end), "{end}");
}

#[test]
fn a_write_past_a_tensors_last_byte_lands_in_its_padding() {
    for guard in [Guard::None, Guard::Region, Guard::Tensor] {
        let mut region = map(guard, Access::ReadWrite);
        write_stray(&mut region, 7199, 1);

        let mut padding = [0; 992];
        region.view(7200, 992).expect("padding").copy_to(&mut padding).expect("equal lengths");
        assert_eq!((padding[0], padding[1..].iter().max()), (7, Some(&0)), "{guard:?}");
        assert_eq!(read_stray(&region, 8192, 0), 0, "{guard:?}: the next tensor is as it was");
    }
}

#[test]
fn without_guard_pages_a_write_past_a_tensors_pages_damages_the_next_tensor() {
    for guard in [Guard::None, Guard::Region] {
        let mut region = map(guard, Access::ReadWrite);
        write_stray(&mut region, 0, 8192);
        assert_eq!(read_stray(&region, 8192, 0), 7, "{guard:?}");
    }
}

#[test]
fn a_write_before_a_guarded_region_faults() {
    let end = end_of("a_write_before_a_guarded_region_faults", || {
        write_stray(&mut map(Guard::Region, Access::ReadWrite), 0, -1);
    });
    assert!(faults(end), "{end}");
}

#[test]
fn a_write_past_a_guarded_region_faults() {
    let end = end_of("a_write_past_a_guarded_region_faults", || {
        write_stray(&mut map(Guard::Region, Access::ReadWrite), 0, 16384);
    });
    assert!(faults(end), "{end}");
}

#[test]
fn a_write_to_a_region_that_is_mapped_for_reading_faults() {
    let end = end_of("a_write_to_a_region_that_is_mapped_for_reading_faults", || {
        let region = map(Guard::None, Access::ReadOnly);
        let start = region.view(0, 1).expect("the first byte").as_ptr().cast_mut();
        // SAFETY: deliberately none: the page is mapped for reading, so no process sees a change.
        unsafe { start.write_volatile(7) };
    });
    assert!(faults(end), "{end}");
}

#[test]
fn a_process_that_stays_in_bounds_survives() {
    let end = end_of("a_process_that_stays_in_bounds_survives", || {
        for guard in [Guard::None, Guard::Region, Guard::Tensor] {
            let mut region = map(guard, Access::ReadWrite);
            for tensor in TENSORS {
                region.view_mut(tensor.offset, tensor.size).expect("a tensor").fill(1);
            }
        }
    });
    assert_eq!(end.code(), Some(SURVIVED), "{end}");
}
