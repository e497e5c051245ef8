//! The server: which requests are handed over, which wait for the slot, and which just pass.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kvshare::handoff::{Report, RouteTimes};
use serde_json::json;
use tokio::sync::watch;

use super::api_error::ApiError;
use super::backend::{Backend, BackendState};
use super::handoff::{HandedOver, Handoffs, NotHandedOver};
use super::log::{Event, LogFormat};
use super::metrics::{Metrics, Outcome, Route, Stage};
use super::prompt::{Ask, Endpoint};
use super::relay::{Answer, Call, NoAnswer};
use super::slot::{Slot, SlotBusy, Turn};
use super::timings::{StreamReader, evaluated_in};

/// How long a request waits for a backend that is being started again.
const RESTART_LIMIT: Duration = Duration::from_secs(30);

/// How long the backend may take to say how it is.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// The longest reply that is held back for its last bytes, which say how many tokens were evaluated.
const MAX_HELD_REPLY: usize = 32 << 20;

const HANDOFF_HEADER: HeaderName = HeaderName::from_static("x-kvshare-handoff");

/// What all requests share.
#[derive(Debug)]
pub struct Proxy {
    /// The backend.
    pub backend: Backend,
    /// How it is called.
    pub http: reqwest::Client,
    /// Handoffs, if there is a provider.
    pub handoffs: Option<Handoffs>,
    /// The slot that they need.
    pub slot: Slot,
    /// How long the slot is waited for.
    pub timeout: Duration,
    /// The most bytes of a request.
    pub max_body: usize,
    /// The key that clients must send.
    pub api_key: Option<String>,
    /// Where it is said what happens.
    pub log: LogFormat,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
    /// Whether the server is ending.
    pub stopping: watch::Sender<bool>,
}

/// The paths of the server.
pub fn router(proxy: Arc<Proxy>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(relay)
        .with_state(proxy)
}

async fn health(State(proxy): State<Arc<Proxy>>) -> Response {
    let backend = match proxy.backend.state() {
        BackendState::Up => proxy.backend_health().await,
        BackendState::Starting => Err("starting".to_owned()),
        BackendState::Down(reason) | BackendState::Stopped(reason) => Err(reason),
    };
    let (status, ours) = match &backend {
        Ok(_) => (StatusCode::OK, "ok"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "waiting for the backend"),
    };
    let (Ok(words) | Err(words)) = backend;
    let body = json!({"status": ours, "backend": {"status": words}, "waiting": proxy.slot.waiting()});
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(proxy): State<Arc<Proxy>>, headers: HeaderMap) -> Result<Response, ApiError> {
    proxy.check_key(&headers)?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], proxy.metrics.text(proxy.slot.waiting())).into_response())
}

async fn relay(State(proxy): State<Arc<Proxy>>, request: Request) -> Result<Response, ApiError> {
    if !is_public(request.method(), request.uri().path()) {
        proxy.check_key(request.headers())?;
    }
    let endpoint = Endpoint::at(request.uri().path());
    let call = proxy.read(request).await?;
    proxy.backend.is_up(RESTART_LIMIT).await.map_err(ApiError::unavailable)?;
    match (&proxy.handoffs, endpoint) {
        (Some(handoffs), Some(endpoint)) if call.method == Method::POST => {
            proxy.complete(handoffs, endpoint, call).await
        }
        (Some(_), _) if uses_slot(&call) => {
            let _turn = proxy.turn().await?;
            Ok(proxy.send(call).await?.response(|_| {}))
        }
        _ => Ok(proxy.send(call).await?.response(|_| {})),
    }
}

