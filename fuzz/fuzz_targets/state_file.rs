//! Any bytes as a state file: refused, or read into a cache and written again, byte for byte.
#![no_main]

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Cursor;

use kvshare::state_file::{CacheSink, CacheSource, Expected, Half, ReadOptions, Run, StateFile, StateShape};
use libfuzzer_sys::fuzz_target;

/// Rows and channels as they were written, whatever their shape.
struct Rows {
    shape: StateShape,
    bytes: HashMap<(usize, usize, Half, Option<u32>), Vec<u8>>,
}

impl Rows {
    fn put(&mut self, run: &Run, channel: Option<u32>, part: &[u8]) {
        let start = run.cells.start as usize * (part.len() / (run.cells.end - run.cells.start) as usize);
        let bytes = self.bytes.entry((run.stream, run.layer, run.half, channel)).or_default();
        bytes.resize(bytes.len().max(start + part.len()), 0);
        bytes[start..start + part.len()].copy_from_slice(part);
    }

    fn get(&self, run: &Run, channel: Option<u32>, part: &mut [u8]) {
        let start = run.cells.start as usize * (part.len() / (run.cells.end - run.cells.start) as usize);
        let bytes = &self.bytes[&(run.stream, run.layer, run.half, channel)];
        part.copy_from_slice(&bytes[start..start + part.len()]);
    }
}

impl CacheSink for Rows {
    type Error = Infallible;

    fn shape(&self) -> StateShape {
        self.shape.clone()
    }

    fn write_rows(&mut self, run: &Run, rows: &[u8]) -> Result<(), Infallible> {
        self.put(run, None, rows);
        Ok(())
    }

    fn write_channel(&mut self, run: &Run, channel: u32, elements: &[u8]) -> Result<(), Infallible> {
        self.put(run, Some(channel), elements);
        Ok(())
    }
}

impl CacheSource for Rows {
    type Error = Infallible;

    fn shape(&self) -> StateShape {
        self.shape.clone()
    }

    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), Infallible> {
        self.get(run, None, rows);
        Ok(())
    }

    fn read_channel(&self, run: &Run, channel: u32, elements: &mut [u8]) -> Result<(), Infallible> {
        self.get(run, Some(channel), elements);
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    for m_rope in [false, true] {
        let options = ReadOptions { m_rope, ..ReadOptions::default() };
        let file = match StateFile::parse(bytes, options) {
            Ok(file) => file,
            Err(error) => {
                assert!(error.to_string().len() < 1024);
                continue;
            }
        };
        let _ = file.validate(&Expected::default());
        let Some((_, stream)) = file.occupied().next() else { continue };
        let mut rows = Rows { shape: stream.shape.clone(), bytes: HashMap::new() };
        if file.scatter(Cursor::new(bytes), &mut rows).is_err() {
            continue;
        }
        let mut again = Vec::new();
        if file.write(&rows, &mut again).is_ok() {
            assert_eq!(again, bytes);
        }
    }
});
