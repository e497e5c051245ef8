//! A message there and an answer back, beside a bare sendmsg and recvmsg of as many bytes and descriptors.
//!
//! Both peers are threads of this process, on one core.

mod paired;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kvshare::memory::{Memfd, RegionSource as _, Reserve};
use kvshare::wire::{Limits, receive, send};
use paired::{Way, compare, stay_on_one_core};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// About as long as a header of regions alone.
const HEADER: [u8; 300] = [b' '; 300];
const ANSWER: [u8; 1] = [b'.'];

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The peer of one bench: receives with `receive_one` and answers, until the socket closes.
fn peer(receive_one: impl Fn(&UnixStream) -> bool + Send + 'static) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    std::thread::spawn(move || {
        while receive_one(&theirs) {
            if std::io::Write::write_all(&mut &theirs, &ANSWER).is_err() {
                return;
            }
        }
    });
    ours
}

fn await_answer(socket: &UnixStream) {
    let mut answer = ANSWER;
    std::io::Read::read_exact(&mut &*socket, &mut answer).expect("an answer");
}

fn bare_send(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(descriptors).size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let length = (HEADER.len() as u32).to_le_bytes();
    let sent = sendmsg(socket, &[IoSlice::new(&length), IoSlice::new(&HEADER)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(HEADER.len() + 4));
}

fn bare_receive(socket: &UnixStream) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; HEADER.len() + 4];
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).expect("a message");
    assert!(!received.flags.contains(ReturnFlags::CTRUNC));
    received.bytes > 0
}

fn main() {
    stay_on_one_core();
    for count in [1, 3, 64, 253] {
        let memory: Vec<OwnedFd> = (0..count)
            .map(|_| Memfd::new().reserve(Reserve::OnTouch).allocate("bench", 4096).expect("a memfd").descriptor)
            .collect();
        let descriptors: Vec<BorrowedFd<'_>> = memory.iter().map(|memory| memory.as_fd()).collect();
        let bare = peer(bare_receive);
        let ours = peer(|socket| receive(socket, &Limits::default(), deadline()).is_ok());
        let ways = [
            Way::new("bare sendmsg and recvmsg", || {
                bare_send(&bare, &descriptors);
                await_answer(&bare);
            }),
            Way::new("kvshare", || {
                send(&ours, &HEADER, &descriptors, deadline()).expect("sent");
                await_answer(&ours);
            }),
        ];
        compare(&format!("message with {count} descriptors, there and a byte back"), 10_000, ways);
    }
}
