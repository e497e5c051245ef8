//! No model: the answer tells whether the cache holds the checker's function.

use kvshare::rows::MappedCache;

use super::{Answer, Brain, BrainError, CacheShape};
use crate::checker;
use crate::model::Message;

/// The token after the 256 bytes, which ends an answer.
const END: i32 = 256;

/// A brain whose tokens are bytes and whose answer is a verdict on the rows in the cache.
///
/// Of a prompt's tokens it writes the rows that it evaluates itself, by [`checker::write`]. Then it compares the rows of
/// *all* the prompt's tokens with the function, wherever they came from, and answers with what it found.
#[derive(Clone, Debug)]
pub struct CheckerBrain {
    shape: CacheShape,
}

impl CheckerBrain {
    /// A checker of caches of `layers` layers, K rows of `k_width` and V rows of `v_width` channels.
    pub fn new(layers: u32, k_width: u64, v_width: u64) -> Self {
        Self { shape: CacheShape { layers, k_width, v_width, head_size: 0 } }
    }

    fn verdict(&self, prompt: &[i32], cache: &MappedCache) -> Result<String, BrainError> {
        Ok(match checker::first_mismatch(cache, prompt)? {
            Some(mismatch) => format!("wrong: {mismatch}"),
            None => {
                let (positions, layers) = (prompt.len(), self.shape.layers);
                format!("every element of {positions} positions in {layers} layers is right")
            }
        })
    }
}

impl Brain for CheckerBrain {
    fn name(&self) -> &str {
        "checker"
    }

    fn source(&self) -> &str {
        "none: this is the checker"
    }

    fn cache_shape(&self) -> CacheShape {
        self.shape
    }

    fn n_vocab(&self) -> u32 {
        END.cast_unsigned() + 1
    }

    fn n_ctx_train(&self) -> u32 {
        u32::MAX
    }

    fn apply_template(&self, messages: &[Message]) -> Result<String, BrainError> {
        let lines = messages.iter().map(|message| format!("{}: {}\n", message.role, message.content.text()));
        Ok(lines.chain(["assistant: ".to_owned()]).collect())
    }

    fn tokenize(&self, text: &str, _add_special: bool, _parse_special: bool) -> Result<Vec<i32>, BrainError> {
        Ok(text.bytes().map(i32::from).collect())
    }

    fn token_bytes(&self, token: i32) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn is_end(&self, token: i32) -> bool {
        token == END
    }

    fn begin<'a>(
        &'a self,
        prompt: &[i32],
        known: usize,
        cache: &mut MappedCache,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Answer + 'a>, BrainError> {
        checker::write(cache, &prompt[known..], known as u64)?;
        if !goes_on() {
            return Err(BrainError::Stopped);
        }
        Ok(Box::new(Verdict { left: self.verdict(prompt, cache)?.into_bytes().into_iter() }))
    }
}

/// The bytes of a verdict that are not said yet.
struct Verdict {
    left: std::vec::IntoIter<u8>,
}

impl Answer for Verdict {
    fn next(&self) -> i32 {
        self.left.as_slice().first().map_or(END, |byte| i32::from(*byte))
    }

    fn advance(&mut self, position: usize, cache: &mut MappedCache) -> Result<(), BrainError> {
        checker::write(cache, &[self.next()], position as u64)?;
        self.left.next();
        Ok(())
    }
}
