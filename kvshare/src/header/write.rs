//! From a header to its JSON.

use serde_json::{Value, json};

use super::{Header, ModelIdentity, Params, VERSION};

impl Header {
    /// The header as JSON, with its digest.
    ///
    /// Regions without tensors are written as a foreign decoder would: that is a valid header, too.
    pub fn to_json(&self) -> Vec<u8> {
        let regions = self.regions.iter().map(|region| {
            json!({"fd": region.fd, "offset": region.offset, "size": region.size, "layout": region.layout,
                   "group": region.group})
        });
        let tensors = self.tensors.iter().map(|placed| {
            let (tensor, ne) = (&placed.tensor, placed.tensor.ne());
            // Every cache tensor of llama.cpp has up to three dimensions; only a fourth one is worth its bytes.
            let ne = if ne[3] == 1 { &ne[..3] } else { &ne[..] };
            json!({"name": tensor.name(), "type": tensor.tensor_type().name(), "ne": ne, "region": placed.region,
                   "offset": placed.offset})
        });
        let mut header = json!({
            "version": VERSION,
            "regions": regions.collect::<Vec<_>>(),
            "digest": self.digest(),
        });
        if !self.tensors.is_empty() {
            header["tensors"] = tensors.collect();
        }
        if let Some(model) = &self.model {
            header["model"] = model_json(model);
        }
        if let Some(params) = &self.params {
            header["params"] = params_json(params);
        }
        header.to_string().into_bytes()
    }
}

fn model_json(model: &ModelIdentity) -> Value {
    match &model.sha256 {
        Some(sha256) => json!({"name": model.name, "sha256": sha256}),
        None => json!({"name": model.name}),
    }
}

fn params_json(params: &Params) -> Value {
    json!({
        "n_ctx": params.n_ctx,
        "n_batch": params.n_batch,
        "n_ubatch": params.n_ubatch,
        "flash_attn": params.flash_attn,
        "type_k": params.type_k.name(),
        "type_v": params.type_v.name(),
        "v_trans": params.v_trans,
        "n_stream": params.n_stream,
        "n_rot_k": params.n_rot_k,
        "n_rot_v": params.n_rot_v,
    })
}
