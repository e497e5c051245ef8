//! Memory that the CPU cannot map reaches the provider as it is, and only a provider that maps it is told.
//!
//! A CUDA allocation's descriptor is a character device without a size; `/dev/zero` stands in for it.

use std::fs::{File, Permissions};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvshare::fd::{Facts, Kind};
use kvshare::handoff::{Cancel, Destination, Ending, ProviderFailure, ProviderProgram, ReceivedShare, ShareDesk};
use kvshare::header::{Header, Params};
use kvshare::layout::{Geometry, TensorType};
use kvshare::wire::connect;

/// A model of 8 layers whose rows have 64 channels.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");

/// The example `provider`, which maps its regions. It lies beside the directory of the test programs.
fn provider() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("../examples/provider");
    assert!(path.exists(), "{} is missing; build it: cargo build -p kvshare --examples", path.display());
    path
}

fn share(memory: &OwnedFd, directory: &Path) -> ReceivedShare {
    let layout = Geometry::uniform(8, 64, 64, 64, TensorType::F16).layout().unwrap();
    let header = Header::describe(&layout, None, Some(Params::plain(64, TensorType::F16))).to_json();
    let desk = ShareDesk::open(directory).unwrap();
    let path = desk.path().to_owned();
    let soon = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(|| connect(&path, soon).unwrap().send(&header, &[memory.as_fd()], soon).unwrap());
        desk.receive(soon, Duration::from_secs(60), &Cancel::new().unwrap()).unwrap()
    })
}

#[test]
fn it_is_handed_on_untouched_and_a_provider_that_maps_it_says_why_it_cannot() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    let memory = OwnedFd::from(File::options().read(true).write(true).open("/dev/zero").unwrap());
    let share = share(&memory, directory.path());
    let (sent, received) = (Facts::of(&memory).unwrap(), Facts::of(&share.descriptors[0]).unwrap());
    assert_eq!((received.kind, received.size, received.identity), (Kind::Device, None, sent.identity));

    let mut log = Vec::new();
    let mut keep = |line: &str| log.push(line.to_owned());
    let program = ProviderProgram::new(provider(), MODEL);
    let failure = program.run(&[1, 2], Destination::Shared(&share), directory.path(), None, &mut keep).unwrap_err();
    assert!(matches!(failure, ProviderFailure::Failed { ending: Ending::Exit(1), .. }), "{failure}");
    let words = "this memory cannot be mapped by the CPU; it can still be passed on";
    assert!(log.len() == 1 && log[0].contains(words), "{log:?}");
}
