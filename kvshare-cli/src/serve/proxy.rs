//! The server: which requests are handed over, which wait for the slot, and which just pass.

use std::sync::Arc;
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
use super::visit::Visit;

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
    /// The keys of which clients must send one, with commas between (llama-server's `--api-key`).
    pub api_keys: Option<String>,
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
    let call = proxy.read(request).await?;
    let path = call.path(&proxy.backend.url).ok_or_else(ApiError::no_path)?;
    let Some(handoffs) = &proxy.handoffs else {
        proxy.backend_is_up().await?;
        return Ok(proxy.send(call).await?.response(|_| {}));
    };
    match Use::of(&call.method, &path) {
        Use::Completion(endpoint) => proxy.complete(handoffs, endpoint, call).await,
        Use::Slot => {
            let _turn = proxy.turn().await?;
            Ok(proxy.send(call).await?.response(|_| {}))
        }
        Use::OfSlotsThemselves => Err(ApiError::slots_are_ours()),
        Use::None => {
            proxy.backend_is_up().await?;
            Ok(proxy.send(call).await?.response(|_| {}))
        }
    }
}

/// What a request has to do with the backend's slot while there are handoffs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Nothing.
    None,
    /// It may evaluate in the slot, and so must not come between a handoff and its request.
    Slot,
    /// It is a completion that may be handed over.
    Completion(Endpoint),
    /// It saves, restores, shares, adopts or erases behind our back.
    OfSlotsThemselves,
}

impl Use {
    fn of(method: &Method, path: &str) -> Self {
        // Wherever it stands: how a backend reads a strange path is its own business.
        let is_of_slots = path.split('/').any(|part| part == "slots");
        if is_of_slots && method != Method::GET && method != Method::HEAD {
            return Self::OfSlotsThemselves;
        }
        match Endpoint::at(path) {
            _ if method != Method::POST => Self::None,
            Some(endpoint) => Self::Completion(endpoint),
            None if matches!(path, "/tokenize" | "/detokenize" | "/apply-template") => Self::None,
            None => Self::Slot,
        }
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
        let visit = Visit::begin(self.log, self.stopping.subscribe());
        match self.complete_for(&visit, handoffs, endpoint, call).await {
            Ok((answer, route)) => Ok(self.respond(answer, route, visit)),
            Err(error) => {
                visit.end();
                Err(error)
            }
        }
    }

    /// The backend's answer from its first byte on, and by which route the prompt's cache came.
    async fn complete_for(
        &self,
        visit: &Visit,
        handoffs: &Handoffs,
        endpoint: Endpoint,
        call: Call,
    ) -> Result<(Answer, Route), ApiError> {
        let turn = Arc::new(self.turn().await?);
        let started = Instant::now();
        let mut stopping = self.stopping.subscribe();
        let outcome = tokio::select! {
            outcome = hand_over(handoffs, endpoint, &call.body, &turn, visit) => outcome,
            _ = stopping.wait_for(|stopping| *stopping) => return Err(SlotBusy::Stopping.into()),
        };
        visit.now("the backend evaluated its prompt");
        let (answer, handed_over) = match outcome {
            Ok((body, handed_over)) => (self.send(Call { body, ..call }).await?, Some(handed_over)),
            Err(reason) => (self.forward(call, &reason).await?, None),
        };
        // The backend has begun: whatever comes next waits for its slot there.
        drop(turn);
        let first_byte = started.elapsed();
        if let Some(HandedOver { prompt_tokens, route, prefill }) = handed_over {
            self.metrics.time(Stage::FirstByte, first_byte);
            self.metrics.count(route_name(Some(route)), Outcome::Done);
            self.log.write(Event::HandedOver(&Report { prompt_tokens, route, prefill, first_byte }));
        }
        let route = route_name(handed_over.map(|handed_over| handed_over.route));
        Ok((self.labelled(answer, route).await?, route))
    }

    /// Sends a request as it came, and says why.
    async fn forward(&self, call: Call, reason: &NotHandedOver) -> Result<Answer, ApiError> {
        self.metrics.count(Route::None, reason.outcome());
        // Where it is not certain that the backend can, what becomes of the request is said in the same line.
        let says_later = reason.doubts_decoder();
        if !says_later {
            self.log.write(Event::Forwarded { reason });
        }
        let sent = async {
            // Its memory may have been spoiled meanwhile.
            self.backend_is_up().await?;
            call.send(&self.http, &self.backend.url).await.map_err(ApiError::bad_gateway)
        };
        let sent = sent.await;
        match &sent {
            Ok(_) if says_later => self.log.write(Event::Forwarded { reason }),
            Ok(_) => {}
            Err(error) if says_later => {
                let words = format_args!("{reason}, and the request could not be forwarded: {error}");
                self.log.write(Event::Notice { words: &words });
            }
            Err(error) => self.log.write(Event::Notice { words: error }),
        }
        sent
    }

