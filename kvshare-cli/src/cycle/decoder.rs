//! A llama-server's HTTP interface, as far as a handoff needs it.

use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode};
use kvshare::handoff::KnownHeader;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::caller::{CallError, Caller};

/// Why a call to the decoder gave nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecoderError {
    /// The call did not go through.
    #[error("the decoder did not answer {call}: {source}")]
    Call {
        /// The path called.
        call: String,
        /// What went wrong.
        source: CallError,
    },
    /// The decoder refused.
    #[error("the decoder answered {call} with {status}: {message}")]
    Refused {
        /// The path called.
        call: String,
        /// The HTTP status.
        status: StatusCode,
        /// Its own words.
        message: String,
    },
    /// The answer is not what llama-server answers.
    #[error("the decoder's answer to {call} is not understood: {problem}")]
    Answer {
        /// The path called.
        call: String,
        /// What is wrong with it.
        problem: serde_json::Error,
    },
}

impl DecoderError {
    /// Whether the decoder is not there, as far as can be told: the call failed, and not for want of time.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Call { source, .. } if !source.is_timeout())
    }

    /// Whether a refusal says that the decoder never shares: one of a stock llama-server, which knows no such action, or
    /// of a decoder that cannot export.
    pub fn never_shares(&self) -> bool {
        match self {
            Self::Refused { status, message, .. } => {
                *status == StatusCode::NOT_IMPLEMENTED
                    || *status == StatusCode::BAD_REQUEST && message.contains("Invalid action")
            }
            _ => false,
        }
    }
}

/// The request for adopting a prompt's cells. Writing many thousand ids takes longer than sending them, and can be done
/// while the provider runs.
#[derive(Clone, Debug)]
pub struct PreparedAdopt(Vec<u8>);

impl PreparedAdopt {
    /// The request for the cells of `tokens` in this share.
    pub fn new(tokens: &[i32], share_id: u64) -> Self {
        // Not as a `Value`: that takes four times as long.
        let mut body = format!("{{\"share_id\":{share_id},\"leave_one_token\":true,\"tokens\":[").into_bytes();
        let mut digits = itoa::Buffer::new();
        for (index, token) in tokens.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(digits.format(*token).as_bytes());
        }
        body.extend_from_slice(b"]}");
        Self(body)
    }
}

/// What a restore did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restored {
    /// How many tokens the slot holds then.
    pub tokens: u64,
    /// How long the decoder took, by its own word.
    pub took: Option<Duration>,
}

/// What a completion gave.
#[derive(Clone, Debug, Deserialize)]
pub struct Completion {
    /// The generated text.
    pub content: String,
    /// How the prompt was met.
    pub timings: Timings,
}

/// How a prompt was met and what it took, as the decoder says.
#[derive(Clone, Debug, Deserialize)]
pub struct Timings {
    /// Prompt tokens that were in the cache.
    pub cache_n: u64,
    /// Prompt tokens that the decoder evaluated: one after a handoff that worked.
    pub prompt_n: u64,
    /// How long evaluating them took.
    pub prompt_ms: f64,
}

/// What a decoder says about itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Props {
    /// How many slots it has.
    pub total_slots: u64,
    /// The settings of a request that sets none.
    pub default_generation_settings: DefaultSettings,
}

/// The settings of a request that sets none.
#[derive(Clone, Debug, Deserialize)]
pub struct DefaultSettings {
    /// Positions of a slot's context.
    pub n_ctx: u64,
}

#[derive(Deserialize)]
struct TemplateAnswer {
    prompt: String,
}

/// A decoder at an address.
#[derive(Clone, Debug)]
pub struct DecoderClient {
    caller: Caller,
    known_header: KnownHeader,
}

impl DecoderClient {
    /// The decoder at `base`, such as `http://127.0.0.1:8080`, which may take as long as it likes to answer.
    pub fn new(base: &str) -> Self {
        Self { caller: Caller::new(base, None, None), known_header: KnownHeader::default() }
    }

    /// The decoder at `base`, which gets `authorization` with each call and `limit` to answer it.
    pub fn with_limit(base: &str, authorization: Option<HeaderValue>, limit: Duration) -> Self {
        Self { caller: Caller::new(base, authorization, Some(limit)), known_header: KnownHeader::default() }
    }

    /// The header of its last share.
    pub(super) fn known_header(&self) -> &KnownHeader {
        &self.known_header
    }

