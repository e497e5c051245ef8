//! A file is copied only to and from a cache whose rows are made like its own; nothing moves otherwise.

use std::convert::Infallible;
use std::io::Cursor;

use kvshare::layout::TensorType;
use kvshare::state_file::{
    CacheSink, CacheSource, CopyError, Half, ReadOptions, RowShape, Run, Slot, StateFile, StateFileError, StateShape,
};

use super::support::{shape, written};

/// A cache that must not be touched.
struct Other(StateShape);

impl CacheSource for Other {
    type Error = Infallible;

    fn shape(&self) -> StateShape {
        self.0.clone()
    }

    fn read_rows(&self, run: &Run, _: &mut [u8]) -> Result<(), Infallible> {
        panic!("{run} was read")
    }

    fn read_channel(&self, run: &Run, _: u32, _: &mut [u8]) -> Result<(), Infallible> {
        panic!("{run} was read")
    }
}

impl CacheSink for Other {
    type Error = Infallible;

    fn shape(&self) -> StateShape {
        self.0.clone()
    }

    fn write_rows(&mut self, run: &Run, _: &[u8]) -> Result<(), Infallible> {
        panic!("{run} was written")
    }

    fn write_channel(&mut self, run: &Run, _: u32, _: &[u8]) -> Result<(), Infallible> {
        panic!("{run} was written")
    }
}

#[test]
fn a_file_of_other_rows_is_neither_read_into_a_cache_nor_written_from_it() {
    type Expected = fn(&StateFileError) -> bool;
    let ours = shape(2, TensorType::F16, 64);
    let mut narrow = ours.clone();
    narrow.layers[1].v = RowShape { tensor_type: TensorType::F16, width: 32 };
    let others: [(StateShape, Expected); 6] = [
        (StateShape { v_trans: true, ..ours.clone() }, |error| {
            matches!(error, StateFileError::Transposition { found: 0, expected: 1 })
        }),
        (shape(3, TensorType::F16, 64), |error| matches!(error, StateFileError::LayerCount { found: 2, expected: 3 })),
        (shape(2, TensorType::Bf16, 64), |error| matches!(error, StateFileError::Type { layer: 0, half: Half::K, .. })),
        (narrow, |error| matches!(error, StateFileError::RowWidth { layer: 1, half: Half::V, .. })),
        (StateShape { n_rot_k: 64, ..ours.clone() }, |error| {
            matches!(error, StateFileError::Rotation { half: Half::K, expected: 64, .. })
        }),
        (StateShape { n_rot_v: 64, ..ours.clone() }, |error| {
            matches!(error, StateFileError::Rotation { half: Half::V, expected: 64, .. })
        }),
    ];
    let file = StateFile::of_prompt(vec![1, 2, 3], ours, Slot::default()).expect("one slot of one");
    let bytes = written(&file);
    let read = StateFile::parse(&bytes, ReadOptions::default()).expect("we wrote it");
    for (other, expected) in others {
        let mut other = Other(other);
        let mut out = Vec::new();
        match file.write(&other, &mut out) {
            Err(CopyError::File(error)) => assert!(expected(&error), "{error}"),
            result => panic!("{result:?}"),
        }
        assert!(out.is_empty());
        match read.scatter(Cursor::new(&bytes), &mut other) {
            Err(CopyError::File(error)) => assert!(expected(&error), "{error}"),
            result => panic!("{result:?}"),
        }
    }
}
