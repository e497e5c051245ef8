//! What a client asks for on the three paths of completions.

use serde::Deserialize;

use crate::decoder::Request;
use crate::model::Message;

/// The body of a request for a completion. Fields that are not here, those of sampling, are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ask {
    pub prompt: Option<Prompt>,
    pub messages: Option<Vec<Message>>,
    n_predict: Option<i64>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    cache_prompt: Option<bool>,
    stop: Option<StopWords>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    return_tokens: Option<bool>,
}

/// A prompt, as text or as tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a prompt is a string or a list of token ids")]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<i64>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "stop is a string or a list of strings")]
enum StopWords {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Ask {
    /// The same for the decoder, of the prompt's tokens.
    pub fn request(&self, prompt: Vec<i32>) -> Request {
        let limit = self.n_predict.or(self.max_tokens).or(self.max_completion_tokens);
        Request {
            prompt,
            // A negative limit is none.
            n_predict: limit.and_then(|limit| usize::try_from(limit).ok()),
            cache_prompt: self.cache_prompt.unwrap_or(true),
            stop_words: match &self.stop {
                None => Vec::new(),
                Some(StopWords::One(word)) => vec![word.clone()],
                Some(StopWords::Several(words)) => words.clone(),
            },
        }
    }

    pub fn is_streamed(&self) -> bool {
        self.stream == Some(true)
    }

    pub fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }

    pub fn returns_tokens(&self) -> bool {
        self.return_tokens == Some(true)
    }
}
