//! Programs that share no code with this library exchange messages with it.

mod named_memory;

use kvshare::fd::{Facts, Output, Program};
use kvshare::wire::{Limits, receive, send};
use named_memory::memfd;
use passfd::FdPassingExt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Runs a Python program with `socket` as its descriptor 3, and returns what it prints.
fn python(script: &str, socket: &UnixStream) -> String {
    let mut child = Program::new("python3")
        .args(["-c", script])
        .descriptors([socket.as_fd()])
        .stdout(Output::Pipe)
        .spawn()
        .unwrap();
    let mut text = String::new();
    File::from(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
    assert!(child.wait(soon()).unwrap().unwrap().success());
    text
}

#[test]
fn python_sends_us_a_message() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let script = "
import os, socket, struct
peer = socket.socket(fileno=3)
header = b'{\"from\": \"python\"}'
memory = [os.memfd_create('python-%d' % i) for i in range(3)]
for i, descriptor in enumerate(memory):
    os.write(descriptor, b'x' * (i + 1))
socket.send_fds(peer, [struct.pack('<I', len(header)) + header], memory)
";
    python(script, &theirs);
    let message = receive(&ours, &Limits::default(), soon()).unwrap();
    assert_eq!(message.header, b"{\"from\": \"python\"}");
    let facts: Vec<_> = message.descriptors.iter().map(|descriptor| Facts::of(descriptor).unwrap()).collect();
    let seen: Vec<_> = facts.iter().map(|facts| (facts.name.as_deref().unwrap(), facts.size.unwrap())).collect();
    assert_eq!(seen, [("python-0", 1), ("python-1", 2), ("python-2", 3)]);
}

#[test]
fn python_receives_our_message() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = ["for-python-a", "for-python-b"].map(memfd);
    send(&ours, b"{\"to\": \"python\"}", &memory.each_ref().map(AsFd::as_fd), soon()).unwrap();
    let script = "
import os, socket, struct
peer = socket.socket(fileno=3)
text, descriptors, flags, _ = socket.recv_fds(peer, 4096, 8)
length, = struct.unpack('<I', text[:4])
print(length == len(text) - 4, text[4:].decode(), flags & socket.MSG_CTRUNC)
for descriptor in descriptors:
    print(os.readlink('/proc/self/fd/%d' % descriptor))
";
    let expected = "True {\"to\": \"python\"} 0\n/memfd:for-python-a (deleted)\n/memfd:for-python-b (deleted)\n";
    assert_eq!(python(script, &theirs), expected);
}

#[test]
fn python_receives_three_batches() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = memfd("batch");
    send(&ours, b"{\"batches\": 3}", &[memory.as_fd(); 507], soon()).unwrap();
    let script = "
import socket, os
peer = socket.socket(fileno=3)
counts, text = [], b''
while len(text) < 18:
    part, descriptors, flags, _ = socket.recv_fds(peer, 4096, 300)
    counts.append(len(descriptors)); text += part
    for descriptor in descriptors: os.close(descriptor)
print(counts, text[4:].decode())
";
    assert_eq!(python(script, &theirs), "[253, 253, 1] {\"batches\": 3}\n");
}

#[test]
fn passfd_sends_us_a_message() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = memfd("from passfd");
    theirs.send_fd_with_payload(memory.as_raw_fd(), b"\x02\0\0\0{}").unwrap();
    let message = receive(&ours, &Limits::default(), soon()).unwrap();
    assert_eq!(message.header, b"{}");
    assert_eq!(Facts::of(&message.descriptors[0]).unwrap().name.as_deref(), Some("from passfd"));
}

#[test]
fn passfd_receives_our_message() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let memory = memfd("to passfd");
    send(&ours, b"{\"to\":1}", &[memory.as_fd()], soon()).unwrap();
    // It reads four bytes, which are our length.
    let number = theirs.recv_fd().unwrap();
    let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    assert_eq!(link.to_str(), Some("/memfd:to passfd (deleted)"));
    let mut header = [0; 8];
    theirs.read_exact(&mut header).unwrap();
    assert_eq!(&header, b"{\"to\":1}");
}

#[test]
fn a_plain_writer_without_descriptors_is_understood() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"\x02\0\0\0{}").unwrap();
    let message = receive(&ours, &Limits::default(), soon()).unwrap();
    assert_eq!((message.header.as_slice(), message.descriptors.len()), (&b"{}"[..], 0));
}
