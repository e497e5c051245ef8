//! A prefill by the backend itself: it evaluates the prompt in slot 0, saves the slot to the file that was asked for, and
//! empties it.
//!
//! It computes nothing that the backend would not, and so is no gain; it shows that a handoff loses nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use kvshare::provider::{ProviderError, ResultLine, Route, read_tokens};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::error::ReferenceProviderError;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The most bytes of an answer that are read. The longest one repeats the prompt's text.
const MAX_ANSWER: usize = 64 << 20;

/// The backend that is to prefill.
#[derive(Debug)]
pub struct Backend {
    /// Its address, such as `http://127.0.0.1:8081`.
    pub url: String,
    /// The key that it demands.
    pub key: Option<String>,
    /// How long one call to it may take.
    pub limit: Duration,
}

#[derive(Deserialize)]
struct Completed {
    tokens: [i64; 1],
}

#[derive(Deserialize)]
struct Saved {
    n_saved: u64,
}

/// Has `backend` prefill the ids in the file `tokens`, and leave its state where `route` says.
///
/// # Errors
/// [`ReferenceProviderError`]; the slot may hold the prompt then, and the file be there or not.
pub fn prefill(backend: &Backend, tokens: &Path, route: Route) -> Result<ResultLine, ReferenceProviderError> {
    let Route::File { out } = route else { return Err(ReferenceProviderError::SharedRoute) };
    // The backend joins the name to its own directory.
    let name = out.to_str().filter(|name| Path::new(name).file_name() == Some(out.as_os_str()));
    let name = name.ok_or_else(|| ProviderError::OutName { out: out.clone() })?;
    let tokens = read_tokens(tokens)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(backend.prefill_and_save(&tokens, name))?;
    if out.is_file() { Ok(result) } else { Err(ReferenceProviderError::Elsewhere { name: out }) }
}

impl Backend {
    async fn prefill_and_save(&self, tokens: &[i32], name: &str) -> Result<ResultLine, ReferenceProviderError> {
        let client = self.client()?;
        let started = Instant::now();
        // One token is the least that it generates, and leaves the slot with the prompt and nothing else. What the slot
        // holds is not used: rows that were computed token by token differ a little from those of a prefill.
        let ask = json!({
            "prompt": tokens, "n_predict": 1, "temperature": 0, "id_slot": 0, "cache_prompt": false, "return_tokens": true,
        });
        let Completed { tokens: [argmax] } = self.post(&client, "/completion", ask).await?;
        let took = started.elapsed();
        let Saved { n_saved } = self.post(&client, "/slots/0?action=save", json!({"filename": name})).await?;
        if n_saved != tokens.len() as u64 {
            return Err(ReferenceProviderError::Saved { saved: n_saved, given: tokens.len() });
        }
        // What the next request finds in the slot is to come from the file.
        let _: IgnoredAny = self.post(&client, "/slots/0?action=erase", json!({})).await?;
        Ok(ResultLine { n_tokens: n_saved, argmax, prefill_ms: Some(took.as_secs_f64() * 1e3) })
    }

    fn client(&self) -> Result<reqwest::Client, ReferenceProviderError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &self.key {
            let value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| ReferenceProviderError::Key)?;
            headers.insert(AUTHORIZATION, value);
        }
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client.connect_timeout(CONNECT_LIMIT).timeout(self.limit).default_headers(headers);
        client.build().map_err(ReferenceProviderError::Client)
    }

    async fn post<A: DeserializeOwned>(
        &self,
        client: &reqwest::Client,
        call: &'static str,
        body: Value,
    ) -> Result<A, ReferenceProviderError> {
        let failed = |source| ReferenceProviderError::Call { call, source };
        let url = format!("{}{call}", self.url.trim_end_matches('/'));
        let mut answer = client.post(url).json(&body).send().await.map_err(failed)?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(more) = answer.chunk().await.map_err(failed)? {
            if bytes.len() + more.len() > MAX_ANSWER {
                return Err(ReferenceProviderError::TooLong { call, limit: MAX_ANSWER });
            }
            bytes.extend_from_slice(&more);
        }
        if !status.is_success() {
            return Err(ReferenceProviderError::Refused { call, status, message: message_in(&bytes) });
        }
        serde_json::from_slice(&bytes).map_err(|problem| ReferenceProviderError::Answer { call, problem })
    }
}

/// The message in llama-server's form of an error, or the beginning of another body.
fn message_in(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let words = value["error"]["message"].as_str().map(ToOwned::to_owned);
    words.unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect())
}
