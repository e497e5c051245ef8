//! What of a request can be handed over: its prompt, or the reason why there is none.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The two paths whose prompts are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`: messages, which the backend's template makes a text of.
    Chat,
    /// `/v1/completions`: a text, or token ids.
    Text,
}

impl Endpoint {
    /// The endpoint at `path`, by either of llama-server's names for it.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" | "/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Text),
            _ => None,
        }
    }
}

/// A request whose prompt can be handed over.
#[derive(Debug)]
pub struct Ask {
    /// The prompt.
    pub prompt: Prompt,
    fields: BTreeMap<String, Box<RawValue>>,
}

/// A prompt on its way to token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// The request's messages, for the backend's template.
    Messages,
    /// A text to tokenize.
    Text(String),
    /// The ids themselves.
    Tokens(Vec<i32>),
}

/// Why a request's prompt cannot be handed over. It is forwarded as it came.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPrompt {
    /// The body is not a JSON object.
    #[error("the request's body is not a JSON object")]
    NotAnObject,
    /// There is no prompt, or an empty one.
    #[error("the request has no text prompt")]
    Nothing,
    /// A message has a part that is not text.
    #[error("the request's messages carry {kind:?}, and only text can be handed over")]
    NotText {
        /// The part's type, such as `image_url`.
        kind: String,
    },
    /// More than one prompt.
    #[error("the request has {count} prompts, and one slot holds one")]
    SeveralPrompts {
        /// How many.
        count: usize,
    },
    /// More than one answer.
    #[error("the request wants n = {n} answers, and one slot gives one")]
    SeveralAnswers {
        /// How many.
        n: String,
    },
    /// Texts and ids in one list, or ids that are none.
    #[error("the request's prompt is neither a text nor a list of token ids")]
    Mixed,
    /// The cache depends on adapters that the provider does not know.
    #[error("the request chooses LoRA adapters, which the provider does not apply")]
    Adapters,
}

impl Ask {
    /// Reads the body of a request to `endpoint`.
    ///
    /// # Errors
    /// [`NoPrompt`] says why nothing of it can be handed over.
    pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Self, NoPrompt> {
        // Values are kept as they came: a seed of 2^63 or a 1e-7 must reach the backend unchanged.
        let fields: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(body).map_err(|_| NoPrompt::NotAnObject)?;
        let field = |name: &str| fields.get(name).and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        if let Some(n) = field("n").filter(|n| !n.is_null() && n.as_u64() != Some(1)) {
            return Err(NoPrompt::SeveralAnswers { n: n.to_string() });
        }
        if field("lora").is_some_and(|lora| lora.as_array().is_none_or(|list| !list.is_empty()) && !lora.is_null()) {
            return Err(NoPrompt::Adapters);
        }
        let prompt = match endpoint {
            Endpoint::Chat => messages(field("messages").unwrap_or_default())?,
            Endpoint::Text => text_or_tokens(field("prompt").unwrap_or_default())?,
        };
        Ok(Self { prompt, fields })
    }

    /// The request's body, to be answered from what was handed over: in slot 0, whose cache is used.
    pub fn pinned(mut self) -> Vec<u8> {
        for (name, value) in [("id_slot", "0"), ("cache_prompt", "true")] {
            if let Ok(value) = RawValue::from_string(value.to_owned()) {
                self.fields.insert(name.to_owned(), value);
            }
        }
        // A map of texts to JSON is always JSON.
        serde_json::to_vec(&self.fields).unwrap_or_default()
    }
}

fn messages(messages: Value) -> Result<Prompt, NoPrompt> {
    let messages = messages.as_array().filter(|messages| !messages.is_empty()).ok_or(NoPrompt::Nothing)?;
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let mut kinds = parts.filter_map(|part| part["type"].as_str());
    match kinds.find(|kind| *kind != "text") {
        Some(kind) => Err(NoPrompt::NotText { kind: kind.to_owned() }),
        None => Ok(Prompt::Messages),
    }
}

