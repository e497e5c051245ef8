//! Models made up on the spot agree with the same arithmetic written as plainly as possible, one number at a time in
//! f64. This covers what the two real models of the other tests do not have: qwen3, heads of another length than
//! `n_embd / n_head`, an output matrix of its own, slowed-down RoPE, and a vocabulary for `qwen2` with a BOS.

use std::collections::HashMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use fake_exporter::model::{Architecture, MemoryCache, Model, Precision};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

const N_LAYER: usize = 2;
const N_EMBD: usize = 24;
const N_HEAD: usize = 4;
const N_HEAD_KV: usize = 2;
const N_EMBD_HEAD: usize = 10;
const N_FF: usize = 20;
const N_VOCAB: usize = 262;
const ROPE_BASE: f32 = 5000.0;
const EPSILON: f32 = 1e-6;

/// The values of a row, head by head.
type Heads = Vec<Vec<f64>>;

/// A model of random weights.
struct Plain {
    architecture: &'static str,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Plain {
    fn new(architecture: &'static str) -> Self {
        let (q, kv) = (N_HEAD * N_EMBD_HEAD, N_HEAD_KV * N_EMBD_HEAD);
        let mut model = Self { architecture, tensors: HashMap::new() };
        model.add("token_embd", &[N_VOCAB, N_EMBD], 0.0);
        model.add("output_norm", &[N_EMBD], 1.0);
        for layer in 0..N_LAYER {
            for (name, shape, center) in [
                ("attn_norm", &[N_EMBD][..], 1.0),
                ("attn_q", &[q, N_EMBD], 0.0),
                ("attn_k", &[kv, N_EMBD], 0.0),
                ("attn_v", &[kv, N_EMBD], 0.0),
                ("attn_output", &[N_EMBD, q], 0.0),
                ("ffn_norm", &[N_EMBD], 1.0),
                ("ffn_gate", &[N_FF, N_EMBD], 0.0),
                ("ffn_up", &[N_FF, N_EMBD], 0.0),
                ("ffn_down", &[N_EMBD, N_FF], 0.0),
            ] {
                model.add(&format!("blk.{layer}.{name}"), shape, center);
            }
            if architecture == "qwen3" {
                model.add(&format!("blk.{layer}.attn_q_norm"), &[N_EMBD_HEAD], 1.0);
                model.add(&format!("blk.{layer}.attn_k_norm"), &[N_EMBD_HEAD], 1.0);
            }
        }
        model
    }

