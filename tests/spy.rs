//! A backend that remembers what it was asked, and answers as a llama-server would, without a model.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use kvshare::header::Header;
use kvshare::layout::{Geometry, TensorType};
use kvshare::memory::Memfd;
use kvshare::rows::allocate;
use kvshare::wire::connect;
use serde_json::{Value, json};

/// The number of every share of a spy's: larger than a double holds exactly.
pub const SHARE_ID: u64 = (1 << 63) + 1;

/// How long sending a share may take.
const SHARE_LIMIT: Duration = Duration::from_secs(60);

/// A request as it reached the backend.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Method, path and query.
    pub line: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Seen {
    /// The body as JSON, or null.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// How the spy answers.
#[derive(Clone, Debug)]
pub struct Manner {
    /// The prompt tokens that completions claim to have evaluated.
    pub evaluated: u64,
    /// The tokens that a restore claims to have read, instead of all.
    pub restored: Option<u64>,
    /// How many slots there are.
    pub slots: u64,
    /// Whether it shares a cache, a small one of its own, and adopts.
    pub shares: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { evaluated: 1, restored: None, slots: 1, shares: false }
    }
}

/// The backend.
pub struct Spy {
    /// Its address.
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    // Ends it when dropped.
    _runtime: tokio::runtime::Runtime,
}

struct Desk {
    manner: Manner,
    slots: PathBuf,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Spy {
    /// Starts it. `slots` is the slot directory.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn start(slots: &Path, manner: Manner) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, seen) = (runtime.expect("a runtime"), Arc::default());
        let desk = Arc::new(Desk { manner, slots: slots.to_owned(), seen: Arc::clone(&seen) });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let app = Router::new().fallback(answer).with_state(desk);
        runtime.spawn(axum::serve(listener, app).into_future());
        Self { url, seen, _runtime: runtime }
    }

    /// What it was asked since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn answer(State(desk): State<Arc<Desk>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let line = format!("{method} {uri}");
    let seen = Seen { line: line.clone(), headers, body };
    let asked = seen.json();
    desk.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    let manner = &desk.manner;
    let timings = json!({"cache_n": 5, "prompt_n": manner.evaluated});
    match line.as_str() {
        "GET /health" => json_of(&json!({"status": "ok"})),
        "GET /props" => json_of(&json!({"total_slots": manner.slots, "default_generation_settings": {"n_ctx": 64}})),
        "POST /apply-template" => json_of(&json!({"prompt": "a prompt"})),
        "POST /tokenize" => json_of(&json!({"tokens": tokens(asked["content"].as_str().unwrap_or_default())})),
        "POST /slots/0?action=restore" => {
            let name = asked["filename"].as_str().unwrap_or_default();
            let whole = std::fs::metadata(desk.slots.join(name)).is_ok();
            let restored = manner.restored.unwrap_or(if whole { 5 } else { 0 });
            json_of(&json!({"id_slot": 0, "n_restored": restored}))
        }
        "POST /slots/0?action=share" if manner.shares => {
            let socket = PathBuf::from(asked["socket"].as_str().unwrap_or_default());
            let shared = tokio::task::spawn_blocking(move || share(&socket)).await;
            shared.expect("a share is sent");
            json_of(&json!({"id_slot": 0, "share_id": SHARE_ID}))
        }
        "POST /slots/0?action=adopt" if manner.shares => json_of(&json!({"id_slot": 0})),
        "POST /slots/0?action=erase" => json_of(&json!({"id_slot": 0, "n_erased": 0})),
        "POST /v1/chat/completions" | "POST /v1/completions" if asked["stream"] == true => {
            let frames = format!("data: {{\"a\":1}}\n\ndata: {}\n\ndata: [DONE]\n\n", json!({"timings": timings}));
            ([(header::CONTENT_TYPE, "text/event-stream")], frames).into_response()
        }
        "POST /v1/chat/completions" | "POST /v1/completions" => {
            json_of(&json!({"choices": [{"message": {"content": "an answer"}}], "timings": timings}))
        }
        _ => (StatusCode::IM_A_TEAPOT, [("x-backend", "spy"), ("connection", "x-backend-only")], line).into_response(),
    }
}

/// Sends a cache to `socket`, and keeps nothing of it.
fn share(socket: &Path) {
    let layout = Geometry::uniform(1, 4, 4, 64, TensorType::F16).layout().expect("a layout");
    let header = Header::describe(&layout, None, None);
    let descriptors = allocate(&header, &Memfd::new(), "spy-cache").expect("memory");
    let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    let deadline = Instant::now() + SHARE_LIMIT;
    let connection = connect(socket, deadline).expect("somebody listens");
    connection.send(&header.to_json(), &borrowed, deadline).expect("it is sent");
}

/// One token a byte of the text, six at most.
fn tokens(text: &str) -> Vec<u32> {
    (300..).take(text.len().min(6)).collect()
}

fn json_of(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], value.to_string()).into_response()
}
