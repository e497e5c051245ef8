//! The parameters of a completion, as the stock server lists them. All but the limits say "greedy".

use serde_json::{Map, Value, json};

use crate::decoder::Request;

/// Parameters of samplers that greedy decoding does not use, at the values that change nothing.
const UNUSED: [(&str, f64); 18] = [
    ("temperature", 0.0),
    ("dynatemp_range", 0.0),
    ("dynatemp_exponent", 1.0),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("top_n_sigma", -1.0),
    ("xtc_probability", 0.0),
    ("xtc_threshold", 1.0),
    ("typical_p", 1.0),
    ("repeat_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("dry_multiplier", 0.0),
    ("dry_base", 1.0),
    ("mirostat_tau", 0.0),
    ("mirostat_eta", 0.0),
    ("adaptive_target", -1.0),
    ("adaptive_decay", 0.0),
];

/// The `params` of `/slots` and `/props`.
pub(super) fn parameters(request: &Request, stream: bool) -> Value {
    let n_predict = request.n_predict.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let unused: Map<String, Value> = UNUSED.map(|(name, value)| (name.to_owned(), json!(value))).into_iter().collect();
    let used = json!({
        "seed": 0, "top_k": 1, "repeat_last_n": 0, "dry_allowed_length": 0, "dry_penalty_last_n": 0, "mirostat": 0, "max_tokens": n_predict, "n_predict": n_predict,
        "n_keep": 0, "n_discard": 0, "ignore_eos": false, "stream": stream, "n_probs": 0, "min_keep": 0,
        "chat_format": "Content-only", "reasoning_format": "none", "reasoning_in_content": false,
        "generation_prompt": "", "samplers": ["greedy"], "speculative.types": "none", "timings_per_token": false,
        "post_sampling_probs": false, "backend_sampling": false, "lora": [],
    });
    joined(unused.into(), used)
}

/// The `generation_settings` of a reply of `/completion`.
pub(super) fn generation_settings(request: &Request, stream: bool) -> Value {
    let further = json!({
        "dry_sequence_breakers": [], "stop": request.stop_words, "logit_bias": [], "grammar": "", "grammar_lazy": false,
        "grammar_triggers": [], "preserved_tokens": [],
    });
    joined(parameters(request, stream), further)
}

fn joined(mut object: Value, further: Value) -> Value {
    if let (Value::Object(object), Value::Object(further)) = (&mut object, further) {
        object.extend(further);
    }
    object
}
