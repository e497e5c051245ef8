//! A descriptor is known by what it is, not by what anybody says about it.

use kvshare::fd::{Facts, FdError, Kind, OpenMode, Seals, Truncation, check_region, size};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};

fn memfd(name: &str, size: u64) -> File {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(size).unwrap();
    file
}

/// One descriptor of each kind that every machine can make.
fn one_of_each() -> Vec<(Kind, OwnedFd)> {
    let (pipe, _) = std::io::pipe().unwrap();
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    vec![
        (Kind::Memfd, memfd("facts", 4096).into()),
        (Kind::RegularFile, tempfile::tempfile().unwrap().into()),
        (Kind::Directory, File::open("/").unwrap().into()),
        (Kind::Socket, socket.into()),
        (Kind::Pipe, pipe.into()),
        (Kind::PathOnly, open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()),
        (Kind::PathOnly, open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()),
        (Kind::Device, File::open("/dev/zero").unwrap().into()),
        (Kind::Other, rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()),
    ]
}

#[test]
fn each_kind_is_known_by_its_descriptor() {
    for (kind, descriptor) in one_of_each() {
        assert_eq!(Facts::of(&descriptor).unwrap().kind, kind);
    }
}

#[test]
fn sockets_pipes_directories_and_path_only_descriptors_are_refused_as_regions() {
    for (kind, descriptor) in one_of_each() {
        let is_never_memory = matches!(kind, Kind::Socket | Kind::Pipe | Kind::Directory | Kind::PathOnly);
        for result in [check_region(&descriptor).map(drop), Facts::of(&descriptor).unwrap().check_region()] {
            match result {
                Err(FdError::NotARegion { kind: refused }) => assert!(is_never_memory && refused == kind),
                other => assert!(!is_never_memory && other.is_ok(), "{kind}: {other:?}"),
            }
        }
    }
}

#[test]
fn only_memory_with_the_three_seals_and_what_is_no_file_cannot_be_truncated() {
    let (shrink, grow, seal) = (SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL);
    let possible = [SealFlags::empty(), shrink, shrink | grow, shrink | seal, grow | seal].map(|seals| (seals, false));
    for (seals, sealed) in
        [&possible[..], &[(shrink | grow | seal, true), (shrink | grow | seal | SealFlags::FUTURE_WRITE, true)]]
            .concat()
    {
        let file = memfd("sealing", 4096);
        fcntl_add_seals(&file, seals).unwrap();
        let expected = if sealed { Truncation::Impossible } else { Truncation::Possible };
        assert_eq!(check_region(&file).unwrap(), expected, "{seals:?}");
    }
    let unsealable = memfd_create("unsealable", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(check_region(unsealable).unwrap(), Truncation::Possible);
    assert_eq!(check_region(tempfile::tempfile().unwrap()).unwrap(), Truncation::Possible);
    assert_eq!(check_region(File::open("/dev/zero").unwrap()).unwrap(), Truncation::Impossible);
}

#[test]
fn the_size_alone_is_the_one_that_the_facts_tell() {
    for (kind, descriptor) in one_of_each() {
        if kind != Kind::PathOnly {
            assert_eq!(size(&descriptor).unwrap(), Facts::of(&descriptor).unwrap().size, "{kind}");
        }
    }
    assert_eq!(size(memfd("sized", 12288)).unwrap(), Some(12288));
}

#[test]
fn the_refusal_names_the_kind() {
    let (pipe, _) = std::io::pipe().unwrap();
    let message = check_region(&pipe).unwrap_err().to_string();
    assert!(message.starts_with("a pipe cannot be a region; "), "{message}");
}

#[test]
fn a_memfd_tells_its_name_size_and_seals() {
    let file = memfd("kv cache: 1", 3 * 4096);
    let facts = Facts::of(&file).unwrap();
    assert_eq!((facts.name.as_deref(), facts.size), (Some("kv cache: 1"), Some(12288)));
    assert_eq!((facts.seals, facts.access), (Some(Seals::default()), OpenMode::ReadWrite));
    assert_eq!(facts.exporter, None);

    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let seals = Facts::of(&file).unwrap().seals.unwrap();
    assert_eq!(seals, Seals { shrink: true, grow: true, seal: true, ..Seals::default() });
    assert_eq!(seals.to_string(), "shrink, grow, seal");
}

#[test]
fn a_memfd_without_a_name_or_named_like_a_deleted_file_keeps_its_name() {
    for (given, told) in [("", None), ("a (deleted)", Some("a (deleted)")), ("/memfd:b", Some("/memfd:b"))] {
        assert_eq!(Facts::of(memfd(given, 0)).unwrap().name.as_deref(), told);
    }
}

#[test]
fn looking_at_a_file_leaves_its_position_alone() {
    let mut file = memfd("position", 8192);
    file.seek(SeekFrom::Start(77)).unwrap();
    Facts::of(&file).unwrap();
    assert_eq!(file.stream_position().unwrap(), 77);
}

#[test]
fn two_descriptors_of_one_file_have_one_identity() {
    let [one, other] = [memfd("same name", 4096), memfd("same name", 4096)];
    let identity = |descriptor: &File| Facts::of(descriptor).unwrap().identity;
    assert_eq!(identity(&one), identity(&one.try_clone().unwrap()));
    assert_ne!(identity(&one), identity(&other));
}

#[test]
fn the_access_mode_and_close_on_exec_are_read_from_the_descriptor() {
    for (flags, access) in [
        (OFlags::RDONLY, OpenMode::ReadOnly),
        (OFlags::WRONLY, OpenMode::WriteOnly),
        (OFlags::RDWR | OFlags::APPEND, OpenMode::ReadWrite),
        (OFlags::PATH, OpenMode::Neither),
    ] {
        let descriptor = open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let facts = Facts::of(descriptor.as_fd()).unwrap();
        assert_eq!((facts.access, facts.close_on_exec), (access, true));
    }
}
