//! A small HTTP/1.1 client: one request a connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer that was read to its end.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The `data:` of each frame of a stream.
    pub fn frames(&self) -> Vec<&str> {
        assert!(self.head.to_lowercase().contains("content-type: text/event-stream"), "{}", self.head);
        let frames = self.text.strip_suffix("\n\n").expect("the last frame is whole").split("\n\n");
        frames.map(|frame| frame.strip_prefix("data: ").expect("a frame is data")).collect()
    }
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: decoder\r\nConnection: close\r\n\r\n"))
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: decoder\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    exchange(address, &(head + body))
}

fn exchange(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    // A hanging server fails the test instead of the whole run.
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let text = if is_chunked { unchunked(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), text }
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n").expect("a chunk has a length");
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return text;
        }
        text.push_str(&rest[..length]);
        body = &rest[length + 2..];
    }
}
