//! How many pages a descriptor's memory takes.

use kvshare::fd::PageUse;
use kvshare::memory::{Memfd, RegionSource, Reserve};

#[test]
fn a_memfd_tells_its_pages_and_how_much_is_allocated() {
    let page_bytes = rustix::param::page_size() as u64;
    for (reserve, allocated) in [(Reserve::Now, 1 << 20), (Reserve::OnTouch, 0)] {
        let memory = Memfd::new().reserve(reserve).allocate("pages", 1 << 20).unwrap();
        assert_eq!(PageUse::of(&memory.descriptor).unwrap(), Some(PageUse { page_bytes, allocated }));
    }
}

#[test]
fn what_is_no_file_has_no_pages_to_tell() {
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(PageUse::of(&socket).unwrap(), None);
}
