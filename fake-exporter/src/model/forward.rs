//! The forward pass: tokens in, K and V rows into the cache, the last token's logits out.

use std::error::Error;
use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use thiserror::Error as ThisError;

use super::attention::{Rope, attend};
use super::weights::{Layer, Weights};
use super::{Config, KeyValueCache, Model};

/// Tokens that are evaluated together at most, as llama-server's default `n_ubatch`.
const LONGEST_CHUNK: usize = 512;

/// Why tokens could not be evaluated. `E` is the cache's error.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum EvaluateError<E: Error + 'static> {
    /// There is nothing to evaluate.
    #[error("there are no tokens to evaluate; give at least one")]
    NoTokens,
    /// A token id is not in the vocabulary.
    #[error("the token id {token} is not in the model's vocabulary of {n_vocab}; tokenize with this model's tokenizer")]
    UnknownToken {
        /// The id.
        token: u32,
        /// The size of the vocabulary.
        n_vocab: usize,
    },
    /// The tokens do not fit into the model's context.
    #[error(
        "{count} tokens from position {first_position} on do not fit into the model's context of {n_ctx}; shorten the prompt"
    )]
    ContextExceeded {
        /// Where the tokens would start.
        first_position: usize,
        /// How many there are.
        count: usize,
        /// The positions that the model knows.
        n_ctx: usize,
    },
    /// The observer asked to stop.
    #[error("evaluation was stopped after about {done} of {total} tokens")]
    Stopped {
        /// Tokens that were done, about.
        done: usize,
        /// Tokens that were asked for.
        total: usize,
    },
    /// The cache could not be written or read.
    #[error("the KV cache of layer {layer} could not be used: {source}")]
    Cache {
        /// The layer.
        layer: usize,
        /// The cache's own words.
        source: E,
    },
    /// candle failed at arithmetic, for lack of memory, say.
    #[error("the model's arithmetic failed: {0}")]
    Arithmetic(#[from] candle_core::Error),
}

/// How far an evaluation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Tokens that are done. Several tokens pass a layer together; two of four layers count as half of these tokens.
    pub done: usize,
    /// Tokens that were asked for.
    pub total: usize,
}

impl Model {
    /// Evaluates `tokens` at the positions from `first_position` on, writes their K and V rows into `cache`, and
    /// answers the logits of the token that follows the last one: one for each token of the vocabulary.
    ///
    /// The cache must hold the rows of all positions before `first_position`.
    ///
    /// # Errors
    ///
    /// [`EvaluateError`]; K and V rows of these positions may have been written by then.
    ///
    /// # Examples
    ///
    /// ```
    /// use fake_exporter::model::{MemoryCache, Model, Precision, most_likely};
    ///
    /// let model = Model::embedded()?;
    /// let tokens = model.tokenizer().encode("<|im_start|>user\nWhat is the moon?<|im_end|>\n<|im_start|>assistant\n", true, true)?;
    /// let mut cache = MemoryCache::new(model.config(), 64, Precision::F16);
    ///
    /// let mut next = most_likely(&model.evaluate(&tokens, 0, &mut cache)?);
    /// let mut answer = Vec::new();
    /// for position in tokens.len().. {
    ///     if model.tokenizer().is_end(next) {
    ///         break;
    ///     }
    ///     answer.push(next);
    ///     next = most_likely(&model.evaluate(&[next], position, &mut cache)?);
    /// }
    /// assert_eq!(
    ///     model.tokenizer().decode(&answer),
    ///     "The moon is a big ball of rock in the sky. It goes around the Earth. We see it best at night.",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn evaluate<C: KeyValueCache>(
        &self,
        tokens: &[u32],
        first_position: usize,
        cache: &mut C,
    ) -> Result<Vec<f32>, EvaluateError<C::Error>> {
        self.evaluate_observed(tokens, first_position, cache, |_| ControlFlow::Continue(()))
    }

    /// Like [`evaluate`](Self::evaluate), and calls `observe` before each layer of each chunk of up to 512 tokens.
    /// It stops early when `observe` answers [`ControlFlow::Break`].
    ///
    /// # Errors
    ///
    /// [`EvaluateError`]; K and V rows of these positions may have been written by then.
    pub fn evaluate_observed<C: KeyValueCache>(
        &self,
        tokens: &[u32],
        first_position: usize,
        cache: &mut C,
        mut observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, EvaluateError<C::Error>> {
        let (config, weights) = (&self.config, &self.weights);
        check(config, tokens, first_position)?;

        let total = tokens.len();
        let mut last_row = Vec::new();
        let mut done = 0;
        for chunk in tokens.chunks(LONGEST_CHUNK) {
            let position = first_position + done;
            let mut hidden = embed(weights, chunk)?;
            let rope = Rope::new(config.architecture, &weights.rope_steps, position, chunk.len());
            for (index, layer) in weights.layers.iter().enumerate() {
                let done = done + chunk.len() * index / weights.layers.len();
                if observe(Progress { done, total }).is_break() {
                    return Err(EvaluateError::Stopped { done, total });
                }
                attention(config, layer, index, position, &rope, &mut hidden, cache)?;
                feed_forward(config, layer, &mut hidden)?;
            }
            done += chunk.len();
            last_row = hidden.split_off(hidden.len() - config.n_embd);
        }
        let normalized = rms_norm(&last_row, &weights.output_norm, config.rms_norm_epsilon);
        Ok(weights.output.multiply(&rows(normalized, config.n_embd)?)?)
    }
}

