//! Token ids from outside.

use super::DecoderError;

/// `ids` as tokens of a vocabulary of `n_vocab`.
///
/// # Errors
/// [`DecoderError::UnknownToken`] names the first id that is none.
pub fn checked_ids(ids: &[i64], n_vocab: u32) -> Result<Vec<i32>, DecoderError> {
    let checked = |(index, id): (usize, &i64)| match i32::try_from(*id) {
        Ok(token) if (0..i64::from(n_vocab)).contains(id) => Ok(token),
        _ => Err(DecoderError::UnknownToken { index, id: *id, n_vocab }),
    };
    ids.iter().enumerate().map(checked).collect()
}
