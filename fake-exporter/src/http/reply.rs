//! The answer to a completion in each of its three forms, whole or in frames.

use serde_json::{Value, json};

use super::ask::Ask;
use super::error::ApiError;
use super::sampling::generation_settings;
use super::server::{unique_number, unix_time};
use crate::decoder::{Completion, Piece, Request, SLOT, StopReason};

/// Which path was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// llama-server's own `/completion`.
    Completion,
    /// `/v1/completions`.
    Text,
    /// `/v1/chat/completions`.
    Chat,
}

/// What all parts of one reply share.
pub(super) struct Reply {
    form: Form,
    id: String,
    created: u64,
    model: String,
    prompt: String,
    n_prompt: usize,
    settings: Value,
    includes_usage: bool,
    returns_tokens: bool,
    /// Pieces that were sent.
    n_pieces: usize,
}

impl Reply {
    pub fn new(form: Form, model: &str, ask: &Ask, request: &Request, prompt: String) -> Self {
        let kind = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        Self {
            form,
            id: format!("{kind}-{:016x}", unique_number()),
            created: unix_time(),
            model: model.to_owned(),
            prompt,
            n_prompt: request.prompt.len(),
            settings: generation_settings(request, ask.is_streamed()),
            includes_usage: ask.includes_usage(),
            returns_tokens: ask.returns_tokens(),
            n_pieces: 0,
        }
    }

    /// The whole reply at once.
    pub fn whole(&self, completion: &Completion) -> Value {
        match self.form {
            Form::Completion => self.final_completion(completion, &completion.text),
            Form::Text => {
                let choice = json!({"text": completion.text, "index": 0, "logprobs": null,
                                    "finish_reason": finish_reason(&completion.stop)});
                self.whole_object("text_completion", choice, completion)
            }
            Form::Chat => {
                let message = json!({"role": "assistant", "content": completion.text});
                let choice = json!({"finish_reason": finish_reason(&completion.stop), "index": 0, "message": message});
                self.whole_object("chat.completion", choice, completion)
            }
        }
    }

    /// The frames for one token; none while nothing can be shown, except that a chat begins with its role.
    pub fn piece_frames(&mut self, piece: &Piece) -> String {
        let mut frames = self.opening_frames();
        self.n_pieces += 1;
        if self.form == Form::Completion || !piece.text.is_empty() {
            frames += &frame(&self.piece(&piece.text, &[piece.token]));
        }
        frames
    }

    /// The frames that end a stream. Timings ride on the last object that has JSON.
    pub fn closing_frames(&mut self, completion: &Completion) -> String {
        let mut frames = self.opening_frames();
        if !completion.rest.is_empty() {
            frames += &frame(&self.piece(&completion.rest, &[]));
        }
        match self.form {
            Form::Completion => return frames + &frame(&self.final_completion(completion, "")),
            Form::Text => {
                let choice = json!({"text": "", "index": 0, "logprobs": null,
                                    "finish_reason": finish_reason(&completion.stop)});
                frames += &frame(&self.whole_object("text_completion", choice, completion));
            }
            Form::Chat => {
                let finish = json!({"finish_reason": finish_reason(&completion.stop), "index": 0, "delta": {}});
                let mut last = self.object("chat.completion.chunk", json!([finish]));
                if self.includes_usage {
                    frames += &frame(&last);
                    last = self.object("chat.completion.chunk", json!([]));
                    last["usage"] = self.usage(completion);
                }
                last["timings"] = json!(completion.timings);
                frames += &frame(&last);
            }
        }
        frames + "data: [DONE]\n\n"
    }

    /// The frame of an error after the stream has begun.
    pub fn error_frames(error: &ApiError) -> String {
        frame(&error.body())
    }

    fn opening_frames(&self) -> String {
        if self.form != Form::Chat || self.n_pieces > 0 {
            return String::new();
        }
        let delta = json!({"role": "assistant", "content": null});
        let choice = json!({"finish_reason": null, "index": 0, "delta": delta});
        frame(&self.object("chat.completion.chunk", json!([choice])))
    }

    fn piece(&self, text: &str, tokens: &[i32]) -> Value {
        match self.form {
            Form::Completion => json!({
                "index": 0, "content": text, "tokens": tokens, "stop": false, "id_slot": SLOT,
                "tokens_predicted": self.n_pieces, "tokens_evaluated": self.n_prompt,
            }),
            Form::Text => {
                let choice = json!({"text": text, "index": 0, "logprobs": null, "finish_reason": null});
                self.object("text_completion", json!([choice]))
            }
            Form::Chat => {
                let choice = json!({"finish_reason": null, "index": 0, "delta": {"content": text}});
                self.object("chat.completion.chunk", json!([choice]))
            }
        }
    }

    fn final_completion(&self, completion: &Completion, content: &str) -> Value {
        let (stop_type, stopping_word) = match &completion.stop {
            StopReason::End => ("eos", ""),
            StopReason::Limit | StopReason::Full => ("limit", ""),
            StopReason::Word(word) => ("word", word.as_str()),
        };
        let tokens = if self.returns_tokens { &completion.tokens[..] } else { &[] };
        json!({
            "index": 0, "content": content, "tokens": tokens, "id_slot": SLOT, "stop": true, "model": self.model,
            "tokens_predicted": completion.timings.predicted_n, "tokens_evaluated": self.n_prompt,
            "generation_settings": self.settings, "prompt": self.prompt,
            "has_new_line": completion.text.contains('\n'), "truncated": completion.stop == StopReason::Full,
            "stop_type": stop_type, "stopping_word": stopping_word, "tokens_cached": completion.tokens_cached,
            "timings": completion.timings,
        })
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "choices": choices, "created": self.created, "id": self.id, "model": self.model,
            "system_fingerprint": concat!("fake-exporter-", env!("CARGO_PKG_VERSION")), "object": object,
        })
    }

    /// An object of one choice that tells what the completion took.
    fn whole_object(&self, object: &str, choice: Value, completion: &Completion) -> Value {
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = self.usage(completion);
        whole["timings"] = json!(completion.timings);
        whole
    }

    fn usage(&self, completion: &Completion) -> Value {
        let predicted = completion.timings.predicted_n;
        json!({
            "completion_tokens": predicted, "prompt_tokens": self.n_prompt, "total_tokens": predicted + self.n_prompt,
            "prompt_tokens_details": {"cached_tokens": completion.timings.cache_n},
        })
    }
}

fn finish_reason(stop: &StopReason) -> &'static str {
    match stop {
        StopReason::End | StopReason::Word(_) => "stop",
        StopReason::Limit | StopReason::Full => "length",
    }
}

fn frame(json: &Value) -> String {
    format!("data: {json}\n\n")
}
