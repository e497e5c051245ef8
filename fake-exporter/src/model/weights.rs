//! A model's weights: read from the GGUF and turned into f32 once.

use std::io::{Read, Seek};

use candle_core::Tensor;

use super::gguf::{Gguf, GgufError};
use super::{Architecture, Config};

/// A weight matrix, ready to multiply rows of values with.
pub(super) struct Matrix {
    /// `[inputs, outputs]`: a view of the GGUF's `[outputs, inputs]`.
    transposed: Tensor,
}

impl Matrix {
    fn new(weight: &Tensor) -> Result<Self, candle_core::Error> {
        Ok(Self { transposed: weight.t()? })
    }

    /// Multiplies `[rows, inputs]` to `[rows, outputs]`, row after row.
    pub fn multiply(&self, rows: &Tensor) -> Result<Vec<f32>, candle_core::Error> {
        rows.matmul(&self.transposed)?.flatten_all()?.to_vec1()
    }
}

/// The weights of one layer, under the GGUF's names.
pub(super) struct Layer {
    pub attn_norm: Vec<f32>,
    pub attn_q: Matrix,
    pub attn_k: Matrix,
    pub attn_v: Matrix,
    /// Norms of each Q and K head (qwen3 only).
    pub head_norms: Option<HeadNorms>,
    pub attn_output: Matrix,
    pub ffn_norm: Vec<f32>,
    pub ffn_gate: Matrix,
    pub ffn_up: Matrix,
    pub ffn_down: Matrix,
}

pub(super) struct HeadNorms {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
}

/// All weights of a model.
pub(super) struct Weights {
    /// `[n_vocab, n_embd]`.
    pub token_embd: Tensor,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    pub output: Matrix,
    /// By how much each pair of a head's channels turns from one position to the next, in radians.
    pub rope_steps: Vec<f64>,
}

impl Weights {
    pub fn read(gguf: &mut Gguf<impl Read + Seek>, config: &Config) -> Result<Self, GgufError> {
        let token_embd = gguf.tensor("token_embd.weight", &[config.n_vocab, config.n_embd])?;
        let output = match gguf.has_tensor("output.weight") {
            true => Matrix::new(&gguf.tensor("output.weight", &[config.n_vocab, config.n_embd])?)?,
            false => Matrix::new(&token_embd)?,
        };
        let mut layers = Vec::new();
        for index in 0..config.n_layer {
            layers.push(Layer::read(gguf, config, index)?);
        }
        let output_norm = gguf.vector("output_norm.weight", config.n_embd)?;
        let rope_steps = rope_steps(gguf, config)?;
        gguf.all_tensors_used()?;
        Ok(Self { token_embd, layers, output_norm, output, rope_steps })
    }
}

impl Layer {
    fn read(gguf: &mut Gguf<impl Read + Seek>, config: &Config, index: usize) -> Result<Self, GgufError> {
        let n_embd = config.n_embd;
        let n_embd_q = config.n_head * config.n_embd_head;
        let name = |tensor: &str| format!("blk.{index}.{tensor}.weight");
        let mut matrix = |tensor: &str, outputs: usize, inputs: usize| -> Result<Matrix, GgufError> {
            Ok(Matrix::new(&gguf.tensor(&name(tensor), &[outputs, inputs])?)?)
        };
        let attn_q = matrix("attn_q", n_embd_q, n_embd)?;
        let attn_k = matrix("attn_k", config.n_embd_k_gqa(), n_embd)?;
        let attn_v = matrix("attn_v", config.n_embd_v_gqa(), n_embd)?;
        let attn_output = matrix("attn_output", n_embd, n_embd_q)?;
        let ffn_gate = matrix("ffn_gate", config.n_ff, n_embd)?;
        let ffn_up = matrix("ffn_up", config.n_ff, n_embd)?;
        let ffn_down = matrix("ffn_down", n_embd, config.n_ff)?;
        let head_norms = match config.architecture {
            Architecture::Llama => None,
            Architecture::Qwen3 => Some(HeadNorms {
                q: gguf.vector(&name("attn_q_norm"), config.n_embd_head)?,
                k: gguf.vector(&name("attn_k_norm"), config.n_embd_head)?,
            }),
        };
        let attn_norm = gguf.vector(&name("attn_norm"), n_embd)?;
        let ffn_norm = gguf.vector(&name("ffn_norm"), n_embd)?;
        Ok(Self { attn_norm, attn_q, attn_k, attn_v, head_norms, attn_output, ffn_norm, ffn_gate, ffn_up, ffn_down })
    }
}

/// Pair i of a head of n channels turns by `base^(-2i/n)` a position; Llama 3 slows some pairs down by a factor that its
/// GGUF brings along (`rope_freqs.weight`; `ggml_compute_forward_rope` in ggml/src/ggml-cpu/ops.cpp divides by it).
fn rope_steps(gguf: &mut Gguf<impl Read + Seek>, config: &Config) -> Result<Vec<f64>, GgufError> {
    let pairs = config.n_embd_head / 2;
    let factors = match gguf.has_tensor("rope_freqs.weight") {
        true => gguf.vector("rope_freqs.weight", pairs)?,
        false => vec![1.0; pairs],
    };
    let base = f64::from(config.rope_freq_base);
    let steps = factors.iter().enumerate().map(|(pair, factor)| {
        let exponent = -2.0 * pair as f64 / config.n_embd_head as f64;
        base.powf(exponent) / f64::from(*factor)
    });
    Ok(steps.collect())
}
