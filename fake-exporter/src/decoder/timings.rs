//! How a prompt was met and how long everything took, in llama-server's fields.

use std::time::Duration;

use serde::Serialize;

/// The `timings` of a reply.
///
/// `cache_n` and `prompt_n` say how the prompt was met: tokens found in the slot, and tokens evaluated. After a handoff
/// that worked, `prompt_n` is 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timings {
    /// Prompt tokens that the slot held.
    pub cache_n: usize,
    /// Prompt tokens that were evaluated.
    pub prompt_n: usize,
    /// Milliseconds for those.
    pub prompt_ms: f64,
    /// Milliseconds for each of them.
    pub prompt_per_token_ms: f64,
    /// So many of them a second.
    pub prompt_per_second: f64,
    /// Tokens that were generated.
    pub predicted_n: usize,
    /// Milliseconds for those.
    pub predicted_ms: f64,
    /// Milliseconds for each after the first, which comes with the prompt.
    pub predicted_per_token_ms: f64,
    /// So many of them a second.
    pub predicted_per_second: f64,
}

impl Timings {
    /// The timings of `prompt_n` tokens evaluated in `prompt`, and `predicted_n` tokens generated in `predicted`.
    ///
    /// The first token costs nothing of `predicted`, so rates leave it out, as llama-server's do (`server_slot` in
    /// `tools/server/server-context.cpp`).
    pub fn new(cache_n: usize, prompt_n: usize, prompt: Duration, predicted_n: usize, predicted: Duration) -> Self {
        let (prompt_ms, predicted_ms) = (milliseconds(prompt), milliseconds(predicted));
        let (evaluated, after_first) = (prompt_n.max(1) as f64, predicted_n.saturating_sub(1).max(1) as f64);
        Self {
            cache_n,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: prompt_ms / evaluated,
            prompt_per_second: 1e3 * evaluated / prompt_ms,
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: predicted_ms / after_first,
            predicted_per_second: 1e3 * after_first / predicted_ms,
        }
    }
}

/// Milliseconds, to the microsecond and never 0, so that every rate is a number.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros().max(1) as f64 / 1e3
}