    fn add(&mut self, name: &str, shape: &[usize], center: f32) {
        let mut state = self.tensors.len() as u32 + 1;
        let value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            center + (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let values = std::iter::repeat_with(value).take(shape.iter().product()).collect();
        self.tensors.insert(format!("{name}.weight"), (shape.to_vec(), values));
    }

    fn gguf(&self) -> Vec<u8> {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let mut tokens: Vec<String> = alphabet.into_iter().map(String::from).collect();
        tokens.extend(["12", "'M", "<|end_of_text|>", "<think>", "<bos>", "<eos>"].map(String::from));
        let mut types = vec![1; 258];
        types.extend([3, 4, 3, 3]);

        let architecture = self.architecture;
        let key = |name: &str| format!("{architecture}.{name}");
        let number = |value: usize| Value::U32(value as u32);
        let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
        let metadata = [
            ("general.architecture".to_owned(), Value::String(architecture.to_owned())),
            (key("block_count"), number(N_LAYER)),
            (key("context_length"), number(64)),
            (key("embedding_length"), number(N_EMBD)),
            (key("feed_forward_length"), number(N_FF)),
            (key("attention.head_count"), number(N_HEAD)),
            (key("attention.head_count_kv"), number(N_HEAD_KV)),
            (key("attention.key_length"), number(N_EMBD_HEAD)),
            (key("attention.value_length"), number(N_EMBD_HEAD)),
            (key("attention.layer_norm_rms_epsilon"), Value::F32(EPSILON)),
            (key("rope.freq_base"), Value::F32(ROPE_BASE)),
            ("tokenizer.ggml.model".to_owned(), Value::String("gpt2".to_owned())),
            ("tokenizer.ggml.pre".to_owned(), Value::String("qwen2".to_owned())),
            ("tokenizer.ggml.tokens".to_owned(), texts(tokens)),
            ("tokenizer.ggml.token_type".to_owned(), Value::Array(types.into_iter().map(Value::I32).collect())),
            ("tokenizer.ggml.merges".to_owned(), texts(["1 2", "' M"].map(String::from).to_vec())),
            ("tokenizer.ggml.bos_token_id".to_owned(), number(260)),
            ("tokenizer.ggml.eos_token_id".to_owned(), number(261)),
            ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(true)),
        ];
        let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<(&str, QTensor)> = self
            .tensors
            .iter()
            .map(|(name, (shape, values))| {
                let tensor = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).unwrap();
                (name.as_str(), QTensor::quantize(&tensor, GgmlDType::F32).unwrap())
            })
            .collect();
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut bytes = Cursor::new(Vec::new());
        gguf_file::write(&mut bytes, &metadata, &tensors).unwrap();
        bytes.into_inner()
    }

    fn model(&self) -> Model {
        Model::read(Cursor::new(self.gguf())).unwrap()
    }

    fn tensor(&self, name: &str) -> &[f32] {
        &self.tensors[&format!("{name}.weight")].1
    }

    fn multiply(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let dot = |row: &[f32]| row.iter().zip(input).map(|(weight, value)| f64::from(*weight) * value).sum();
        self.tensor(name).chunks(input.len()).map(dot).collect()
    }

    fn norm(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let mean_square = input.iter().map(|value| value * value).sum::<f64>() / input.len() as f64;
        let root = (mean_square + f64::from(EPSILON)).sqrt();
        input.iter().zip(self.tensor(name)).map(|(value, weight)| value / root * f64::from(*weight)).collect()
    }

    fn heads(&self, norm: &str, position: usize, row: &[f64]) -> Heads {
        let turn = |head: &[f64]| {
            let mut head = if self.architecture == "qwen3" { self.norm(norm, head) } else { head.to_vec() };
            for pair in 0..N_EMBD_HEAD / 2 {
                let factor = self.tensors.get("rope_freqs.weight").map_or(1.0, |(_, factors)| f64::from(factors[pair]));
                let frequency = f64::from(ROPE_BASE).powf(-2.0 * pair as f64 / N_EMBD_HEAD as f64) / factor;
                let (sine, cosine) = (position as f64 * frequency).sin_cos();
                let (a, b) = match self.architecture {
                    "qwen3" => (pair, pair + N_EMBD_HEAD / 2),
                    _ => (2 * pair, 2 * pair + 1),
                };
                (head[a], head[b]) = (head[a] * cosine - head[b] * sine, head[a] * sine + head[b] * cosine);
            }
            head
        };
        row.chunks(N_EMBD_HEAD).map(turn).collect()
    }

    /// The logits after the last token.
    fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        // K and V by layer, then position.
        let mut past: Vec<Vec<(Heads, Heads)>> = vec![Vec::new(); N_LAYER];
        let mut hidden = Vec::new();
        for (position, &token) in tokens.iter().enumerate() {
            hidden =
                self.tensor("token_embd")[token as usize * N_EMBD..][..N_EMBD].iter().copied().map(f64::from).collect();
            for (layer, past) in past.iter_mut().enumerate() {
                let name = |tensor: &str| format!("blk.{layer}.{tensor}");
                let input = self.norm(&name("attn_norm"), &hidden);
                let q = self.heads(&name("attn_q_norm"), position, &self.multiply(&name("attn_q"), &input));
                let k = self.heads(&name("attn_k_norm"), position, &self.multiply(&name("attn_k"), &input));
                let v = self.multiply(&name("attn_v"), &input).chunks(N_EMBD_HEAD).map(<[f64]>::to_vec).collect();
                past.push((k, v));

                let mut attended = Vec::new();
                for (head, q) in q.iter().enumerate() {
                    let group = head / (N_HEAD / N_HEAD_KV);
                    let score =
                        |k: &[f64]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (N_EMBD_HEAD as f64).sqrt();
                    let weights: Vec<f64> = past.iter().map(|(k, _)| score(&k[group]).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    attended.extend((0..N_EMBD_HEAD).map(|channel| {
                        past.iter().zip(&weights).map(|((_, v), weight)| v[group][channel] * weight / sum).sum::<f64>()
                    }));
                }
                add(&mut hidden, &self.multiply(&name("attn_output"), &attended));

                let input = self.norm(&name("ffn_norm"), &hidden);
                let gate = self.multiply(&name("ffn_gate"), &input);
                let up = self.multiply(&name("ffn_up"), &input);
                let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                add(&mut hidden, &self.multiply(&name("ffn_down"), &inner));
            }
        }
        let output = if self.tensors.contains_key("output.weight") { "output" } else { "token_embd" };
        self.multiply(output, &self.norm("output_norm", &hidden))
    }
}

