//! Two processes that map one descriptor see one another's bytes.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use kvshare::map::{Access, Extent, Guard, MapOptions, MappedRegion};
use kvshare::memory::{Memfd, RegionSource};

/// Set in the process that a test has started. Its standard input is the memory.
const CHILD: &str = "KVSHARE_TWO_PROCESSES_CHILD";

const REGION: Extent = Extent { offset: 4096, size: 8192 };
const TENSOR: Extent = Extent { offset: 4096, size: 100 };

fn map(memory: impl AsFd, guard: Guard) -> MappedRegion {
    let options = MapOptions { access: Access::ReadWrite, guard, ..MapOptions::default() };
    MappedRegion::map(memory, REGION, &[TENSOR], &options).expect("a mapping")
}

fn text(region: &MappedRegion, offset: u64) -> [u8; 8] {
    let mut text = [0; 8];
    region.view(offset, 8).expect("in the tensor").copy_to(&mut text).expect("equal lengths");
    text
}

fn write(region: &mut MappedRegion, offset: u64, text: &[u8; 8]) {
    region.view_mut(offset, 8).expect("in the tensor").copy_from(text).expect("equal lengths");
}

#[test]
fn what_one_process_writes_the_other_reads() {
    if std::env::var_os(CHILD).is_some() {
        let mut region = map(std::io::stdin(), Guard::Tensor);
        assert_eq!(&text(&region, 4096), b"question");
        write(&mut region, 4104, b"response");
        return;
    }
    let memory = Memfd::new().allocate("two-processes", 12288).expect("memory");
    let mut region = map(&memory.descriptor, Guard::None);
    write(&mut region, 4096, b"question");

    let provider = Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "what_one_process_writes_the_other_reads"])
        .env(CHILD, "1")
        .stdin(Stdio::from(memory.descriptor))
        .output()
        .expect("a second process");

    assert!(provider.status.success(), "{}", String::from_utf8_lossy(&provider.stdout));
    assert_eq!(&text(&region, 4104), b"response");
}
