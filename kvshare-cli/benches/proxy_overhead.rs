//! What `kvshare-cli serve` adds to a request that it does not hand over, beside the same server asked directly.
//!
//! The server answers at once, so that nothing but the way is measured. Every connection is kept alive and asks in turns:
//! the server directly, the proxy without a provider (which relays), and a proxy with a provider and a prompt that cannot
//! be handed over (which queues for the slot, looks at the request, and says why in its log).
//!
//! A second table says how late the tokens of a streamed answer come, by the clock of the server, which is the client's.
//!
//! `cargo bench -p kvshare-cli --bench proxy_overhead -- --json` prints JSON; `--requests N` sets how many requests each
//! way gets.

mod measure;

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use futures_util::{StreamExt as _, stream};
use kvshare_cli::output::table;
use measure::{Listening, is_set, median, number, quantile};
use serde_json::{Value, json};

const REQUESTS: usize = 4000;
/// Requests of each way before those that count.
const WARM_UP: usize = 200;
const CONNECTIONS: [usize; 2] = [1, 16];

/// Two prompts in one request: the proxy forwards that as it came.
const QUESTION: &str = r#"{"prompt": ["Once upon a time", "The moon is"], "n_predict": 8, "temperature": 0}"#;

/// About what a short answer of llama-server's is like.
const ANSWER: &str = r#"{"id":"chatcmpl-x","object":"text_completion","created":1,"model":"m","choices":[{"text":" a ball of rock that goes around the earth.","index":0,"logprobs":null,"finish_reason":"stop"}],"usage":{"completion_tokens":8,"prompt_tokens":5,"total_tokens":13},"timings":{"cache_n":0,"prompt_n":5,"prompt_ms":3.1,"predicted_n":8,"predicted_ms":20.5}}"#;

const PROPS: &str = r#"{"total_slots": 1, "default_generation_settings": {"n_ctx": 4096}}"#;

/// The ways of a request, the direct one first.
const WAYS: [&str; 3] = ["direct", "relayed", "not handed over"];

/// Answers that are streamed, tokens of each, and the time between two.
const STREAMS: usize = 10;
const TOKENS: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// The server, on a thread with a runtime of its own; returns its address.
fn server(started: Instant) -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let json = |text: &'static str| ([("content-type", "application/json")], text);
            let app = axum::Router::new()
                .route("/props", get(move || async move { json(PROPS) }))
                .route("/stream", get(move || async move { streamed(started) }))
                .route("/v1/completions", post(move |_: axum::body::Bytes| async move { json(ANSWER) }));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            sender.send(listener.local_addr().expect("an address").to_string()).expect("it is waited for");
            let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("no delay"));
            axum::serve(listener, app).await
        })
    });
    receiver.recv().expect("an address")
}

/// Tokens that say when they were sent, in microseconds since `started`.
fn streamed(started: Instant) -> ([(&'static str, &'static str); 1], Body) {
    let tokens = stream::iter(0..TOKENS).then(move |_| async move {
        tokio::time::sleep(PAUSE).await;
        Ok::<_, std::io::Error>(format!("data: {}\n\n", started.elapsed().as_micros()))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(tokens))
}

/// How late each token of an answer from `address` is, in microseconds.
fn lateness(address: &str, started: Instant) -> Vec<f64> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET /stream HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("sent");
    let (mut times, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let read = stream.read(&mut buffer).expect("a piece of the answer");
        let now = started.elapsed().as_micros() as f64;
        if read == 0 {
            return times;
        }
        let text = String::from_utf8_lossy(&buffer[..read]);
        let sent = text.lines().filter_map(|line| line.strip_prefix("data: ")?.parse::<f64>().ok());
        times.extend(sent.map(|sent| now - sent));
    }
}

/// A kept-alive connection that asks and waits.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            QUESTION.len()
        );
        Self { stream, request: (head + QUESTION).into_bytes(), buffer: vec![0; 1 << 16] }
    }

    /// One request; how long it took, in microseconds.
    fn ask(&mut self) -> f64 {
        let started = Instant::now();
        self.stream.write_all(&self.request).expect("sent");
        let mut read = 0;
        while !is_whole(&self.buffer[..read]) {
            let more = self.stream.read(&mut self.buffer[read..]).expect("an answer");
            assert!(more > 0, "the connection stays open");
            read += more;
        }
        let took = started.elapsed();
        assert!(self.buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.buffer[..read]));
        took.as_secs_f64() * 1e6
    }
}

