//! A client as a process of its own, so that it can be killed or stopped while it waits for its answer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitCode, Stdio};

use serde_json::{Value, json};

use crate::serving::chat;

/// The program: asks what the moon is at `address` and prints what comes back, to the end of the connection.
///
/// # Panics
/// Where a test cannot go on.
pub fn run(address: &std::ffi::OsStr) -> ExitCode {
    let address = address.to_str().and_then(|address| address.strip_prefix("http://")).expect("an address");
    let mut body = chat("What is the moon?");
    body["stream"] = json!(true);
    let body = body.to_string();
    let mut connection = TcpStream::connect(address).expect("the server listens");
    // HTTP/1.0: the answer comes in one piece, and ends with the connection.
    let head =
        format!("POST /v1/chat/completions HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    // One that breaks off ends with an error; what came is printed all the same.
    let _ = connection.read_to_end(&mut answer);
    std::io::stdout().write_all(&answer).expect("somebody reads it");
    ExitCode::SUCCESS
}

/// A running client.
#[derive(Debug)]
pub struct Client {
    process: Child,
}

/// What a client has got.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status; none where nothing came.
    pub status: Option<u16>,
    /// The route that the header `x-kvshare-handoff` names.
    pub route: String,
    /// The text, as far as it came.
    pub text: String,
    /// Whether it came to its end.
    pub is_whole: bool,
}

impl Client {
    /// Starts `program client` for the server at `address`.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(program: &str, address: &str) -> Self {
        let mut command = Command::new(program);
        let command = command.args(["client", address]).stdin(Stdio::null()).stdout(Stdio::piped());
        Self { process: command.spawn().expect("a client") }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// What it printed is no HTTP.
    pub fn answer(self) -> Answer {
        let output = self.process.wait_with_output().expect("a client's output");
        Answer::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

impl Answer {
    fn parse(reply: &str) -> Self {
        let Some((head, body)) = reply.split_once("\r\n\r\n") else { return Self::default() };
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let route = lines.find_map(|line| line.strip_prefix("x-kvshare-handoff: ")).unwrap_or_default().to_owned();
        let mut frames = body.lines().filter_map(|line| line.strip_prefix("data: "));
        let values = frames.clone().filter_map(|frame| serde_json::from_str::<Value>(frame).ok());
        let text = values.filter_map(|value| Some(value["choices"][0]["delta"]["content"].as_str()?.to_owned()));
        Self { status, route, text: text.collect(), is_whole: frames.next_back() == Some("[DONE]") }
    }
}
