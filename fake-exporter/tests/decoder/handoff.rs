//! This process as the proxy that receives a share, and as the provider that writes it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fake_exporter::checker;
use kvshare::fd::Facts;
use kvshare::header::Header;
use kvshare::map::{Access, MapOptions};
use kvshare::rows::MappedCache;
use kvshare::wire::{Limits, Listener, Message, WireError};
use serde_json::{Value, json};

use super::client::{Answer, post};
use super::server::Server;

/// What came of one share.
pub struct Share {
    pub header: Header,
    pub descriptors: Vec<OwnedFd>,
    pub share_id: Value,
}

/// Asks for a share, and returns the answer with what came over the socket within `patience`.
pub fn ask_for_share(server: &Server, patience: Duration) -> (Answer, Result<Message, WireError>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("kvshare-{}.sock", COUNT.fetch_add(1, Ordering::Relaxed));
    let socket = server.directory().join(name);
    let listener = Listener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        let body = json!({"socket": socket}).to_string();
        let answer = scope.spawn(move || post(server.address(), "/slots/0?action=share", &body));
        let deadline = Instant::now() + patience;
        let message = listener.accept(deadline).and_then(|peer| peer.receive(&Limits::default(), deadline));
        (answer.join().unwrap(), message)
    })
}

/// A share that works.
pub fn share(server: &Server) -> Share {
    let (answer, message) = ask_for_share(server, Duration::from_secs(60));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let Message { header, descriptors, .. } = message.unwrap();
    let header = Header::parse(&header).unwrap();
    let sizes: Vec<_> = descriptors.iter().map(|region| Facts::of(region).unwrap().size).collect();
    header.check_descriptors(&sizes).unwrap();
    assert_eq!(answer.json()["id_slot"], 0);
    Share { header, descriptors, share_id: answer.json()["share_id"].clone() }
}

impl Share {
    pub fn map(&self) -> MappedCache {
        let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
        MappedCache::map(&self.header, &self.descriptors, &options).unwrap()
    }

    /// Writes the checker's rows of `tokens`.
    pub fn provide(&self, tokens: &[i32]) {
        checker::write(&mut self.map(), tokens, 0).unwrap();
    }

    pub fn adopt_body(&self, tokens: &[i32]) -> Value {
        json!({"tokens": tokens, "share_id": self.share_id, "leave_one_token": true})
    }
}
