//! A message arrives as it was sent, however the bytes are cut up on the way, and nothing after it is touched.

mod named_memory;
mod raw_send;

use kvshare::fd::Facts;
use kvshare::wire::{Limits, Message, WireError, receive, send};
use named_memory::memfd;
use proptest::prelude::*;
use raw_send::send_raw;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn received(socket: &UnixStream) -> Result<Message, WireError> {
    receive(socket, &Limits::default(), soon())
}

fn names(descriptors: &[OwnedFd]) -> Vec<String> {
    descriptors.iter().map(|descriptor| Facts::of(descriptor).unwrap().name.unwrap()).collect()
}

fn message_bytes(header: &[u8]) -> Vec<u8> {
    [&(header.len() as u32).to_le_bytes(), header].concat()
}

#[test]
fn a_message_cut_at_any_byte_arrives_whole() {
    let header = br#"{"version":1,"regions":[]}"#;
    let bytes = message_bytes(header);
    let memory = [memfd("cut-a"), memfd("cut-b")];
    for cut in 1..bytes.len() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_raw(&ours, &bytes[..cut], &memory.each_ref().map(AsFd::as_fd));
        send_raw(&ours, &bytes[cut..], &[]);
        let message = received(&theirs).unwrap();
        assert_eq!(message.header, header, "cut at {cut}");
        assert_eq!(names(&message.descriptors), ["cut-a", "cut-b"], "cut at {cut}");
    }
}

#[test]
fn a_message_that_trickles_in_byte_by_byte_arrives_whole() {
    let bytes = message_bytes(b"{\"slow\":true}");
    let memory = memfd("trickle");
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (index, byte) in bytes.iter().enumerate() {
                let descriptors = if index == 0 { vec![memory.as_fd()] } else { vec![] };
                send_raw(&ours, &[*byte], &descriptors);
                std::thread::yield_now();
            }
        });
        let message = received(&theirs).unwrap();
        assert_eq!((message.header.as_slice(), message.descriptors.len()), (&bytes[4..], 1));
    });
}

#[test]
fn descriptors_spread_over_the_bytes_of_a_message_arrive_in_order() {
    let bytes = message_bytes(b"{}");
    let memory = ["s0", "s1", "s2", "s3", "s4", "s5"].map(memfd);
    let (ours, theirs) = UnixStream::pair().unwrap();
    for (byte, descriptor) in bytes.iter().zip(&memory) {
        send_raw(&ours, &[*byte], &[descriptor.as_fd()]);
    }
    assert_eq!(names(&received(&theirs).unwrap().descriptors), ["s0", "s1", "s2", "s3", "s4", "s5"]);
}

#[test]
fn any_number_of_descriptors_crosses_in_order() {
    let [zero, one] = ["bit-0", "bit-1"].map(memfd);
    // A sequence that differs from itself shifted, reversed or with a part left out.
    let bit = |index: usize| (index * index / 7 + index).is_multiple_of(3);
    for count in [0, 1, 2, 252, 253, 254, 505, 506, 507] {
        let descriptors: Vec<_> = (0..count).map(|index| if bit(index) { one.as_fd() } else { zero.as_fd() }).collect();
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, b"{\"many\":1}", &descriptors, soon()).unwrap();
        let message = received(&theirs).unwrap();
        let expected: Vec<_> = (0..count).map(|index| if bit(index) { "bit-1" } else { "bit-0" }).collect();
        assert_eq!(names(&message.descriptors), expected, "{count} descriptors");
        assert_eq!(message.header, b"{\"many\":1}");
    }
}

#[test]
fn every_descriptor_that_arrives_closes_on_exec() {
    let memory = memfd("close on exec");
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&ours, b"{}", &[memory.as_fd(); 260], soon()).unwrap();
    let message = received(&theirs).unwrap();
    assert_eq!(message.descriptors.len(), 260);
    assert!(message.descriptors.iter().all(|descriptor| Facts::of(descriptor).unwrap().close_on_exec));
}