fn add(to: &mut [f64], values: &[f64]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
    }
}

fn assert_agrees(plain: &Plain) {
    let tokens: Vec<u32> = (0..40).map(|index| index * 7 % 256).collect();
    let expected = plain.logits(&tokens);
    let model = plain.model();
    let mut cache = MemoryCache::new(model.config(), tokens.len(), Precision::F32);
    let logits = model.evaluate(&tokens, 0, &mut cache).unwrap();
    assert_eq!(logits.len(), expected.len());
    let largest = expected.iter().fold(0.0, |largest: f64, logit| largest.max(logit.abs()));
    assert!(largest > 1.0, "the logits say something: {largest}");
    for (logit, expected) in logits.iter().zip(&expected) {
        assert!((f64::from(*logit) - expected).abs() < 1e-4, "{logit} instead of {expected}");
    }
}

#[test]
fn a_llama_agrees() {
    assert_agrees(&Plain::new("llama"));
}

#[test]
fn a_llama_with_an_output_matrix_of_its_own_agrees() {
    let mut plain = Plain::new("llama");
    plain.add("output", &[N_VOCAB, N_EMBD], 0.0);
    assert_agrees(&plain);
}

#[test]
fn a_llama_with_slowed_down_rope_agrees() {
    let mut plain = Plain::new("llama");
    plain.add("rope_freqs", &[N_EMBD_HEAD / 2], 4.0);
    assert_agrees(&plain);
}

#[test]
fn a_qwen3_agrees() {
    let plain = Plain::new("qwen3");
    assert_agrees(&plain);
    assert_eq!(plain.model().config().architecture, Architecture::Qwen3);
}

#[test]
fn a_tensor_of_another_shape_than_the_metadata_calls_for_is_refused_by_name() {
    let mut plain = Plain::new("qwen3");
    plain.add("blk.1.attn_k_norm", &[N_EMBD_HEAD + 1], 1.0);
    assert_eq!(
        Model::read(Cursor::new(plain.gguf())).unwrap_err().to_string(),
        "the tensor \"blk.1.attn_k_norm.weight\" has the shape [11], and the metadata calls for [10]; convert the model again",
    );
}

#[test]
fn qwen2_words_are_cut_as_llama_cpp_cuts_them() {
    let model = Plain::new("qwen3").model();
    let tokenizer = model.tokenizer();
    let names = |text| -> Vec<String> {
        let tokens = tokenizer.encode(text, false, true).unwrap();
        tokens.into_iter().map(|token| tokenizer.name(token).unwrap().to_owned()).collect()
    };
    // Contractions in capitals are words; digits are one word each, so that "1 2" never merges.
    assert_eq!(names("I'M 12"), ["I", "'M", "Ġ", "1", "2"]);
}

#[test]
fn special_tokens_of_each_kind_are_added_parsed_and_written_as_llama_cpp_does() {
    let model = Plain::new("qwen3").model();
    let tokenizer = model.tokenizer();
    assert_eq!(tokenizer.encode("<think>", true, true).unwrap(), [260, 259], "BOS first");
    assert_eq!(tokenizer.encode("<think>", false, false).unwrap(), [259], "a user-defined token is always one");
    assert_eq!(tokenizer.encode("<eos>", false, true).unwrap(), [261]);
    assert_eq!(tokenizer.encode("<eos>", false, false).unwrap().len(), 5, "a control token's name is a text");
    assert_eq!(tokenizer.decode(&[260, 259, 257, 261]), "<think>'M");
    let ends: Vec<u32> = (0..N_VOCAB as u32).filter(|&token| tokenizer.is_end(token)).collect();
    assert_eq!(ends, [258, 261]);
}

#[test]
fn a_model_without_a_chat_template_says_so() {
    let model = Plain::new("llama").model();
    assert_eq!(
        model.chat_template().unwrap_err().to_string(),
        "the model has no chat template (\"tokenizer.chat_template\"); send a plain prompt, or use an instruct model"
    );
}
