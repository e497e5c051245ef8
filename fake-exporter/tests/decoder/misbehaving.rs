//! Shares that go wrong on request: each is what its name says, and the decoder goes on.

use std::time::Duration;

use kvshare::fd::Facts;
use kvshare::header::{Header, HeaderError};
use kvshare::map::{MapError, MapOptions};
use kvshare::rows::{MappedCache, RowsError};
use kvshare::wire::{Message, WireError};
use serde_json::json;

use super::handoff::ask_for_share;
use super::server::Server;

/// Where a receiver stops that does what it should.
#[derive(Debug)]
enum Stop {
    Wire(WireError),
    Header(HeaderError),
    Map(MapError),
}

fn stop(message: Result<Message, WireError>) -> Option<Stop> {
    let message = match message {
        Ok(message) => message,
        Err(error) => return Some(Stop::Wire(error)),
    };
    let sizes: Vec<_> = message.descriptors.iter().map(|region| Facts::of(region).unwrap().size).collect();
    let header = match Header::parse(&message.header) {
        Ok(header) => header,
        Err(error) => return Some(Stop::Header(error)),
    };
    if let Err(error) = header.check_descriptors(&sizes) {
        return Some(Stop::Header(error));
    }
    match MappedCache::map(&header, &message.descriptors, &MapOptions::default()) {
        Ok(_) => None,
        Err(RowsError::Region { source, .. }) => Some(Stop::Map(source)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_kind_is_refused_for_its_own_reason_and_leaks_nothing() {
    type Expected = fn(&Stop) -> bool;
    let kinds: [(&str, Expected); 12] = [
        ("never-connects", |stop| matches!(stop, Stop::Wire(WireError::NoConnection { .. }))),
        ("stalls", |stop| matches!(stop, Stop::Wire(WireError::Stalled { .. }))),
        ("dies", |stop| matches!(stop, Stop::Wire(WireError::ClosedWithinMessage { .. }))),
        ("huge-length", |stop| matches!(stop, Stop::Wire(WireError::HeaderTooLong { .. }))),
        ("bad-json", |stop| matches!(stop, Stop::Header(HeaderError::NotJson { .. }))),
        ("wrong-hash", |stop| matches!(stop, Stop::Header(HeaderError::HashMismatch { .. }))),
        ("wrong-digest", |stop| matches!(stop, Stop::Header(HeaderError::DigestMismatch { .. }))),
        ("missing-descriptor", |stop| matches!(stop, Stop::Header(HeaderError::NoSuchDescriptor { .. }))),
        ("extra-descriptor", |stop| matches!(stop, Stop::Header(HeaderError::UnusedDescriptor { .. }))),
        ("socket-as-region", |stop| matches!(stop, Stop::Wire(WireError::NotARegion { .. }))),
        ("unsealed", |stop| matches!(stop, Stop::Map(MapError::Unsealed))),
        ("too-small", |stop| matches!(stop, Stop::Header(HeaderError::BeyondDescriptor { .. }))),
    ];
    for (kind, expected) in kinds {
        let server = Server::checker(&["--misbehave", kind]);
        let patience = if ["never-connects", "stalls"].contains(&kind) { 300 } else { 60_000 };
        let (answer, message) = ask_for_share(&server, Duration::from_millis(patience));
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text);
        let stop = stop(message).unwrap_or_else(|| panic!("{kind} was accepted"));
        assert!(expected(&stop), "{kind}: {stop:?}");

        let reply = server.complete(&[1, 2, 3]);
        assert_eq!(reply["timings"]["prompt_n"], json!(3), "{kind}");
        server.assert_no_descriptor_leaked();
    }
}
