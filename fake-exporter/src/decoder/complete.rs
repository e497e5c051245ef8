//! Answering a prompt: what the slot holds of it is reused, the rest evaluated, and then one token follows another.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::writing::Writing;
use super::{Decoder, DecoderError, Timings};

/// What is asked for. Generation is greedy, always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The prompt's tokens, ids of the vocabulary.
    pub prompt: Vec<i32>,
    /// At most so many tokens are generated; one always is. `None`: as many as fit.
    pub n_predict: Option<usize>,
    /// Whether rows that the slot has of the prompt are used.
    pub cache_prompt: bool,
    /// Words before which the text ends.
    pub stop_words: Vec<String>,
}

/// A token, and the text that is certain since it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub token: i32,
    /// Text; empty while a character or a possible stop word is not whole.
    pub text: String,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A token that ends answers.
    End,
    /// The limit of the request.
    Limit,
    /// The context was full.
    Full,
    /// A stop word.
    Word(String),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The text.
    pub text: String,
    /// The end of the text that no [`Piece`] brought, since it might have become something else.
    pub rest: String,
    /// The tokens, the one that ended the answer included.
    pub tokens: Vec<i32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens that the slot holds now.
    pub tokens_cached: usize,
    /// What it took.
    pub timings: Timings,
}

impl Decoder {
    /// Answers a prompt. `piece` is told of each token as it comes and may break off; `goes_on` is asked whenever a
    /// while has passed.
    ///
    /// Afterwards the slot holds the prompt and the answer, but for the last token, which was not evaluated.
    ///
    /// # Errors
    /// A prompt of no tokens or of too many; rows that cannot be reached;
    /// [`BrainError::Stopped`](crate::brain::BrainError::Stopped). The
    /// slot then holds what was evaluated.
    pub fn complete(
        &mut self,
        request: &Request,
        goes_on: &dyn Fn() -> bool,
        piece: &mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> Result<Completion, DecoderError> {
        let prompt = &request.prompt;
        self.check_prompt(prompt)?;
        self.own_cells()?;
        let known = if request.cache_prompt { self.known_of(prompt) } else { 0 };
        // From here on cells are overwritten; whatever happens, the slot must not claim them.
        self.tokens.truncate(known);
        let (brain, cells, tokens) = (Arc::clone(&self.brain), self.cells(), &mut self.tokens);
        self.cache.access(|cache| {
            let start = Instant::now();
            let answer = brain.begin(prompt, known, cache, goes_on)?;
            tokens.extend_from_slice(&prompt[known..]);
            let prompt_time = start.elapsed();

            let start = Instant::now();
            let mut writing = Writing::new(&*brain, answer, request);
            let stop = writing.run(tokens, cells, cache, goes_on, piece)?;
            let timings =
                Timings::new(known, prompt.len() - known, prompt_time, writing.n_predicted(), start.elapsed());
            Ok(writing.finish(stop, tokens.len(), timings))
        })
    }

    fn check_prompt(&self, prompt: &[i32]) -> Result<(), DecoderError> {
        let n_ctx = self.cells();
        if prompt.is_empty() {
            return Err(DecoderError::EmptyPrompt);
        }
        if prompt.len() as u64 >= n_ctx {
            return Err(DecoderError::ContextExceeded { n_prompt_tokens: prompt.len(), n_ctx });
        }
        Ok(())
    }

    /// How many of the prompt's first tokens the slot holds. The last one is always evaluated: only that says what
    /// comes next.
    fn known_of(&self, prompt: &[i32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(held, asked)| held == asked).count();
        common.min(prompt.len() - 1)
    }
}
