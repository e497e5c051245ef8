//! What a provider wrote where it must not: behind a tensor, or into cells beyond the prompt.

use std::fmt;

use crate::inspect::reader::{Padding, RowFacts, TensorSurvey};

/// Something written where it must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The tensor that it lies in or behind.
    pub tensor: String,
    /// Where it lies.
    pub place: OutsidePlace,
}

/// Where something was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsidePlace {
    /// Behind the tensor, so many bytes past its end.
    Padding {
        /// The first byte that changed.
        offset: u64,
    },
    /// In cells that the prompt does not reach.
    Cells {
        /// The first position.
        first: u64,
        /// How many rows.
        rows: u64,
        /// The prompt's tokens.
        tokens: u64,
    },
}

impl fmt::Display for Outside {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, place } = self;
        match place {
            OutsidePlace::Padding { offset } => write!(
                formatter,
                "{tensor}: it wrote past the tensor, first at byte {offset} behind its end: a row too long, or a stride too wide"
            ),
            OutsidePlace::Cells { first, rows, tokens } => write!(
                formatter,
                "{tensor}: it wrote {rows} rows from position {first} on, and the prompt has {tokens} tokens: write as many \
                 rows as there are tokens"
            ),
        }
    }
}

impl Outside {
    /// What changed between two surveys outside of the first `tokens` rows. The padding had the pattern before.
    pub fn of(before: &[TensorSurvey], after: &[TensorSurvey], tokens: u64) -> Vec<Self> {
        let mut found = Vec::new();
        for (before, after) in before.iter().zip(after) {
            let mut add = |place| found.push(Self { tensor: after.tensor.name().to_owned(), place });
            match after.padding {
                Ok(Padding::Zeros) => add(OutsidePlace::Padding { offset: 0 }),
                Ok(Padding::Damaged { offset }) => add(OutsidePlace::Padding { offset }),
                _ => {}
            }
            let is_new = |row: &&RowFacts| !beyond(before, tokens).any(|known| known == **row);
            let mut new = beyond(after, tokens).filter(|row| is_new(&row)).peekable();
            if let Some(row) = new.peek() {
                let first = row.position;
                add(OutsidePlace::Cells { first, rows: new.count() as u64, tokens });
            }
        }
        found
    }
}

/// The rows of stream 0 that were written from position `tokens` on.
fn beyond(survey: &TensorSurvey, tokens: u64) -> impl Iterator<Item = RowFacts> {
    let streams = survey.streams.as_deref().unwrap_or_default();
    let rows = streams.iter().filter(|rows| rows.stream == 0).flat_map(|rows| &rows.rows);
    rows.copied().filter(move |row| row.position >= tokens)
}
