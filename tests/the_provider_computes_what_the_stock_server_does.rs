//! The reference provider, run as a program on the file route, leaves a state file whose K and V rows are the stock
//! llama-server's own within the noise that the server has against itself, and names the server's first token.

use std::io::Cursor;
use std::path::Path;
use std::process::Command;

use kvshare::provider::{ResultLine, format_tokens};
use kvshare::state_file::{CacheSink, Half, ReadOptions, Run, StateFile, StateShape};
use kvshare::values::decode_row;
use kvshare_tests::{sample, smollm2};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

/// The bounds of a right implementation (docs, "Facts about llama.cpp"): each layer, the mean, and layer 0.
const BOUNDS: [(Half, f64, f64, f64); 2] = [(Half::K, 0.04, 0.022, 0.006), (Half::V, 0.08, 0.05, 0.02)];

/// K and V of every layer as f32, each position's row after the other.
struct Rows {
    shape: StateShape,
    cells: usize,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

impl Rows {
    fn read(bytes: &[u8]) -> (StateFile, Self) {
        let file = StateFile::parse(bytes, ReadOptions::default()).unwrap();
        let (_, stream) = file.occupied().next().unwrap();
        let (shape, cells) = (stream.shape.clone(), stream.cells.len());
        let empty =
            |half| shape.layers.iter().map(|layer| vec![0.0; layer.half(half).width as usize * cells]).collect();
        let (k, v) = (empty(Half::K), empty(Half::V));
        let mut rows = Self { shape, cells, k, v };
        file.scatter(Cursor::new(bytes), &mut rows).unwrap();
        (file, rows)
    }

    fn half(&self, half: Half) -> &[Vec<f32>] {
        if half == Half::K { &self.k } else { &self.v }
    }

    fn layer_mut(&mut self, run: &Run) -> (&mut Vec<f32>, usize) {
        let width = self.shape.layers[run.layer].half(run.half).width as usize;
        let half = if run.half == Half::K { &mut self.k } else { &mut self.v };
        (&mut half[run.layer], width)
    }
}

impl CacheSink for Rows {
    type Error = kvshare::values::ValuesError;

    fn shape(&self) -> StateShape {
        self.shape.clone()
    }

    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), Self::Error> {
        let tensor_type = self.shape.layers[run.layer].half(run.half).tensor_type;
        let (layer, width) = self.layer_mut(run);
        decode_row(tensor_type, rows, &mut layer[run.cells.start as usize * width..run.cells.end as usize * width])
    }

    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), Self::Error> {
        let tensor_type = self.shape.layers[run.layer].half(run.half).tensor_type;
        let mut values = vec![0.0; (run.cells.end - run.cells.start) as usize];
        decode_row(tensor_type, elements, &mut values)?;
        let (layer, width) = self.layer_mut(run);
        for (cell, value) in run.cells.clone().zip(values) {
            layer[cell as usize * width + channel as usize] = value;
        }
        Ok(())
    }
}

fn relative_error(ours: &[f32], theirs: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value).powi(2);
    let off: f64 = ours.iter().zip(theirs).map(|(ours, theirs)| square(ours - theirs)).sum();
    (off / theirs.iter().copied().map(square).sum::<f64>()).sqrt()
}

/// Runs the provider on the tokens of a sample, in the sample's own types, and returns its file and result.
fn provide(model: Option<&Path>, tokens: &[i32], shape: &StateShape) -> (Vec<u8>, ResultLine) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tokens"), format_tokens(tokens)).unwrap();
    let mut program = Command::new(PROGRAM);
    program.current_dir(directory.path()).args(["reference-provider", "--tokens", "tokens", "--out", "state.bin"]);
    program.args(["--type-k", shape.layers[0].k.tensor_type.name(), "--type-v", shape.layers[0].v.tensor_type.name()]);
    if shape.v_trans {
        program.arg("--v-trans");
    }
    if let Some(model) = model {
        program.arg("--model").arg(model);
    }
    let output = program.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let result = stdout.lines().last().unwrap().parse().unwrap();
    (std::fs::read(directory.path().join("state.bin")).unwrap(), result)
}

fn compare(model: Option<&Path>, index: &str) {
    let index = sample(index);
    let entries: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let mut compared = 0;
    for entry in entries.as_array().unwrap() {
        let name = entry["file"].as_str().unwrap();
        let stock_bytes = std::fs::read(index.with_file_name(name)).unwrap();
        // A quantized cache has a noise of its own, and slot 1 of two an empty stream before it.
        if name.contains("q8") || name.contains("np2") {
            continue;
        }
        let (stock_file, stock) = Rows::read(&stock_bytes);
        let (bytes, result) = provide(model, &stock_file.tokens, &stock.shape);
        let (file, ours) = Rows::read(&bytes);
        assert_eq!(file, stock_file, "{name}: everything but the rows is equal");
        assert_eq!(bytes.len(), stock_bytes.len(), "{name}");
        assert_eq!(ours.cells, stock.cells);
        assert_eq!(result.argmax, entry["first_token_top3"][0]["id"].as_i64().unwrap(), "{name}");
        for (half, each, mean, first) in BOUNDS {
            let errors: Vec<f64> = (ours.half(half).iter().zip(stock.half(half)))
                .map(|(ours, theirs)| relative_error(ours, theirs))
                .collect();
            assert!(errors[0] <= first, "{name}: {half} of layer 0 is off by {:.4}", errors[0]);
            assert!(errors.iter().all(|error| *error <= each), "{name}: {half} is off by {errors:.4?}");
            let found = errors.iter().sum::<f64>() / errors.len() as f64;
            assert!(found <= mean, "{name}: {half} is off by {found:.4} in the mean");
        }
        compared += 1;
    }
    assert!(compared >= 4, "{compared} files were compared");
}

#[test]
fn with_the_embedded_model() {
    compare(None, "tiny/index.json");
}

#[test]
fn with_a_model_made_by_others() {
    let Some(model) = smollm2::path() else { return };
    compare(Some(&model), "index.json");
}
