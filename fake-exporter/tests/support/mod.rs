//! What the tests of both models share: the stock llama-server's samples, and how close to them is close enough.

use std::fs;
use std::path::PathBuf;

use fake_exporter::model::{KeyValueCache, MemoryCache, Model, Precision, log_probability, most_likely};
use half::f16;
use serde_json::Value;

/// A file of the repository's `tests/data/samples`.
pub fn sample(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/samples")).join(path)
}

pub fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap().try_into().unwrap()).collect()
}

/// One prompt that the stock server evaluated, saved and continued.
pub struct StockSample {
    pub file: PathBuf,
    pub prompt: String,
    pub tokens: Vec<u32>,
    pub greedy_tokens: Vec<u32>,
    pub first_token: u32,
    pub first_token_log_probability: f32,
}

/// The samples of an index whose cache is not quantized and whose server had one slot.
pub fn stock_samples(index: &str) -> Vec<StockSample> {
    let index = sample(index);
    let entries = json(index.clone());
    let entries = entries.as_array().unwrap().iter().filter(|entry| {
        let args: Vec<&str> = entry["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
        args[..2] == ["-np", "1"] && !args.contains(&"q8_0")
    });
    let samples = entries.map(|entry| StockSample {
        file: index.with_file_name(entry["file"].as_str().unwrap()),
        prompt: entry["prompt"].as_str().unwrap().to_owned(),
        tokens: ids(&entry["tokens"]),
        greedy_tokens: ids(&entry["greedy_tokens"]),
        first_token: entry["first_token_top3"][0]["id"].as_u64().unwrap() as u32,
        first_token_log_probability: entry["first_token_top3"][0]["logprob"].as_f64().unwrap() as f32,
    });
    let samples: Vec<_> = samples.collect();
    assert!(samples.len() >= 4, "the index has samples");
    samples
}

/// K and V of every layer in a state file, as f32 rows.
struct StateRows {
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

/// A reader of the bytes of a sequence-state file (version 4, one slot; see `kvshare::state_file` for the real one).
struct StateReader(Vec<u8>);

impl StateReader {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.0.drain(..count).collect()
    }

    fn u32(&mut self) -> usize {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap()) as usize
    }

    fn values(&mut self, ggml_type: usize, count: usize) -> Vec<f32> {
        match ggml_type {
            0 => self.bytes(4 * count).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            1 => self.bytes(2 * count).chunks(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect(),
            other => panic!("ggml type {other}"),
        }
    }

    /// A K or V record that holds row after row.
    fn rows(&mut self, cells: usize) -> Vec<f32> {
        let ggml_type = self.u32();
        let row_size = u64::from_le_bytes(self.bytes(8).try_into().unwrap()) as usize;
        self.values(ggml_type, cells * row_size / if ggml_type == 0 { 4 } else { 2 })
    }

    /// A V record that holds channel after channel.
    fn transposed_rows(&mut self, cells: usize) -> Vec<f32> {
        let (ggml_type, _element_size, channels) = (self.u32(), self.u32(), self.u32());
        let values = self.values(ggml_type, channels * cells);
        (0..cells).flat_map(|cell| values.iter().skip(cell).step_by(cells).copied().collect::<Vec<_>>()).collect()
    }

    fn read(bytes: Vec<u8>) -> StateRows {
        let mut file = Self(bytes);
        file.bytes(8);
        let words = file.u32();
        file.bytes(4 * words);
        assert_eq!(file.u32(), 1, "streams");
        let cells = file.u32();
        file.bytes(12 * cells);
        let (v_trans, layers, _n_rot_k, _n_rot_v) = (file.u32(), file.u32(), file.u32(), file.u32());
        let k = (0..layers).map(|_| file.rows(cells)).collect();
        let v =
            (0..layers).map(|_| if v_trans == 1 { file.transposed_rows(cells) } else { file.rows(cells) }).collect();
        assert_eq!(file.0.len(), 0, "bytes left");
        StateRows { k, v }
    }
}

/// The rows that `model` computes for a prompt must be as close to the stock server's as any right implementation is.
///
/// The server rounds activations to 8 bits before each product, and so differs from f32 arithmetic, and from itself
/// with other settings, by up to 2.6 % (K) and 5.9 % (V) in a layer. A wrong RoPE base, a position off by one, a wrong
/// grouping of heads or a dropped layer leaves these bounds.
pub fn assert_rows_agree(model: &Model, sample: &StockSample) {
    let stock = StateReader::read(fs::read(&sample.file).unwrap());
    let config = model.config();
    let count = sample.tokens.len();
    assert_eq!(stock.k.len(), config.n_layer);

    let mut cache = MemoryCache::new(config, count, Precision::F16);
    model.evaluate(&sample.tokens, 0, &mut cache).unwrap();
    let (mut k_errors, mut v_errors) = (Vec::new(), Vec::new());
    for layer in 0..config.n_layer {
        let mut rows = vec![0.0; count * config.n_embd_k_gqa()];
        cache.read_k(layer, count, &mut rows).unwrap();
        k_errors.push(relative_error(&rows, &stock.k[layer]));
        cache.read_v(layer, count, &mut rows).unwrap();
        v_errors.push(relative_error(&rows, &stock.v[layer]));
    }
    let file = sample.file.display();
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    let largest = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
    for (what, errors, first, each, all) in [("K", k_errors, 0.006, 0.04, 0.022), ("V", v_errors, 0.02, 0.08, 0.05)] {
        assert!(errors[0] <= first, "{file}: {what} of layer 0 is off by {:.4}", errors[0]);
        assert!(largest(&errors) <= each, "{file}: {what} of a layer is off by {:.4}", largest(&errors));
        assert!(mean(&errors) <= all, "{file}: {what} is off by {:.4} in the mean", mean(&errors));
    }
}

fn relative_error(values: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(values.len(), reference.len());
    let square = |value: f32| f64::from(value) * f64::from(value);
    let difference: f64 = values.iter().zip(reference).map(|(value, reference)| square(value - reference)).sum();
    let norm: f64 = reference.iter().copied().map(square).sum();
    (difference / norm).sqrt()
}

/// The first token and its probability are the stock server's.
pub fn assert_first_token_agrees(model: &Model, sample: &StockSample) {
    let mut cache = MemoryCache::new(model.config(), sample.tokens.len(), Precision::F16);
    let logits = model.evaluate(&sample.tokens, 0, &mut cache).unwrap();
    assert_eq!(most_likely(&logits), sample.first_token, "{:?}", sample.prompt);
    let difference = log_probability(&logits, sample.first_token).unwrap() - sample.first_token_log_probability;
    assert!(difference.abs() <= 0.5, "{:?}: the log-probability is off by {difference}", sample.prompt);
}