    /// An answer that says in a header what is known of its handoff. It is held back for its end if that is near.
    async fn labelled(&self, mut answer: Answer, route: Route) -> Result<Answer, ApiError> {
        let mut header = route.name().to_owned();
        let held = if answer.is_json() {
            answer.whole_within(MAX_HELD_REPLY).await.map_err(|error| self.bad_gateway(error))?
        } else {
            None
        };
        if let Some(evaluated) = held.as_deref().and_then(evaluated_in) {
            header = format!("{header}; evaluated={evaluated}");
            self.verdict(route).note(evaluated);
        }
        if let Ok(value) = HeaderValue::try_from(header) {
            answer.headers.insert(HANDOFF_HEADER, value);
        }
        Ok(answer)
    }

    /// The answer for the client. A stream is read as it passes.
    fn respond(&self, answer: Answer, route: Route, visit: Visit) -> Response {
        visit.now("its answer was relayed");
        let (verdict, log) = (self.verdict(route), self.log);
        let mut reader = answer.is_stream().then(StreamReader::default);
        // An answer of known length is not asked for its end.
        if !answer.is_open_ended() {
            visit.end();
        }
        answer.response(move |piece| match piece {
            Some(Ok(bytes)) => {
                let Some(stream) = &mut reader else { return };
                stream.take(bytes);
                if let Some(evaluated) = stream.evaluated() {
                    verdict.note(evaluated);
                    reader = None;
                }
            }
            Some(Err(error)) => {
                visit.end();
                log.write(Event::Notice { words: &format_args!("the backend broke off its answer: {error}") });
            }
            None => visit.end(),
        })
    }

    fn verdict(&self, route: Route) -> Verdict {
        Verdict { route, log: self.log, metrics: Arc::clone(&self.metrics) }
    }

    /// Waits for the slot, and for a backend that may be used.
    async fn turn(&self) -> Result<Turn, ApiError> {
        let asked = Instant::now();
        let turn = self.slot.turn(self.timeout).await?;
        self.metrics.time(Stage::Queue, asked.elapsed());
        self.backend_is_up().await?;
        Ok(turn)
    }

    async fn backend_is_up(&self) -> Result<(), ApiError> {
        self.backend.is_up(RESTART_LIMIT).await.map_err(ApiError::unavailable)
    }

    async fn send(&self, call: Call) -> Result<Answer, ApiError> {
        call.send(&self.http, &self.backend.url).await.map_err(|error| self.bad_gateway(error))
    }

    /// Says that the backend failed, and is the answer that says so.
    fn bad_gateway(&self, error: NoAnswer) -> ApiError {
        self.log.write(Event::Notice { words: &error });
        ApiError::bad_gateway(error)
    }

    async fn read(&self, request: Request) -> Result<Call, ApiError> {
        let (parts, body) = request.into_parts();
        let body = tokio::time::timeout(self.timeout, axum::body::to_bytes(body, self.max_body));
        let body = body.await.map_err(|_| ApiError::too_slow())?.map_err(|_| ApiError::too_long(self.max_body))?;
        let path_and_query = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Call { method: parts.method, path_and_query, headers: parts.headers, body })
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(keys) = &self.api_keys else { return Ok(()) };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        match bearer.or_else(|| text("x-api-key")) {
            Some(given) if keys.split(',').any(|key| !key.is_empty() && is_same(given.as_bytes(), key.as_bytes())) => {
                Ok(())
            }
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
    visit: &Visit,
) -> Result<(Bytes, HandedOver), NotHandedOver> {
    let ask = Ask::parse(endpoint, body)?;
    let handed_over = handoffs.hand_over(&ask, body, turn, visit).await?;
    Ok((ask.pinned().into(), handed_over))
}

fn route_name(route: Option<RouteTimes>) -> Route {
    match route {
        Some(RouteTimes::Shared { .. }) => Route::Shared,
        Some(RouteTimes::File { .. }) => Route::File,
        None => Route::None,
    }
}

/// What llama-server tells without its key (`tools/server/server-http.cpp`).
fn is_public(method: &Method, path: &str) -> bool {
    method == Method::GET && matches!(path, "/" | "/index.html" | "/models" | "/v1/models" | "/api/tags")
}

/// Whether two keys are the same, in a time that does not tell where they differ.
fn is_same(given: &[u8], key: &[u8]) -> bool {
    given.len() == key.len() && given.iter().zip(key).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_questions_reach_the_slots_themselves() {
        let (get, post) = (Method::GET, Method::POST);
        let (chat, text) = (Use::Completion(Endpoint::Chat), Use::Completion(Endpoint::Text));
        for (method, path, found) in [
            (&get, "/slots", Use::None),
            (&post, "/slots/0", Use::OfSlotsThemselves),
            (&post, "//slots/0", Use::OfSlotsThemselves),
            (&post, "/v1/../slots/0", Use::OfSlotsThemselves),
            (&Method::DELETE, "/slots/0", Use::OfSlotsThemselves),
            (&post, "/v1/chat/completions", chat),
            (&post, "/v1/completions", text),
            (&get, "/v1/models", Use::None),
            (&post, "/tokenize", Use::None),
            (&post, "/completion", Use::Slot),
            (&post, "/infill", Use::Slot),
            (&post, "/tokenize/", Use::Slot),
        ] {
            assert_eq!(Use::of(method, path), found, "{method} {path}");
        }
    }
}
