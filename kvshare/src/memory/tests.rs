use std::cell::RefCell;
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::dma_buf::padded;
use super::machine::{parse_available, parse_setting};
use super::memfd::{create_sealable, judge_transparent_huge};
use super::{FallbackReason, MemoryError, PageFallback, Pages, Reserve};

#[test]
fn a_kernel_without_noexec_seal_still_makes_memory_that_can_be_sealed() {
    let asked = RefCell::new(Vec::new());
    let kernel_before_6_3 = |flags: MemfdFlags| -> Result<OwnedFd, Errno> {
        asked.borrow_mut().push(flags);
        if flags.contains(MemfdFlags::NOEXEC_SEAL) {
            return Err(Errno::INVAL);
        }
        rustix::fs::memfd_create("old-kernel", flags)
    };

    create_sealable(MemfdFlags::empty(), kernel_before_6_3).expect("the second attempt succeeds");

    let sealable = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    assert_eq!(*asked.borrow(), [sealable | MemfdFlags::NOEXEC_SEAL, sealable]);
}

#[test]
fn an_error_other_than_an_unknown_flag_is_not_tried_again() {
    let attempts = RefCell::new(0);
    let full_table = |_| {
        *attempts.borrow_mut() += 1;
        Err(Errno::MFILE)
    };

    assert_eq!(create_sealable(MemfdFlags::empty(), full_table).err(), Some(Errno::MFILE));
    assert_eq!(*attempts.borrow(), 1);
}

#[test]
fn available_memory_is_read_from_its_line() {
    let table = [
        ("MemTotal:       24684092 kB\nMemAvailable:   24321828 kB\n", Some(24_321_828 * 1024)),
        ("MemTotal:       24684092 kB\n", None),
        ("MemAvailable:   many kB\n", None),
        ("MemAvailable:   18446744073709551615 kB\n", None),
        ("", None),
    ];
    for (meminfo, expected) in table {
        assert_eq!(parse_available(meminfo), expected, "{meminfo:?}");
    }
}

#[test]
fn the_setting_in_force_is_the_bracketed_one() {
    let table = [
        ("always within_size advise [never] deny force\n", Some("never")),
        ("[always] within_size advise never\n", Some("always")),
        ("always never\n", None),
        ("always [never", None),
    ];
    for (settings, expected) in table {
        assert_eq!(parse_setting(settings), expected, "{settings:?}");
    }
}

#[test]
fn transparent_huge_pages_depend_on_the_setting_and_on_when_memory_is_reserved() {
    let off = |setting: &str| Some(FallbackReason::TransparentHugeOff { setting: setting.to_owned() });
    let table = [
        ("always", Reserve::Now, None),
        ("always", Reserve::OnTouch, None),
        ("within_size", Reserve::Now, None),
        ("force", Reserve::Now, None),
        ("advise", Reserve::OnTouch, None),
        ("advise", Reserve::Now, Some(FallbackReason::TransparentHugeOnTouchOnly)),
        ("never", Reserve::OnTouch, off("never")),
        ("deny", Reserve::Now, off("deny")),
        ("a later kernel's word", Reserve::Now, off("a later kernel's word")),
    ];
    for (setting, reserve, expected) in table {
        assert_eq!(judge_transparent_huge(setting.to_owned(), reserve), expected, "{setting}, {reserve:?}");
    }
}

#[test]
fn a_fallback_says_what_was_missing_and_what_to_do() {
    let fallback = PageFallback { asked: Pages::HUGE_2_MIB, reason: FallbackReason::PoolTooSmall { needed: 500 } };
    assert_eq!(
        fallback.to_string(),
        "2048 KiB pages were not to be had: 500 free pages are needed and the pool has fewer; raise nr_hugepages in \
         /sys/kernel/mm/hugepages"
    );
}

#[test]
fn a_dma_bufs_name_is_cut_to_31_bytes_between_characters() {
    let table = [
        ("", 0),
        ("cache-0", 7),
        ("a-name-of-thirty-two-bytes-in-al", 31),
        ("a-name-of-twenty-nine-bytes--\u{20ac}", 29),
    ];
    for (name, bytes) in table {
        let padded = padded(name);
        assert_eq!(&padded[..bytes], &name.as_bytes()[..bytes], "{name}");
        assert!(padded[bytes..].iter().all(|&byte| byte == 0), "{name}");
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_named_with_what_to_do() {
    let table = [
        ("udmabuf", Errno::NOENT, "load the kernel's module udmabuf, or use another kind of memory"),
        ("dma-heap", Errno::NOENT, "the heaps of this machine are the files in /dev/dma_heap"),
        ("drm", Errno::NOENT, "the devices of this machine are the card nodes in /dev/dri"),
        ("drm", Errno::ACCESS, "join the group that owns it, or run as its owner"),
        ("udmabuf", Errno::MFILE, "raise the limit of open descriptors (ulimit -n)"),
        ("udmabuf", Errno::IO, "use another kind of memory"),
    ];
    for (kind, errno, remedy) in table {
        let words = MemoryError::Device { path: "/dev/it".into(), kind, errno }.to_string();
        assert!(words.starts_with(&format!("/dev/it, which makes {kind} memory, cannot be opened: ")), "{words}");
        assert!(words.ends_with(remedy), "{words}");
    }
}

#[test]
fn memory_that_was_not_made_is_named_with_what_to_do() {
    let (card, call) = ("give a card node whose driver makes dumb buffers: one of /dev/dri/card*", "AN_IOCTL");
    let table = [
        ("drm", Errno::NOTTY, card),
        ("drm", Errno::ACCESS, card),
        ("dma-heap", Errno::ACCESS, "it is not allowed here; ask who confined this program"),
        ("drm", Errno::NOMEM, "free memory, or take a smaller context"),
        ("udmabuf", Errno::MFILE, "raise the limit of open descriptors (ulimit -n)"),
        ("udmabuf", Errno::INVAL, "the kernel's log may say why (dmesg); else use another kind of memory"),
        ("memfd", Errno::INVAL, "the kernel's log may say why (dmesg)"),
    ];
    for (kind, errno, remedy) in table {
        let error = match kind {
            "memfd" => MemoryError::System { call, size: 4096, errno },
            _ => MemoryError::DmaBuf { kind, call, size: 4096, errno },
        };
        let words = error.to_string();
        assert!(words.starts_with("AN_IOCTL failed for ") && words.contains("4096 bytes"), "{words}");
        assert!(words.ends_with(&format!("; {remedy}")), "{words}");
    }
}