impl Proxy {
    /// Ends the handoff that is under way, and begins no other.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
        self.slot.close();
    }

    /// The backend's own word: `ok`, or why not.
    async fn backend_health(&self) -> Result<String, String> {
        let url = format!("{}/health", self.backend.url);
        match self.http.get(url).timeout(HEALTH_LIMIT).send().await {
            Ok(answer) if answer.status().is_success() => Ok("ok".to_owned()),
            Ok(answer) => Err(format!("it answers {}", answer.status())),
            Err(error) => Err(NoAnswer::from(error).to_string()),
        }
    }

    /// A completion, with its handoff if it can have one.
    async fn complete(&self, handoffs: &Handoffs, endpoint: Endpoint, call: Call) -> Result<Response, ApiError> {
        let turn = Arc::new(self.turn().await?);
        if handoffs.quarantined.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable(
                "a provider that could not be killed may still write into the backend's cache; start kvshare-cli serve \
                 and its backend again",
            ));
        }
        let started = Instant::now();
        let mut stopping = self.stopping.subscribe();
        let outcome = tokio::select! {
            outcome = hand_over(handoffs, endpoint, &call.body, &turn) => outcome,
            _ = stopping.wait_for(|stopping| *stopping) => return Err(SlotBusy::Stopping.into()),
        };
        let (call, handed_over) = match outcome {
            Ok((body, handed_over)) => (Call { body, ..call }, Some(handed_over)),
            Err(reason) => {
                self.metrics.count(Route::None, reason.outcome());
                self.log.write(Event::Forwarded { reason: &reason });
                (call, None)
            }
        };
        let answer = self.send(call).await?;
        // The backend has begun: whatever comes next waits for its slot there.
        drop(turn);
        let first_byte = started.elapsed();
        if let Some(HandedOver { prompt_tokens, route, prefill }) = handed_over {
            self.metrics.time(Stage::FirstByte, first_byte);
            self.metrics.count(route_name(Some(route)), Outcome::Done);
            self.log.write(Event::HandedOver(&Report { prompt_tokens, route, prefill, first_byte }));
        }
        let route = route_name(handed_over.map(|handed_over| handed_over.route));
        self.answer(answer, route).await
    }

    /// The answer for the client, with what is known of its handoff.
    async fn answer(&self, mut answer: Answer, route: Route) -> Result<Response, ApiError> {
        let verdict = Verdict { route, log: self.log, metrics: Arc::clone(&self.metrics) };
        let mut header = route.name().to_owned();
        let held = if answer.is_json() {
            answer.whole_within(MAX_HELD_REPLY).await.map_err(ApiError::bad_gateway)?
        } else {
            None
        };
        if let Some(evaluated) = held.as_deref().and_then(evaluated_in) {
            header = format!("{header}; evaluated={evaluated}");
            verdict.note(evaluated);
        }
        if let Ok(value) = HeaderValue::try_from(header) {
            answer.headers.insert(HANDOFF_HEADER, value);
        }
        let mut reader = answer.is_stream().then(StreamReader::default);
        let log = self.log;
        Ok(answer.response(move |piece| match piece {
            Ok(bytes) => {
                let Some(stream) = &mut reader else { return };
                stream.take(bytes);
                if let Some(evaluated) = stream.evaluated() {
                    verdict.note(evaluated);
                    reader = None;
                }
            }
            Err(error) => {
                log.write(Event::Notice { words: &format_args!("the backend broke off its answer: {error}") })
            }
        }))
    }

    async fn turn(&self) -> Result<Turn, ApiError> {
        let asked = Instant::now();
        let turn = self.slot.turn(self.timeout).await?;
        self.metrics.time(Stage::Queue, asked.elapsed());
        Ok(turn)
    }

    async fn send(&self, call: Call) -> Result<Answer, ApiError> {
        call.send(&self.http, &self.backend.url).await.map_err(|error| {
            self.log.write(Event::Notice { words: &error });
            ApiError::bad_gateway(error)
        })
    }

    async fn read(&self, request: Request) -> Result<Call, ApiError> {
        let (parts, body) = request.into_parts();
        let body = tokio::time::timeout(self.timeout, axum::body::to_bytes(body, self.max_body));
        let body = body.await.map_err(|_| ApiError::too_slow())?.map_err(|_| ApiError::too_long(self.max_body))?;
        let path_and_query = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Call { method: parts.method, path_and_query, headers: parts.headers, body })
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(key) = &self.api_key else { return Ok(()) };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        match bearer.or_else(|| text("x-api-key")) {
            Some(given) if is_same(given.as_bytes(), key.as_bytes()) => Ok(()),
            _ => Err(ApiError::wrong_key()),
        }
    }
}

/// What a reply's timings say of its handoff.
struct Verdict {
    route: Route,
    log: LogFormat,
    metrics: Arc<Metrics>,
}

impl Verdict {
    fn note(&self, evaluated: u64) {
        if self.route == Route::None {
            return;
        }
        self.metrics.evaluated.inc_by(evaluated);
        if evaluated > 1 {
            self.metrics.wasted.inc();
            self.log.write(Event::Wasted { evaluated });
        }
    }
}

async fn hand_over(
    handoffs: &Handoffs,
    endpoint: Endpoint,
    body: &Bytes,
    turn: &Arc<Turn>,
) -> Result<(Bytes, HandedOver), NotHandedOver> {
    let ask = Ask::parse(endpoint, body)?;
    let handed_over = handoffs.hand_over(&ask, body, turn).await?;
    Ok((ask.pinned().into(), handed_over))
}

fn route_name(route: Option<RouteTimes>) -> Route {
    match route {
        Some(RouteTimes::Shared { .. }) => Route::Shared,
        Some(RouteTimes::File { .. }) => Route::File,
        None => Route::None,
    }
}

/// Whether a call may use the backend's slot, and so must not come between a handoff and its request.
fn uses_slot(call: &Call) -> bool {
    let path = call.path_and_query.split('?').next().unwrap_or_default();
    call.method == Method::POST && !matches!(path, "/tokenize" | "/detokenize" | "/apply-template")
}

/// What llama-server tells without its key (`tools/server/server-http.cpp`).
fn is_public(method: &Method, path: &str) -> bool {
    method == Method::GET && matches!(path, "/" | "/index.html" | "/models" | "/v1/models" | "/api/tags")
}

/// Whether two keys are the same, in a time that does not tell where they differ.
fn is_same(given: &[u8], key: &[u8]) -> bool {
    given.len() == key.len() && given.iter().zip(key).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
