//! A decoder that fails on request: `fake-exporter`, with somebody in front of it who meddles with one call.
//!
//! A test says what is to go wrong by a file, [`FAULT`]; the call that it names takes the file away, so that the next one
//! goes well. Where the test has to wait for that, the meddler leaves a file [`REACHED`].

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use kvshare::wire::{Limits, Listener};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

use crate::hostile_peer::{Act, perform};

/// What goes wrong: a part of the call's path and query, a space, and a [`Fault`]'s name.
pub const FAULT: &str = "fault";
/// There once a call stalls or was answered in part.
pub const REACHED: &str = "reached";
/// There once the test has seen what came of the part, or wants a held call to go on.
pub const SEEN: &str = "seen";
/// There once a held call has been answered, whether or not anybody took the answer.
pub const PASSED: &str = "passed";

/// Memory that no program maps as a region: a device without a size, as a CUDA allocation's descriptor is.
pub const DEVICE_MEMORY: &str = "/dev/zero";

/// What can go wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 409, and the decoder knows nothing of it.
    Refuse,
    /// No answer, and the decoder knows nothing of it.
    Stall,
    /// The decoder dies before it does anything.
    Die,
    /// The decoder dies once it has done everything but answer.
    DieDone,
    /// The answer stalls after its first piece.
    StallMidway,
    /// The answer breaks off after its first piece.
    BreakMidway,
    /// The decoder dies after the first piece of its answer.
    DieMidway,
    /// Nothing, but the decoder hears of the call only once there is a file [`SEEN`].
    Hold,
    /// Nothing, but the answer stands still after its first piece until there is that file.
    HoldMidway,
    /// Nothing, but half of a share's message arrives, with its descriptors, and the rest once there is that file.
    HoldMessage,
    /// Nothing, but a share's message arrives with memory that the CPU cannot map, as a GPU's is.
    OfADevice,
}

const FAULTS: [(&str, Fault); 11] = [
    ("refuse", Fault::Refuse),
    ("stall", Fault::Stall),
    ("die", Fault::Die),
    ("die-done", Fault::DieDone),
    ("stall-midway", Fault::StallMidway),
    ("break-midway", Fault::BreakMidway),
    ("die-midway", Fault::DieMidway),
    ("hold", Fault::Hold),
    ("hold-midway", Fault::HoldMidway),
    ("hold-message", Fault::HoldMessage),
    ("of-a-device", Fault::OfADevice),
];

/// The decoder, and where its faults come from.
struct Meddler {
    directory: PathBuf,
    decoder: String,
    http: reqwest::Client,
}

/// The program: the directory of the faults, then `fake-exporter`'s arguments with `--port`.
///
/// # Panics
/// Where a test cannot go on.
pub fn run(mut arguments: Vec<OsString>) -> ExitCode {
    let directory = PathBuf::from(arguments.remove(0));
    let port = arguments.iter().position(|argument| argument == "--port").expect("a port") + 1;
    let outer = arguments[port].to_str().expect("a number").parse::<u16>().expect("a number");
    let inner = free_port();
    arguments[port] = inner.to_string().into();
    let program = ["kvshare-cli", "fake-exporter"].map(Into::into).into_iter();
    let decoder = std::thread::spawn(move || kvshare_cli::command_line::run(program.chain(arguments)));
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let meddler = Meddler { directory, decoder: format!("http://127.0.0.1:{inner}"), http };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", outer))).expect("a port");
    let app = Router::new().fallback(answer).with_state(Arc::new(meddler));
    runtime.spawn(axum::serve(listener, app).into_future());
    // It ends by a signal, and we with it.
    decoder.join().expect("a decoder that does not panic")
}

