//! A request passed on to the backend, and its answer passed back, as they are.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::Response;
use futures_util::future::ready;
use futures_util::{StreamExt as _, stream};

use crate::cycle::with_causes;

/// Headers that belong to one connection (RFC 9110, section 7.6.1), and those that the next one sets anew.
const HOP_BY_HOP: [HeaderName; 11] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HOST,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A request as it came, its body read.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path_and_query: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// The backend's answer up to its first byte.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers that go on.
    pub headers: HeaderMap,
    first: Option<Bytes>,
    rest: reqwest::Response,
}

/// The backend did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the backend did not answer: {}", with_causes(.0))]
pub struct NoAnswer(#[from] reqwest::Error);

impl Call {
    /// The path as a backend at `url` will read it, whatever of it was escaped or led through `..`; `None` where it is none.
    pub fn path(&self, url: &str) -> Option<String> {
        // Anything else than a path would become a part of the backend's address.
        let path = Some(&self.path_and_query).filter(|path| path.starts_with('/'))?;
        let target = reqwest::Url::parse(&format!("{url}{path}")).ok()?;
        Some(percent_encoding::percent_decode_str(target.path()).decode_utf8_lossy().into_owned())
    }

    /// Sends it to the backend at `url`, and waits for the first byte of the answer's body.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn send(self, http: &reqwest::Client, url: &str) -> Result<Answer, NoAnswer> {
        let Self { method, path_and_query, headers, body } = self;
        let mut headers = end_to_end(&headers);
        // The body may be another than came.
        headers.remove(header::CONTENT_LENGTH);
        let mut call = http.request(method.clone(), format!("{url}{path_and_query}")).headers(headers);
        if !body.is_empty() || method == Method::POST {
            call = call.body(body);
        }
        let mut rest = call.send().await?;
        let first = rest.chunk().await?;
        Ok(Answer { status: rest.status(), headers: end_to_end(rest.headers()), first, rest })
    }
}

impl Answer {
    /// Whether the body comes as events.
    pub fn is_stream(&self) -> bool {
        self.content_type().starts_with("text/event-stream")
    }

    /// Whether the body is one JSON value.
    pub fn is_json(&self) -> bool {
        self.content_type().starts_with("application/json")
    }

    fn content_type(&self) -> &str {
        self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Takes more of the body in, up to `most` bytes, and returns it if it ended by then.
    ///
    /// # Errors
    /// It broke off.
    pub async fn whole_within(&mut self, most: usize) -> Result<Option<Bytes>, NoAnswer> {
        let mut whole = self.first.take().map(Vec::from).unwrap_or_default();
        let is_whole = loop {
            if whole.len() > most {
                break false;
            }
            match self.rest.chunk().await? {
                None => break true,
                Some(more) => whole.extend_from_slice(&more),
            }
        };
        let whole = Bytes::from(whole);
        self.first = Some(whole.clone());
        Ok(is_whole.then_some(whole))
    }

    /// Whether the end of the body is known only when it comes.
    pub fn is_open_ended(&self) -> bool {
        self.is_stream() && !self.headers.contains_key(header::CONTENT_LENGTH)
    }

    /// The answer for the client. Every piece of the body goes on as it comes, after `look` saw it; `None` is the end of
    /// one that is open-ended.
    pub fn response(self, mut look: impl FnMut(Option<&Result<Bytes, reqwest::Error>>) + Send + 'static) -> Response {
        let Self { status, headers, first, rest } = self;
        let pieces = stream::iter(first.map(Ok)).chain(rest.bytes_stream()).map(Some);
        let seen = pieces.chain(stream::iter([None])).inspect(move |piece| look(piece.as_ref()));
        let pieces = seen.filter_map(ready);
        let mut response = Response::new(Body::from_stream(pieces));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

/// The headers that are not for one connection only.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<String> = named.flat_map(|value| value.split(',')).map(|name| name.trim().to_lowercase()).collect();
    let goes_on = |name: &HeaderName| !HOP_BY_HOP.contains(name) && !named.iter().any(|other| other == name.as_str());
    headers.iter().filter(|(name, _)| goes_on(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_path_is_what_the_backend_will_read() {
        let path = |path_and_query: &str| {
            let path_and_query = path_and_query.to_owned();
            let call = Call { method: Method::POST, path_and_query, headers: HeaderMap::new(), body: Bytes::new() };
            call.path("http://127.0.0.1:8080")
        };
        for (sent, read) in [
            ("/slots/0?action=save", "/slots/0"),
            ("/%73lots/0", "/slots/0"),
            ("/v1/../slots/0", "/slots/0"),
            ("/v1/%2e%2E/slots%2f0", "/slots/0"),
            ("//slots/0", "//slots/0"),
            ("/", "/"),
        ] {
            assert_eq!(path(sent).as_deref(), Some(read), "{sent}");
        }
        for none in ["*", ":80/slots/0", "@example.org/"] {
            assert_eq!(path(none), None, "{none}");
        }
    }

    #[test]
    fn headers_of_one_connection_stay_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Mine"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("host", "example"),
            ("authorization", "Bearer k"),
            ("accept", "text/event-stream"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers.append("accept", HeaderValue::from_static("*/*"));
        let kept = end_to_end(&headers);
        let mut names: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        names.sort_unstable();
        assert_eq!(names, [("accept", "*/*"), ("accept", "text/event-stream"), ("authorization", "Bearer k")]);
    }
}
