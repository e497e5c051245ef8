//! A GGUF that decodes over the decoder's cache.

use std::ops::ControlFlow;
use std::path::Path;

use kvshare::rows::MappedCache;

use super::{Answer, Brain, BrainError, CacheShape};
use crate::cache_rows::CacheRows;
use crate::model::{Message, Model, ModelError, most_likely};

/// A model with its name and origin.
pub struct ModelBrain {
    model: Model,
    name: String,
    source: String,
}

impl ModelBrain {
    /// Opens the GGUF at `path`, or the embedded one.
    ///
    /// # Errors
    /// Whatever is wrong with the file.
    pub fn open(path: Option<&Path>) -> Result<Self, ModelError> {
        Ok(match path {
            None => Self {
                model: Model::embedded()?,
                name: "kvshare-tiny.gguf".to_owned(),
                source: "embedded in this program".to_owned(),
            },
            Some(path) => Self {
                model: Model::open(path)?,
                name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
                source: path.display().to_string(),
            },
        })
    }
}

impl Brain for ModelBrain {
    fn name(&self) -> &str {
        &self.name
    }

    fn source(&self) -> &str {
        &self.source
    }

    fn cache_shape(&self) -> CacheShape {
        let config = self.model.config();
        CacheShape {
            layers: saturated(config.n_layer),
            k_width: config.n_embd_k_gqa() as u64,
            v_width: config.n_embd_v_gqa() as u64,
            head_size: saturated(config.n_embd_head),
        }
    }

    fn n_vocab(&self) -> u32 {
        saturated(self.model.config().n_vocab)
    }

    fn n_ctx_train(&self) -> u32 {
        saturated(self.model.config().n_ctx_train)
    }

    fn apply_template(&self, messages: &[Message]) -> Result<String, BrainError> {
        Ok(self.model.chat_template()?.render(messages)?)
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, BrainError> {
        let tokens = self.model.tokenizer().encode(text, add_special, parse_special)?;
        Ok(tokens.into_iter().map(u32::cast_signed).collect())
    }

    fn token_bytes(&self, token: i32) -> Vec<u8> {
        self.model.tokenizer().token_bytes(token.cast_unsigned())
    }

    fn is_end(&self, token: i32) -> bool {
        self.model.tokenizer().is_end(token.cast_unsigned())
    }

    fn begin<'a>(
        &'a self,
        prompt: &[i32],
        known: usize,
        cache: &mut MappedCache,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Answer + 'a>, BrainError> {
        let tokens: Vec<u32> = prompt[known..].iter().map(|token| token.cast_unsigned()).collect();
        let observe = |_| if goes_on() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let logits = self.model.evaluate_observed(&tokens, known, &mut CacheRows::new(cache), observe)?;
        Ok(Box::new(Continuation { model: &self.model, next: most_likely(&logits) }))
    }
}

/// The greedy continuation of a prompt.
struct Continuation<'a> {
    model: &'a Model,
    next: u32,
}

impl Answer for Continuation<'_> {
    fn next(&self) -> i32 {
        self.next.cast_signed()
    }

    fn advance(&mut self, position: usize, cache: &mut MappedCache) -> Result<(), BrainError> {
        let logits = self.model.evaluate(&[self.next], position, &mut CacheRows::new(cache))?;
        self.next = most_likely(&logits);
        Ok(())
    }
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