/// Whether the answer's body has come to its end: the answer is one JSON object, whole or as chunks.
fn is_whole(answer: &[u8]) -> bool {
    let end = ANSWER.as_bytes();
    let chunks = [end, b"\r\n0\r\n\r\n"].concat();
    answer.ends_with(end) && !answer.windows(7).any(|part| part == b"chunked") || answer.ends_with(&chunks)
}

/// The times of each way, over as many connections at once.
fn measure(addresses: &[String; 3], connections: usize, requests: usize) -> [Vec<f64>; 3] {
    let ask = || {
        let mut clients = addresses.each_ref().map(|address| Client::connect(address));
        let mut times: [Vec<f64>; 3] = Default::default();
        for round in 0..WARM_UP / connections + requests / connections {
            for step in 0..WAYS.len() {
                let way = (step + round) % WAYS.len();
                let took = clients[way].ask();
                if round >= WARM_UP / connections {
                    times[way].push(took);
                }
            }
        }
        times
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(ask)).collect();
        let mut all: [Vec<f64>; 3] = Default::default();
        for thread in threads {
            for (all, times) in all.iter_mut().zip(thread.join().expect("asked")) {
                all.extend(times);
            }
        }
        all
    })
}

/// Times of one way, in microseconds.
fn row(connections: usize, way: &str, times: &[f64], direct: &[f64]) -> Value {
    let added = |at| quantile(times, at) - quantile(direct, at);
    json!({
        "connections": connections, "way": way, "count": times.len(),
        "p50_us": median(times), "p99_us": quantile(times, 0.99),
        "added_p50_us": added(0.5), "added_p99_us": added(0.99),
        "ratio_p50": median(times) / median(direct),
    })
}

fn print_table(title: &str, rows: &[Value]) {
    let titles = ["connections", "way", "count", "p50", "p99", "added p50", "added p99", "ratio p50"];
    let mut table = table(&titles, &[0, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        let us = |name: &str| format!("{:.0} µs", row[name].as_f64().unwrap_or_default());
        table.add_row([
            row["connections"].to_string(),
            row["way"].as_str().unwrap_or_default().to_owned(),
            row["count"].to_string(),
            us("p50_us"),
            us("p99_us"),
            us("added_p50_us"),
            us("added_p99_us"),
            format!("{:.2}", row["ratio_p50"].as_f64().unwrap_or_default()),
        ]);
    }
    println!("{title}\n{table}\n");
}

fn main() {
    let requests = number("--requests", REQUESTS);
    let only_ours = Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().permissions(only_ours).tempdir().expect("a directory");
    let model = directory.path().join("model.gguf");
    std::fs::write(&model, "not read").expect("a file");
    let [model, directory_path] = [&model, directory.path()].map(|path| path.display().to_string());
    let started = Instant::now();
    let backend = server(started);
    let url = format!("http://{backend}");
    let serve =
        ["serve", "-m", &model, "--port", "0", "--backend-url", &url, "--slot-dir", &directory_path].map(str::to_owned);
    let relaying = Listening::start(&serve);
    let provider = ["--prefill-provider".to_owned(), "/bin/false".to_owned()];
    let handing_over = Listening::start(serve.iter().chain(&provider));
    let addresses = [backend, relaying.address.clone(), handing_over.address.clone()];

    let mut answers = Vec::new();
    for connections in CONNECTIONS {
        let times = measure(&addresses, connections, requests);
        answers.extend(WAYS.iter().zip(&times).map(|(way, of_way)| row(connections, way, of_way, &times[0])));
    }
    let mut late: [Vec<f64>; 2] = Default::default();
    for _ in 0..STREAMS {
        for (late, address) in late.iter_mut().zip(&addresses) {
            late.extend(lateness(address, started));
        }
    }
    let tokens: Vec<Value> = WAYS.iter().zip(&late).map(|(way, of_way)| row(1, way, of_way, &late[0])).collect();
    if is_set("--json") {
        println!("{:#}", json!({"answers": answers, "streamed_tokens": tokens}));
        return;
    }
    print_table("a request and its answer, each way in turns", &answers);
    print_table("how late a streamed token is", &tokens);
}
