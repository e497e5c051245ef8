//! What the commands print, and how they fail.

use std::fmt::Display;
use std::io::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A command that failed, in words for a person.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// Any error's own words.
    pub fn new(error: impl Display) -> Self {
        Self(error.to_string())
    }
}

/// Prints `text` and a newline.
///
/// # Errors
/// Standard output cannot be written. A reader that has seen enough is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// `bytes` as a person says them: `2240 MiB`, `417 B`.
pub fn bytes_in_words(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_240_000 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// A table without lines; the columns in `numbers` are aligned to the right.
pub fn table(titles: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(titles.iter().copied());
    for index in numbers {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
