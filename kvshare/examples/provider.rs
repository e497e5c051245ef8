//! A whole provider. Replace `attention_inputs` by your device's prefill.

use kvshare::provider::{self, Prefill};
use kvshare::rows::RowsError;

fn main() -> std::process::ExitCode {
    provider::run(prefill)
}

fn prefill(job: Prefill<'_>) -> Result<i32, RowsError> {
    for layer in job.cache.layers().to_vec() {
        for (position, &token) in (0..).zip(job.tokens) {
            let (k, v) = attention_inputs(layer.layer, position, token, layer.k.width, layer.v.width);
            job.cache.k_mut(layer.layer)?.write_f32(position, &k)?; // keys after RoPE
            job.cache.v_mut(layer.layer)?.write_f32(position, &v)?;
        }
    }
    Ok(0) // the likeliest next token, for the log
}

/// Stands in for a model: some numbers for each token's row.
fn attention_inputs(layer: u32, position: u64, token: i32, k_width: u64, v_width: u64) -> (Vec<f32>, Vec<f32>) {
    let row = |width| (0..width).map(|channel| (channel + position) as f32 + layer as f32 / token as f32).collect();
    (row(k_width), row(v_width))
}