    /// The prompt text of a chat completion's request, of which every field may matter to the template.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn apply_template_to(&self, request: Vec<u8>) -> Result<String, DecoderError> {
        Ok(self.send::<TemplateAnswer>(Method::POST, "/apply-template", request).await?.prompt)
    }

    /// What the decoder says about itself.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn props(&self) -> Result<Props, DecoderError> {
        self.send(Method::GET, "/props", Vec::new()).await
    }

    /// The prompt text of one user message, by the model's chat template.
    ///
    /// # Errors
    /// As every call here: the decoder did not answer, refused, or answered something else.
    pub async fn apply_template(&self, message: &str) -> Result<String, DecoderError> {
        let body = json!({"messages": [{"role": "user", "content": message}]});
        Ok(self.post::<TemplateAnswer>("/apply-template", body).await?.prompt)
    }

    /// The tokens of a prompt text.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn tokenize(&self, text: &str) -> Result<Vec<i32>, DecoderError> {
        #[derive(Deserialize)]
        struct Answer {
            tokens: Vec<i32>,
        }
        let body = json!({"content": text, "add_special": true, "parse_special": true});
        Ok(self.post::<Answer>("/tokenize", body).await?.tokens)
    }

    /// Asks the decoder to send its cache to the socket at `path`; returns the share's number.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn share(&self, path: &str) -> Result<u64, DecoderError> {
        #[derive(Deserialize)]
        struct Answer {
            share_id: u64,
        }
        Ok(self.post::<Answer>("/slots/0?action=share", json!({"socket": path})).await?.share_id)
    }

    /// Has the decoder take the cells of `tokens`.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn adopt(&self, tokens: &[i32], share_id: u64) -> Result<(), DecoderError> {
        self.adopt_prepared(PreparedAdopt::new(tokens, share_id)).await
    }

    /// As [`adopt`](Self::adopt), for one who had time to prepare it.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn adopt_prepared(&self, PreparedAdopt(body): PreparedAdopt) -> Result<(), DecoderError> {
        self.send::<IgnoredAny>(Method::POST, "/slots/0?action=adopt", body).await.map(drop)
    }

    /// Has the decoder read a state file of its slot directory.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn restore(&self, filename: &str) -> Result<Restored, DecoderError> {
        #[derive(Deserialize)]
        struct Answer {
            n_restored: u64,
            #[serde(default)]
            timings: RestoreTimings,
        }
        #[derive(Default, Deserialize)]
        struct RestoreTimings {
            restore_ms: Option<f64>,
        }
        let body = json!({"filename": filename, "leave_one_token": true});
        let answer: Answer = self.post("/slots/0?action=restore", body).await?;
        let took = answer.timings.restore_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        Ok(Restored { tokens: answer.n_restored, took })
    }

    /// Has the decoder write the slot into a state file of its slot directory; returns how many tokens it wrote.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn save(&self, filename: &str) -> Result<u64, DecoderError> {
        #[derive(Deserialize)]
        struct Answer {
            n_saved: u64,
        }
        Ok(self.post::<Answer>("/slots/0?action=save", json!({"filename": filename})).await?.n_saved)
    }

    /// Empties the slot.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn erase(&self) -> Result<(), DecoderError> {
        self.post::<IgnoredAny>("/slots/0?action=erase", json!({})).await.map(drop)
    }

    /// Completes a prompt of tokens greedily, with at most `n_predict` more.
    ///
    /// # Errors
    /// As for [`apply_template`](Self::apply_template).
    pub async fn complete(&self, prompt: &[i32], n_predict: u32) -> Result<Completion, DecoderError> {
        let body = json!({
            "prompt": prompt, "n_predict": n_predict, "temperature": 0, "id_slot": 0, "cache_prompt": true,
        });
        self.post("/completion", body).await
    }

    async fn post<A: DeserializeOwned>(&self, path: &str, body: Value) -> Result<A, DecoderError> {
        self.send(Method::POST, path, body.to_string().into_bytes()).await
    }

    async fn send<A: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<A, DecoderError> {
        let failed = |source| DecoderError::Call { call: path.to_owned(), source };
        let (status, bytes) = self.caller.call(method, path, body).await.map_err(failed)?;
        if !status.is_success() {
            return Err(DecoderError::Refused { call: path.to_owned(), status, message: message_in(&bytes) });
        }
        serde_json::from_slice(&bytes).map_err(|problem| DecoderError::Answer { call: path.to_owned(), problem })
    }
}

/// The message in llama-server's form of an error, or the body as it is.
fn message_in(body: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    match value.as_ref().and_then(|value| value["error"]["message"].as_str()) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(body).chars().take(200).collect(),
    }
}
