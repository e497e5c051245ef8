//! A peer that sends any bytes with any descriptors in any pieces: what it sent arrives, or an error; nothing leaks.
#![no_main]

use std::io::{IoSlice, pipe};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use kvshare::wire::{Limits, receive};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

#[derive(Arbitrary, Debug)]
enum Descriptor {
    Sealed,
    Unsealed,
    Directory,
    Pipe,
    Socket,
    PathOnly,
}

#[derive(Arbitrary, Debug)]
struct Step {
    bytes: Vec<u8>,
    descriptors: Vec<Descriptor>,
}

#[derive(Arbitrary, Debug)]
struct Script {
    /// The true length of all that follows the length, instead of what the first bytes happen to say.
    is_framed: bool,
    steps: Vec<Step>,
    then_closes: bool,
    most_descriptors: u8,
}

/// Small enough for a socket's buffer, so that one thread can play both sides.
const MOST_BYTES: usize = 16 << 10;

fn descriptor(kind: &Descriptor) -> OwnedFd {
    let memfd = |seals| {
        let memfd = memfd_create("kvshare-fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&memfd, 4096).expect("its size");
        fcntl_add_seals(&memfd, seals).expect("its seals");
        memfd
    };
    match kind {
        Descriptor::Sealed => memfd(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
        Descriptor::Unsealed => memfd(SealFlags::empty()),
        Descriptor::Directory => open("/", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("the root"),
        Descriptor::Pipe => pipe().expect("a pipe").0.into(),
        Descriptor::Socket => stream_pair().0,
        Descriptor::PathOnly => open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("the root"),
    }
}

fn stream_pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("two sockets")
}

/// The lowest number that is free: it rises when a descriptor stays open.
fn lowest_free() -> i32 {
    open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("a descriptor").as_raw_fd()
}

fuzz_target!(|script: Script| {
    let before = lowest_free();
    play(&script);
    assert_eq!(lowest_free(), before, "a descriptor leaked");
});

fn play(script: &Script) {
    let (ours, theirs) = stream_pair();
    let mut sent = Vec::new();
    let mut descriptors_sent = 0;
    let length: usize = script.steps.iter().map(|step| step.bytes.len()).sum();
    let length_bytes = script.is_framed.then(|| (length as u32).to_le_bytes().to_vec());
    let mut pieces: Vec<(Vec<u8>, &[Descriptor])> =
        script.steps.iter().map(|step| (step.bytes.clone(), &step.descriptors[..])).collect();
    if let (Some(length), Some((first, _))) = (length_bytes, pieces.first_mut()) {
        first.splice(0..0, length);
    }
    for (bytes, kinds) in pieces {
        if bytes.is_empty() || sent.len() + bytes.len() > MOST_BYTES {
            break;
        }
        let descriptors: Vec<OwnedFd> = kinds.iter().take(16).map(descriptor).collect();
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&borrowed));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&theirs, &[IoSlice::new(&bytes)], &mut control, flags) {
            Ok(count) => sent.extend_from_slice(&bytes[..count]),
            Err(_) => break,
        }
        descriptors_sent += descriptors.len();
    }
    let peer = (!script.then_closes).then_some(theirs);

    let limits = Limits { max_header: 8 << 10, max_descriptors: usize::from(script.most_descriptors) };
    let deadline = Instant::now() + Duration::from_millis(1);
    match receive(&ours, &limits, deadline) {
        Ok(message) => {
            let announced = u32::from_le_bytes(sent[..4].try_into().expect("four bytes")) as usize;
            assert_eq!(message.header, sent[4..4 + announced]);
            assert!(message.descriptors.len() <= descriptors_sent.min(limits.max_descriptors));
        }
        Err(error) => assert!(error.to_string().len() < 1024),
    }
    drop(peer);
}
