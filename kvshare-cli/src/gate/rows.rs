//! The rows that a handoff left in the decoder's cache, saved by the decoder itself and compared layer by layer.
//!
//! A text does not tell enough: a small model was seen to answer the same with one layer's V set to zero.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use kvshare::handoff::{HandoffFile, StateCheckError};
use kvshare::layout::TensorType;
use kvshare::state_file::{Half, Record, StateFile, StateFileError};
use kvshare::values::{ValuesError, decode_row};
use serde::Serialize;

use crate::cycle::{Cycle, DecoderError};

/// How many blocks of a tensor type are compared at once.
const BLOCKS: usize = 1 << 14;

/// Why rows could not be compared.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowsError {
    /// The decoder did not save them.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// It saved them somewhere else.
    #[error("the decoder saved no rows in the slot directory ({0}); was it started with another --slot-save-path?")]
    Elsewhere(io::Error),
    /// Its file has a form of its own, as one of a recurrent model has.
    #[error("the rows that the decoder saved cannot be read: {0}; --text-only leaves them out")]
    File(#[from] StateFileError),
    /// Something else lies in the file's place.
    #[error("the rows that the decoder saved cannot be read: they are no regular file; --text-only leaves them out")]
    NotAFile,
    /// Two files that one cache cannot have given.
    #[error("the decoder saved {found} after one route and {expected} after another")]
    Shape { found: String, expected: String },
    /// A row of another length than its type has.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// The system.
    #[error("the rows that the decoder saved cannot be read: {0}")]
    System(#[from] io::Error),
}

/// How far two caches are apart in the layer where they are farthest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Apart {
    /// The layer, counted from 0 among those with a cache.
    pub(super) layer: usize,
    /// K or V.
    pub(super) half: &'static str,
    /// The norm of the difference divided by the larger of both norms: 0 is the same, 1 is nothing in common; `null` in JSON
    /// is not a number.
    pub(super) error: f64,
}

/// A slot's rows in a file, which goes when this does.
pub(super) struct SavedRows {
    file: HandoffFile,
    contents: StateFile,
}

impl SavedRows {
    /// Has the decoder save its slot into its slot directory.
    pub(super) async fn save(cycle: &Cycle) -> Result<Self, RowsError> {
        let file = HandoffFile::new(&cycle.slot_directory);
        cycle.decoder.save(file.name()).await?;
        let (contents, _) = file.read().map_err(|error| match error {
            StateCheckError::Missing(error) => RowsError::Elsewhere(error),
            StateCheckError::Refused(error) => RowsError::File(error),
            _ => RowsError::NotAFile,
        })?;
        Ok(Self { file, contents })
    }

    /// The layer in which these rows are farthest from `other`'s.
    pub(super) fn compare(&self, other: &Self) -> Result<Apart, RowsError> {
        let (records, other_records) = (self.contents.records()?, other.contents.records()?);
        let is_same = |(a, b): (&Record, &Record)| {
            (a.layer, a.half, a.length) == (b.layer, b.half, b.length) && self.type_of(a) == other.type_of(b)
        };
        if records.len() != other_records.len() || !records.iter().zip(&other_records).all(is_same) {
            let shape = |rows: &Self| format!("{} tokens in another form", rows.contents.tokens.len());
            return Err(RowsError::Shape { found: shape(self), expected: shape(other) });
        }
        let (mut file, mut other_file) = (File::open(self.file.path())?, File::open(other.file.path())?);
        let mut worst = Apart { layer: 0, half: "K", error: 0.0 };
        for (record, other_record) in records.iter().zip(&other_records) {
            let Some(tensor_type) = self.type_of(record) else { continue };
            file.seek(SeekFrom::Start(record.offset))?;
            other_file.seek(SeekFrom::Start(other_record.offset))?;
            let error = relative_error(tensor_type, record.length, &mut file, &mut other_file)?;
            // Not a number is farther than any.
            if error > worst.error || error.is_nan() && !worst.error.is_nan() {
                let half = if record.half == Half::K { "K" } else { "V" };
                worst = Apart { layer: record.layer, half, error };
            }
        }
        Ok(worst)
    }

    fn type_of(&self, record: &Record) -> Option<TensorType> {
        let stream = self.contents.streams.get(record.stream)?.as_ref()?;
        Some(stream.shape.layers.get(record.layer)?.half(record.half).tensor_type)
    }
}

/// The norm of the difference of the next `length` bytes, divided by the larger norm.
fn relative_error(
    tensor_type: TensorType,
    length: u64,
    rows: &mut impl Read,
    others: &mut impl Read,
) -> Result<f64, RowsError> {
    let (block_bytes, block_elements) = (tensor_type.block_bytes() as usize, tensor_type.block_elements() as usize);
    let mut bytes = vec![0; BLOCKS * block_bytes];
    let mut other_bytes = bytes.clone();
    let mut values = vec![0.0_f32; BLOCKS * block_elements];
    let mut other_values = values.clone();
    let (mut difference, mut norm, mut other_norm) = (0.0, 0.0, 0.0);
    let mut left = length;
    while left > 0 {
        let count = left.min(bytes.len() as u64) as usize;
        let elements = count / block_bytes * block_elements;
        let (bytes, other_bytes) = (&mut bytes[..count], &mut other_bytes[..count]);
        let (values, other_values) = (&mut values[..elements], &mut other_values[..elements]);
        rows.read_exact(bytes)?;
        others.read_exact(other_bytes)?;
        left -= count as u64;
        decode_row(tensor_type, bytes, values)?;
        decode_row(tensor_type, other_bytes, other_values)?;
        for (value, other) in values.iter().zip(other_values.iter()) {
            let (value, other) = (f64::from(*value), f64::from(*other));
            norm += value * value;
            other_norm += other * other;
            difference += (value - other) * (value - other);
        }
    }
    Ok(if difference == 0.0 { 0.0 } else { (difference / norm.max(other_norm)).sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(tensor_type: TensorType, rows: &[u8], others: &[u8]) -> f64 {
        relative_error(tensor_type, others.len() as u64, &mut &rows[..], &mut &others[..]).unwrap()
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn the_error_is_relative_to_the_larger_rows_and_the_same_both_ways() {
        let rows = floats(&[3.0, 4.0]);
        let cases = [(rows.clone(), 0.0), (floats(&[0.0, 0.0]), 1.0), (floats(&[3.0, 3.5]), 0.1)];
        for (others, expected) in cases {
            assert_eq!(error(TensorType::F32, &rows, &others), expected);
            assert_eq!(error(TensorType::F32, &others, &rows), expected);
        }
        let nothing = floats(&[0.0]);
        assert_eq!(error(TensorType::F32, &nothing, &nothing), 0.0);
        let no_number = floats(&[f32::NAN, 4.0]);
        assert!(
            error(TensorType::F32, &no_number, &rows).is_nan() && error(TensorType::F32, &rows, &no_number).is_nan()
        );
    }

    #[test]
    fn rows_of_more_than_one_piece_and_of_blocks_are_followed_to_their_end() {
        let mut rows = vec![0_u8; 34 * (BLOCKS + 3)];
        let others = rows.clone();
        assert_eq!(error(TensorType::Q8_0, &rows, &others), 0.0);
        // The scale of the last block, 1.0 in f16, and an element of it.
        let last = rows.len() - 34;
        rows[last..last + 3].copy_from_slice(&[0, 0x3c, 5]);
        assert_eq!(error(TensorType::Q8_0, &rows, &others), 1.0);
    }
}
