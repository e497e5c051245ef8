//! The two things that tie a token to the others: its position (RoPE) and attention.

use candle_core::{Device, Tensor};

use super::{Architecture, Config};

/// The sines and cosines of a run of positions.
pub(super) struct Rope {
    /// For each position, for each pair of channels: (sine, cosine).
    turns: Vec<(f32, f32)>,
    pairs: usize,
    architecture: Architecture,
}

impl Rope {
    /// For `count` positions from `first_position` on.
    pub fn new(architecture: Architecture, steps: &[f64], first_position: usize, count: usize) -> Self {
        let positions = first_position..first_position + count;
        let turn = |position: usize, step: &f64| {
            let (sine, cosine) = (position as f64 * step).sin_cos();
            (sine as f32, cosine as f32)
        };
        let turns = positions.flat_map(|position| steps.iter().map(move |step| turn(position, step))).collect();
        Self { turns, pairs: steps.len(), architecture }
    }

    /// Turns every head of `rows`, which holds one row a position.
    pub fn apply(&self, rows: &mut [f32], row_length: usize) {
        for (row, turns) in rows.chunks_exact_mut(row_length).zip(self.turns.chunks_exact(self.pairs)) {
            for head in row.chunks_exact_mut(2 * self.pairs) {
                match self.architecture {
                    Architecture::Llama => {
                        for (pair, turn) in head.chunks_exact_mut(2).zip(turns) {
                            (pair[0], pair[1]) = rotate(pair[0], pair[1], *turn);
                        }
                    }
                    Architecture::Qwen3 => {
                        let (left, right) = head.split_at_mut(self.pairs);
                        for ((x, y), turn) in left.iter_mut().zip(right).zip(turns) {
                            (*x, *y) = rotate(*x, *y, *turn);
                        }
                    }
                }
            }
        }
    }
}

fn rotate(x: f32, y: f32, (sine, cosine): (f32, f32)) -> (f32, f32) {
    (x * cosine - y * sine, x * sine + y * cosine)
}

/// Causal attention of the tokens at `first_position..` over all positions up to their own.
///
/// `q` holds a row of all query heads for each of these tokens; `k` and `v` the cache's rows from position 0 to the last
/// token's. Answers a row like those of `q` for each token.
pub(super) fn attend(
    config: &Config,
    first_position: usize,
    q: &[f32],
    k: Vec<f32>,
    v: Vec<f32>,
) -> Result<Vec<f32>, candle_core::Error> {
    let (n_head_kv, n_embd_head) = (config.n_head_kv, config.n_embd_head);
    let n_embd_q = config.n_head * n_embd_head;
    let n_tokens = q.len() / n_embd_q;
    let n_kv = first_position + n_tokens;
    let k = Tensor::from_vec(k, (n_kv, n_head_kv, n_embd_head), &Device::Cpu)?;
    let v = Tensor::from_vec(v, (n_kv, n_head_kv, n_embd_head), &Device::Cpu)?;
    let scale = 1.0 / (n_embd_head as f32).sqrt();

    let mut attended = vec![0.0; q.len()];
    for group in 0..n_head_kv {
        let heads = group * config.n_gqa()..(group + 1) * config.n_gqa();
        let group_rows = heads.len() * n_tokens;

        // The query heads that share these K and V, one below the other: (head, token) rows.
        let mut queries = Vec::with_capacity(group_rows * n_embd_head);
        for head in heads.clone() {
            for row in q.chunks_exact(n_embd_q) {
                queries.extend(row[head * n_embd_head..][..n_embd_head].iter().map(|value| value * scale));
            }
        }
        let queries = Tensor::from_vec(queries, (group_rows, n_embd_head), &Device::Cpu)?;
        let k = k.narrow(1, group, 1)?.squeeze(1)?;
        let v = v.narrow(1, group, 1)?.squeeze(1)?;

        let mut weights = queries.matmul(&k.t()?)?.flatten_all()?.to_vec1::<f32>()?;
        for head_weights in weights.chunks_exact_mut(n_tokens * n_kv) {
            for (token, row) in head_weights.chunks_exact_mut(n_kv).enumerate() {
                let (past, future) = row.split_at_mut(first_position + token + 1);
                softmax(past);
                future.fill(0.0);
            }
        }
        let weights = Tensor::from_vec(weights, (group_rows, n_kv), &Device::Cpu)?;
        let values = weights.matmul(&v)?.flatten_all()?.to_vec1::<f32>()?;

        for (head, rows) in heads.zip(values.chunks_exact(n_tokens * n_embd_head)) {
            for (to, from) in attended.chunks_exact_mut(n_embd_q).zip(rows.chunks_exact(n_embd_head)) {
                to[head * n_embd_head..][..n_embd_head].copy_from_slice(from);
            }
        }
    }
    Ok(attended)
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    for value in row {
        *value /= sum;
    }
}
