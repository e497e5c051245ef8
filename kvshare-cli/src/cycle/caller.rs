//! JSON by HTTP to one server. A handoff's calls carry next to nothing, so that what an HTTP client does for comfort is
//! most of what they take: reqwest, which relays everything else, takes some 25 µs more a call.

use std::error::Error;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Request, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::TokioExecutor;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// More than any answer to a handoff's calls: the ids of a prompt of a million tokens are some 7 MB.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// What was given as the server's address is none.
    #[error("{url} is no address: {problem}; give one such as http://127.0.0.1:8080")]
    Address {
        /// The whole of it.
        url: String,
        /// What is wrong with it.
        problem: axum::http::Error,
    },
    /// The request did not go through.
    #[error("{}, at {base}", with_causes(source))]
    Send {
        /// The server's address.
        base: String,
        /// What went wrong.
        source: ClientError,
    },
    /// The answer broke off, or is longer than 256 MiB.
    #[error("the answer broke off: {}", with_causes(.0))]
    Receive(axum::Error),
    /// Nothing came in time.
    #[error("nothing came within {} s", limit.as_secs())]
    TooLate {
        /// How long it was waited for.
        limit: Duration,
    },
}

impl CallError {
    /// Whether it failed for want of time.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TooLate { .. } => true,
            Self::Send { source, .. } => is_timeout(source),
            Self::Receive(error) => is_timeout(error),
            Self::Address { .. } => false,
        }
    }
}

/// Calls one server; clones share its connections.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    client: Client<HttpConnector, Body>,
    base: String,
    authorization: Option<HeaderValue>,
    limit: Option<Duration>,
}

impl Caller {
    /// For the server at `base`, such as `http://127.0.0.1:8080`, which gets `authorization` with each request. A call may
    /// take `limit`.
    pub fn new(base: &str, authorization: Option<HeaderValue>, limit: Option<Duration>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        // A body that waits for the acknowledgement of its head comes up to 40 ms late (tcp(7), TCP_NODELAY).
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, base: base.trim_end_matches('/').to_owned(), authorization, limit }
    }

    /// Sends `body`, JSON if it is any, and receives the answer, whatever its status.
    pub async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), CallError> {
        let url = format!("{}{path}", self.base);
        let mut request = Request::builder().method(method).uri(&url);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Body::from(body)).map_err(|problem| CallError::Address { url, problem })?;
        let exchange = async {
            let failed = |source| CallError::Send { base: self.base.clone(), source };
            let (head, body) = self.client.request(request).await.map_err(failed)?.into_parts();
            let body = to_bytes(Body::new(body), MAX_ANSWER_BYTES).await.map_err(CallError::Receive)?;
            Ok((head.status, body))
        };
        match self.limit {
            Some(limit) => tokio::time::timeout(limit, exchange).await.map_err(|_| CallError::TooLate { limit })?,
            None => exchange.await,
        }
    }
}

/// An error with its causes: the words of an HTTP client leave out what matters.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&cause| cause.source())
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::TimedOut)
}