fn check<E: Error>(config: &Config, tokens: &[u32], first_position: usize) -> Result<(), EvaluateError<E>> {
    if tokens.is_empty() {
        return Err(EvaluateError::NoTokens);
    }
    if let Some(&token) = tokens.iter().find(|token| **token as usize >= config.n_vocab) {
        return Err(EvaluateError::UnknownToken { token, n_vocab: config.n_vocab });
    }
    let (count, n_ctx) = (tokens.len(), config.n_ctx_train);
    match first_position.checked_add(count) {
        Some(end) if end <= n_ctx => Ok(()),
        _ => Err(EvaluateError::ContextExceeded { first_position, count, n_ctx }),
    }
}

fn embed(weights: &Weights, tokens: &[u32]) -> Result<Vec<f32>, candle_core::Error> {
    let tokens = Tensor::new(tokens, &Device::Cpu)?;
    weights.token_embd.index_select(&tokens, 0)?.flatten_all()?.to_vec1()
}

/// Adds what the tokens take from those before them, and leaves their K and V in the cache.
fn attention<C: KeyValueCache>(
    config: &Config,
    layer: &Layer,
    index: usize,
    position: usize,
    rope: &Rope,
    hidden: &mut [f32],
    cache: &mut C,
) -> Result<(), EvaluateError<C::Error>> {
    let epsilon = config.rms_norm_epsilon;
    let input = rows(rms_norm(hidden, &layer.attn_norm, epsilon), config.n_embd)?;
    let mut q = layer.attn_q.multiply(&input)?;
    let mut k = layer.attn_k.multiply(&input)?;
    let v = layer.attn_v.multiply(&input)?;
    if let Some(norms) = &layer.head_norms {
        q = rms_norm(&q, &norms.q, epsilon);
        k = rms_norm(&k, &norms.k, epsilon);
    }
    rope.apply(&mut q, config.n_head * config.n_embd_head);
    rope.apply(&mut k, config.n_embd_k_gqa());

    // Attention must see what the decoder will see: the rows as the cache rounds them, not as they were computed.
    let cache_error = |source| EvaluateError::Cache { layer: index, source };
    let count = position + k.len() / config.n_embd_k_gqa();
    cache.write(index, position, &k, &v).map_err(cache_error)?;
    let mut k = vec![0.0; count * config.n_embd_k_gqa()];
    let mut v = vec![0.0; count * config.n_embd_v_gqa()];
    cache.read_k(index, count, &mut k).map_err(cache_error)?;
    cache.read_v(index, count, &mut v).map_err(cache_error)?;

    let attended = attend(config, position, &q, k, v)?;
    add(hidden, &layer.attn_output.multiply(&rows(attended, config.n_head * config.n_embd_head)?)?);
    Ok(())
}

/// Adds what the layer makes of each token by itself: `down(silu(gate) * up)`.
fn feed_forward(config: &Config, layer: &Layer, hidden: &mut [f32]) -> Result<(), candle_core::Error> {
    let input = rows(rms_norm(hidden, &layer.ffn_norm, config.rms_norm_epsilon), config.n_embd)?;
    let mut gate = layer.ffn_gate.multiply(&input)?;
    let up = layer.ffn_up.multiply(&input)?;
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate *= up / (1.0 + (-*gate).exp());
    }
    add(hidden, &layer.ffn_down.multiply(&rows(gate, config.n_ff)?)?);
    Ok(())
}

/// Divides each row of `weight.len()` values by its root mean square and multiplies it with `weight`.
fn rms_norm(values: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut normalized = Vec::with_capacity(values.len());
    for row in values.chunks_exact(weight.len()) {
        let mean_square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
        let scale = 1.0 / (mean_square + epsilon).sqrt();
        normalized.extend(row.iter().zip(weight).map(|(value, weight)| value * scale * weight));
    }
    normalized
}

fn rows(values: Vec<f32>, row_length: usize) -> Result<Tensor, candle_core::Error> {
    let count = values.len() / row_length;
    Tensor::from_vec(values, (count, row_length), &Device::Cpu)
}

fn add(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
    }
}