/// The headers of a call whose body may be another than came.
fn without_length(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(header::CONTENT_LENGTH);
    headers
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

async fn answer(
    State(meddler): State<Arc<Meddler>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    mut body: Bytes,
) -> Response {
    let fault = meddler.takes(&uri.to_string());
    match fault {
        Some(Fault::Refuse) => {
            let body = json!({"error": {"code": 409, "message": "somebody meddled", "type": "conflict_error"}});
            return (StatusCode::CONFLICT, body.to_string()).into_response();
        }
        Some(Fault::Stall) => meddler.stall().await,
        Some(Fault::Die) => die(),
        Some(Fault::Hold) => meddler.hold().await,
        Some(fault @ (Fault::HoldMessage | Fault::OfADevice)) => body = meddler.between(&body, fault),
        _ => {}
    }
    let headers = without_length(headers);
    let call = meddler.http.request(method, format!("{}{uri}", meddler.decoder)).headers(headers).body(body);
    // The decoder still loads its model.
    let Ok(answer) = call.send().await else { return StatusCode::BAD_GATEWAY.into_response() };
    let (status, content_type) = (answer.status(), answer.headers().get(header::CONTENT_TYPE).cloned());
    let body = match fault {
        Some(Fault::DieDone) => {
            let _ = answer.bytes().await;
            die()
        }
        Some(Fault::Hold | Fault::HoldMessage | Fault::OfADevice) => {
            let whole = answer.bytes().await.expect("a decoder that answers");
            meddler.mark(PASSED);
            Body::from(whole)
        }
        Some(midway) => meddler.part_of(answer, midway).await,
        None => Body::from_stream(answer.bytes_stream()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().extend(content_type.map(|value| (header::CONTENT_TYPE, value)));
    response
}

/// Not by abort(3), which leaves a core file.
fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    unreachable!("nobody survives SIGKILL")
}

impl Meddler {
    /// What is to go wrong with a call; the fault is used up then.
    fn takes(&self, target: &str) -> Option<Fault> {
        let path = self.directory.join(FAULT);
        let text = std::fs::read_to_string(&path).ok()?;
        let (part, name) = text.split_once(' ')?;
        if !target.contains(part) {
            return None;
        }
        std::fs::remove_file(path).ok()?;
        Some(FAULTS.iter().find(|(known, _)| *known == name).expect("a known fault").1)
    }

    async fn stall(&self) {
        self.mark(REACHED);
        std::future::pending().await
    }

    async fn hold(&self) {
        self.mark(REACHED);
        self.wait_for(SEEN).await;
    }

    /// Goes between a share's decoder and the socket it is to send to; returns what the decoder is asked instead.
    fn between(self: &Arc<Self>, asked: &[u8], fault: Fault) -> Bytes {
        let asked: Value = serde_json::from_slice(asked).expect("a body of JSON");
        let proxy = PathBuf::from(asked["socket"].as_str().expect("a socket"));
        let ours = proxy.with_file_name("meddler.sock");
        let listener = Listener::bind(&ours).expect("a socket");
        let meddler = Arc::clone(self);
        std::thread::spawn(move || {
            let deadline = || Instant::now() + Duration::from_secs(60);
            let connection = listener.accept(deadline()).expect("the decoder connects");
            let message = connection.receive(&Limits::default(), deadline()).expect("a message");
            drop((connection, listener));
            let length = u32::try_from(message.header.len()).expect("a short header").to_le_bytes();
            let framed = [&length[..], &message.header].concat();
            let (first, rest) = framed.split_at(framed.len() / 2);
            let device = File::options().read(true).write(true).open(DEVICE_MEMORY).expect("every machine has it");
            let descriptor = |own| if fault == Fault::OfADevice { device.as_fd() } else { AsFd::as_fd(own) };
            let descriptors: Vec<_> = message.descriptors.iter().map(descriptor).collect();
            let [reached, seen] = [REACHED, SEEN].map(|name| meddler.directory.join(name));
            let held = [Act::SendWith(first, &descriptors), Act::Mark(&reached), Act::WaitFor(&seen), Act::Send(rest)];
            let at_once = [Act::SendWith(&framed, &descriptors)];
            let script = if fault == Fault::HoldMessage { &held[..] } else { &at_once };
            // A proxy that has gone meanwhile is what a test is about.
            if let Ok(peer) = UnixStream::connect(proxy) {
                let _ = perform(peer, script);
            }
        });
        json!({"socket": ours}).to_string().into()
    }

    fn mark(&self, name: &str) {
        std::fs::write(self.directory.join(name), "").expect("a file");
    }

    /// The first piece of an answer, and then what `midway` says.
    async fn part_of(self: &Arc<Self>, mut answer: reqwest::Response, midway: Fault) -> Body {
        let first = answer.chunk().await.expect("a decoder that answers").expect("a piece");
        let meddler = Arc::clone(self);
        let end = async move {
            meddler.mark(REACHED);
            if midway == Fault::StallMidway {
                std::future::pending::<()>().await;
            }
            meddler.wait_for(SEEN).await;
            match midway {
                Fault::DieMidway => die(),
                Fault::HoldMidway => {
                    let rest = answer.bytes().await.map_err(std::io::Error::other);
                    meddler.mark(PASSED);
                    rest
                }
                _ => Err(std::io::Error::other("somebody meddled")),
            }
        };
        Body::from_stream(stream::iter([Ok(first)]).chain(stream::once(end)))
    }

    async fn wait_for(&self, name: &str) {
        let path = self.directory.join(name);
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
