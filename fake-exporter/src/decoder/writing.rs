//! One answer being written, token by token.

use std::ops::ControlFlow;

use kvshare::rows::MappedCache;

use super::text::TextStream;
use super::{Completion, DecoderError, Piece, Request, StopReason, Timings};
use crate::brain::{Answer, Brain, BrainError};

/// An answer being written.
pub(super) struct Writing<'a> {
    brain: &'a dyn Brain,
    answer: Box<dyn Answer + 'a>,
    limit: Option<usize>,
    stream: TextStream,
    text: String,
    tokens: Vec<i32>,
}

impl<'a> Writing<'a> {
    pub fn new(brain: &'a dyn Brain, answer: Box<dyn Answer + 'a>, request: &Request) -> Self {
        Self {
            brain,
            answer,
            limit: request.n_predict,
            stream: TextStream::new(request.stop_words.clone()),
            text: String::new(),
            tokens: Vec::new(),
        }
    }

    /// Writes until something ends the answer. `slot` holds the evaluated tokens and grows by each that is.
    pub fn run(
        &mut self,
        slot: &mut Vec<i32>,
        cells: u64,
        cache: &mut MappedCache,
        goes_on: &dyn Fn() -> bool,
        piece: &mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> Result<StopReason, DecoderError> {
        loop {
            let token = self.answer.next();
            let added = self.stream.push(&self.brain.token_bytes(token));
            self.text.push_str(&added.text);
            self.tokens.push(token);
            if piece(Piece { token, text: added.text }).is_break() || !goes_on() {
                return Err(BrainError::Stopped.into());
            }
            if self.brain.is_end(token) {
                return Ok(StopReason::End);
            }
            if let Some(word) = added.stop_word {
                return Ok(StopReason::Word(word));
            }
            if self.limit.is_some_and(|limit| self.tokens.len() >= limit) {
                return Ok(StopReason::Limit);
            }
            if slot.len() as u64 >= cells {
                return Ok(StopReason::Full);
            }
            self.answer.advance(slot.len(), cache)?;
            slot.push(token);
        }
    }

    /// How many tokens were generated.
    pub fn n_predicted(&self) -> usize {
        self.tokens.len()
    }

    pub fn finish(mut self, stop: StopReason, tokens_cached: usize, timings: Timings) -> Completion {
        let rest = self.stream.finish();
        Completion { text: self.text + &rest, rest, tokens: self.tokens, stop, tokens_cached, timings }
    }
}