#[test]
fn of_two_messages_back_to_back_the_first_receive_leaves_the_second_whole() {
    let [first, second] = ["first", "second"].map(memfd);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    send(&ours, b"{\"n\":1}", &[first.as_fd()], soon()).unwrap();
    send(&ours, b"{\"n\":2}", &[second.as_fd(), first.as_fd()], soon()).unwrap();
    ours.write_all(b"after").unwrap();

    let message = received(&theirs).unwrap();
    assert_eq!((message.header.as_slice(), names(&message.descriptors)), (&b"{\"n\":1}"[..], vec!["first".into()]));
    let message = received(&theirs).unwrap();
    assert_eq!(message.header, b"{\"n\":2}");
    assert_eq!(names(&message.descriptors), ["second", "first"]);
    let mut after = [0; 5];
    theirs.read_exact(&mut after).unwrap();
    assert_eq!(&after, b"after");
}

#[test]
fn two_messages_without_descriptors_in_one_write_stay_two() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(&[message_bytes(b"{\"n\":1}"), message_bytes(b"{\"n\":22}")].concat()).unwrap();
    assert_eq!(received(&theirs).unwrap().header, b"{\"n\":1}");
    assert_eq!(received(&theirs).unwrap().header, b"{\"n\":22}");
}

#[test]
fn a_header_larger_than_the_socket_holds_crosses_on_blocking_and_non_blocking_sockets() {
    let header: Vec<u8> = (0..1_u32 << 20).map(|index| ((index * 31) >> 5) as u8).collect();
    let memory = memfd("large");
    for non_blocking in [false, true] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(non_blocking).unwrap();
        theirs.set_nonblocking(non_blocking).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| send(&ours, &header, &[memory.as_fd(); 300], soon()).unwrap());
            let message = received(&theirs).unwrap();
            assert!(message.header == header);
            assert_eq!(message.descriptors.len(), 300);
        });
    }
}

proptest! {
    #[test]
    fn whatever_is_sent_arrives_the_same(
        header in prop::collection::vec(any::<u8>(), 1..5000),
        pattern in prop::collection::vec(any::<bool>(), 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let [no, yes] = ["no", "yes"].map(memfd);
        let descriptors: Vec<_> = pattern.iter().map(|&bit| if bit { yes.as_fd() } else { no.as_fd() }).collect();
        let bytes = message_bytes(&header);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let (ours, theirs) = UnixStream::pair().unwrap();
        for (index, part) in cuts.windows(2).enumerate() {
            send_raw(&ours, &bytes[part[0]..part[1]], if index == 0 { &descriptors } else { &[] });
        }
        let message = received(&theirs).unwrap();
        prop_assert_eq!(message.header, header);
        let expected: Vec<_> = pattern.iter().map(|&bit| if bit { "yes" } else { "no" }).collect();
        prop_assert_eq!(names(&message.descriptors), expected);
    }

    #[test]
    fn no_bytes_of_a_peer_do_more_than_fail(bytes in prop::collection::vec(any::<u8>(), 0..300), small in any::<bool>()) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut bytes = bytes;
        if small && bytes.len() > 3 {
            // A length that can be true: random ones almost never are.
            bytes[1..4].fill(0);
        }
        ours.write_all(&bytes).unwrap();
        drop(ours);
        match received(&theirs) {
            Ok(message) => prop_assert_eq!(&message_bytes(&message.header), &bytes[..message.header.len() + 4]),
            Err(WireError::ClosedBeforeMessage) => prop_assert!(bytes.is_empty()),
            Err(WireError::ClosedWithinMessage { done, .. }) => prop_assert_eq!(done, bytes.len()),
            Err(WireError::EmptyHeader) => prop_assert_eq!(&bytes[..4], &[0; 4]),
            Err(WireError::HeaderTooLong { announced, limit }) => prop_assert!(announced > limit),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
