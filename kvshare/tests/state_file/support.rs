//! A cache in plain memory, and the files that a stock server saved.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kvshare::layout::TensorType;
use kvshare::state_file::{
    CacheSink, CacheSource, Half, LayerShape, ReadOptions, RowShape, Run, StateFile, StateShape,
};

/// A file that a stock server saved, and what its index says of it.
pub struct Sample {
    pub name: String,
    pub bytes: Vec<u8>,
    pub tokens: Vec<i32>,
}

pub fn samples() -> Vec<Sample> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/samples");
    let mut samples = samples_in(&directory);
    samples.extend(samples_in(&directory.join("tiny")));
    assert_eq!(samples.len(), 15);
    samples
}

pub fn sample(name: &str) -> Sample {
    samples().into_iter().find(|sample| sample.name == name).expect("the index names it")
}

fn samples_in(directory: &Path) -> Vec<Sample> {
    let read = |path: PathBuf| std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let index: serde_json::Value = serde_json::from_slice(&read(directory.join("index.json"))).expect("valid JSON");
    let entries = index.as_array().expect("a list of files");
    let number = |id: &serde_json::Value| i32::try_from(id.as_i64().expect("a token id")).expect("32 bits");
    entries
        .iter()
        .map(|entry| {
            let name = entry["file"].as_str().expect("a file name").to_owned();
            let tokens = entry["tokens"].as_array().expect("token ids").iter().map(number).collect();
            Sample { bytes: read(directory.join(&name)), name, tokens }
        })
        .collect()
}

/// Tensors of `n_ctx` cells each, which may be more than a file has, so that a wrong stride shows.
#[derive(Debug, PartialEq)]
pub struct MemoryCache {
    n_ctx: u64,
    shape: StateShape,
    tensors: HashMap<(usize, usize, Half), Tensor>,
}

#[derive(Debug, PartialEq)]
struct Tensor {
    shape: RowShape,
    bytes: Vec<u8>,
}

impl MemoryCache {
    /// Room for the rows of `file`, each byte `fill(its index)`.
    pub fn for_file(file: &StateFile, n_ctx: u64, fill: impl Fn(usize) -> u8) -> Self {
        let mut tensors = HashMap::new();
        for (stream, contents) in file.occupied() {
            for (layer, shape) in contents.shape.layers.iter().enumerate() {
                for half in Half::BOTH {
                    let shape = shape.half(half);
                    let length = shape.row_bytes().expect("whole blocks") * n_ctx;
                    let bytes = (0..length as usize).map(&fill).collect();
                    tensors.insert((stream, layer, half), Tensor { shape, bytes });
                }
            }
        }
        let shape = file.occupied().next().map_or(shape(0, TensorType::F16, 0), |(_, stream)| stream.shape.clone());
        Self { n_ctx, shape, tensors }
    }

    /// The cache that `bytes` hold, with `n_ctx` cells.
    pub fn read_from(bytes: &[u8], options: ReadOptions, n_ctx: u64) -> (StateFile, Self) {
        let file = StateFile::parse(bytes, options).expect("a good file");
        let mut cache = Self::for_file(&file, n_ctx, |_| 0xee);
        file.scatter(Cursor::new(bytes), &mut cache).expect("nothing fails in memory");
        (file, cache)
    }

    /// One row, of a half that is not transposed.
    pub fn row(&self, layer: usize, half: Half, cell: u64) -> &[u8] {
        let run = Run { stream: 0, layer, half, cells: cell..cell + 1 };
        &self.tensors[&(0, layer, half)].bytes[self.rows(&run)]
    }

    fn rows(&self, run: &Run) -> Range<usize> {
        let tensor = &self.tensors[&(run.stream, run.layer, run.half)];
        let row_bytes = tensor.shape.row_bytes().expect("whole blocks");
        assert!(run.cells.end <= self.n_ctx, "{run} is outside the cache");
        (run.cells.start * row_bytes) as usize..(run.cells.end * row_bytes) as usize
    }

    fn channel(&self, run: &Run, channel: u32) -> Range<usize> {
        let tensor = &self.tensors[&(run.stream, run.layer, run.half)];
        let element_bytes = tensor.shape.tensor_type.block_bytes();
        assert!(run.cells.end <= self.n_ctx && channel < tensor.shape.width, "{run} is outside the cache");
        let at = |cell| ((u64::from(channel) * self.n_ctx + cell) * element_bytes) as usize;
        at(run.cells.start)..at(run.cells.end)
    }
}

impl CacheSource for MemoryCache {
    type Error = Infallible;

    fn shape(&self) -> StateShape {
        self.shape.clone()
    }

    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), Infallible> {
        rows.copy_from_slice(&self.tensors[&(run.stream, run.layer, run.half)].bytes[self.rows(run)]);
        Ok(())
    }

    fn read_channel(&self, run: &Run, channel: u32, elements: &mut [u8]) -> Result<(), Infallible> {
        let range = self.channel(run, channel);
        elements.copy_from_slice(&self.tensors[&(run.stream, run.layer, run.half)].bytes[range]);
        Ok(())
    }
}

impl CacheSink for MemoryCache {
    type Error = Infallible;

    fn shape(&self) -> StateShape {
        self.shape.clone()
    }

    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), Infallible> {
        let range = self.rows(run);
        let tensor = self.tensors.get_mut(&(run.stream, run.layer, run.half)).expect("a tensor for each half");
        tensor.bytes[range].copy_from_slice(rows);
        Ok(())
    }

    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), Infallible> {
        let range = self.channel(run, channel);
        let tensor = self.tensors.get_mut(&(run.stream, run.layer, run.half)).expect("a tensor for each half");
        tensor.bytes[range].copy_from_slice(elements);
        Ok(())
    }
}

/// `n_layer` layers of `width` elements of one type.
pub fn shape(n_layer: usize, tensor_type: TensorType, width: u32) -> StateShape {
    let half = RowShape { tensor_type, width };
    StateShape { layers: vec![LayerShape { k: half, v: half }; n_layer], v_trans: false, n_rot_k: 0, n_rot_v: 0 }
}

/// The bytes of `file`, with rows that count up.
pub fn written(file: &StateFile) -> Vec<u8> {
    let n_ctx = file.occupied().map(|(_, stream)| stream.cells.len() as u64).max().unwrap_or(0);
    let cache = MemoryCache::for_file(file, n_ctx, |index| index as u8);
    let mut bytes = Vec::new();
    let length = file.write(&cache, &mut bytes).expect("nothing fails in memory");
    assert_eq!(length, bytes.len() as u64);
    bytes
}