fn text_or_tokens(prompt: Value) -> Result<Prompt, NoPrompt> {
    let Value::Array(mut list) = prompt else {
        return match prompt {
            Value::Null => Err(NoPrompt::Nothing),
            Value::String(text) if text.is_empty() => Err(NoPrompt::Nothing),
            Value::String(text) => Ok(Prompt::Text(text)),
            _ => Err(NoPrompt::Mixed),
        };
    };
    let is_prompt = |value: &Value| value.is_string() || value.is_array();
    match (list.len(), list.iter().filter(|value| is_prompt(value)).count()) {
        (0, _) => Err(NoPrompt::Nothing),
        (_, 0) => Ok(Prompt::Tokens(Vec::deserialize(Value::Array(list)).map_err(|_| NoPrompt::Mixed)?)),
        (1, 1) => match list.remove(0) {
            Value::Array(inner) if inner.iter().any(is_prompt) => Err(NoPrompt::Mixed),
            inner => text_or_tokens(inner),
        },
        (count, prompts) if count == prompts => Err(NoPrompt::SeveralPrompts { count }),
        _ => Err(NoPrompt::Mixed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_a_text_or_ids_or_a_list_with_one_of_either() {
        let text = || Prompt::Text("a b".to_owned());
        let cases = [
            (r#"{"prompt": "a b"}"#, text()),
            (r#"{"prompt": ["a b"]}"#, text()),
            (r#"{"prompt": [1, 2]}"#, Prompt::Tokens(vec![1, 2])),
            (r#"{"prompt": [[1, 2]]}"#, Prompt::Tokens(vec![1, 2])),
            (r#"{"prompt": "a b", "n": 1, "lora": []}"#, text()),
            (r#"{"prompt": "a b", "n": null, "lora": null}"#, text()),
        ];
        for (body, prompt) in cases {
            assert_eq!(Ask::parse(Endpoint::Text, body.as_bytes()).unwrap().prompt, prompt, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_handed_over_is_named() {
        use Endpoint::{Chat, Text};
        let not_text = |kind: &str| NoPrompt::NotText { kind: kind.to_owned() };
        let cases = [
            (Text, "", NoPrompt::NotAnObject),
            (Text, "[1]", NoPrompt::NotAnObject),
            (Text, "{\"prompt\": \"\u{1}", NoPrompt::NotAnObject),
            (Text, "{}", NoPrompt::Nothing),
            (Text, r#"{"prompt": ""}"#, NoPrompt::Nothing),
            (Text, r#"{"prompt": []}"#, NoPrompt::Nothing),
            (Text, r#"{"prompt": [[]]}"#, NoPrompt::Nothing),
            (Text, r#"{"prompt": {"text": "a"}}"#, NoPrompt::Mixed),
            (Text, r#"{"prompt": 3}"#, NoPrompt::Mixed),
            (Text, r#"{"prompt": [1, "a"]}"#, NoPrompt::Mixed),
            (Text, r#"{"prompt": [1, 2.5]}"#, NoPrompt::Mixed),
            (Text, r#"{"prompt": [1, 4294967296]}"#, NoPrompt::Mixed),
            (Text, r#"{"prompt": [[["a"]]]}"#, NoPrompt::Mixed),
            (Text, r#"{"prompt": ["a", "b"]}"#, NoPrompt::SeveralPrompts { count: 2 }),
            (Text, r#"{"prompt": [[1], [2], "c"]}"#, NoPrompt::SeveralPrompts { count: 3 }),
            (Text, r#"{"prompt": "a", "n": 2}"#, NoPrompt::SeveralAnswers { n: "2".to_owned() }),
            (Text, r#"{"prompt": "a", "lora": [{"id": 0}]}"#, NoPrompt::Adapters),
            (Chat, r#"{"prompt": "a"}"#, NoPrompt::Nothing),
            (Chat, r#"{"messages": []}"#, NoPrompt::Nothing),
            (Chat, r#"{"messages": [{"content": [{"type": "text"}, {"type": "image_url"}]}]}"#, not_text("image_url")),
        ];
        for (endpoint, body, reason) in cases {
            assert_eq!(Ask::parse(endpoint, body.as_bytes()).unwrap_err(), reason, "{body}");
        }
    }

    #[test]
    fn a_pinned_request_keeps_every_other_value_as_it_was_written() {
        let body = r#"{"seed": 18446744073709551615, "temperature": 1e-07, "prompt": "a", "id_slot": 7, "cache_prompt": false, "x": {"b": 1.0, "a": []}}"#;
        let pinned = Ask::parse(Endpoint::Text, body.as_bytes()).unwrap().pinned();
        let pinned = String::from_utf8(pinned).unwrap();
        let whole = r#"{"cache_prompt":true,"id_slot":0,"prompt":"a","seed":18446744073709551615,"temperature":1e-07,"x":{"b": 1.0, "a": []}}"#;
        assert_eq!(pinned, whole);
    }
}
