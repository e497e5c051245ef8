//! What the commands print, and how they fail.

use std::fmt::Display;
use std::io::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::json;

/// The exit status of a command that failed.
pub const FAILED: u8 = 1;

/// The exit status of a command that was asked for what cannot be.
pub const MISUSE: u8 = 2;

/// A command that failed, in words for a person.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub struct Failure {
    words: String,
    exit_status: u8,
    line: Option<String>,
}

impl Failure {
    /// Any error's own words.
    pub fn new(error: impl Display) -> Self {
        Self { words: error.to_string(), exit_status: FAILED, line: None }
    }

    /// The same with an exit status of its own.
    pub fn with_status(self, exit_status: u8) -> Self {
        Self { exit_status, ..self }
    }

    /// The same, said as `line` on standard error: by another name than the program's, or in a log's own form.
    pub fn said_as(self, line: String) -> Self {
        Self { line: Some(line), ..self }
    }

    /// Says it on standard error, with `is_json` also as an object on a line of its own. Returns the exit status.
    ///
    /// Every command's failure passes here, and those of its command line: so `--json` means the same for all of them.
    pub fn report(&self, is_json: bool) -> u8 {
        let line = self.line.clone().unwrap_or_else(|| format!("kvshare-cli: {self}"));
        // Whoever started us may have closed it; nobody is left to tell then.
        let _ = writeln!(std::io::stderr(), "{line}");
        if is_json {
            let _ = writeln!(std::io::stderr(), "{}", json!({"error": {"message": self.words}}));
        }
        self.exit_status
    }
}

/// `1 region`, `2 regions`.
pub fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Prints `text` and a newline.
///
/// # Errors
/// Standard output cannot be written. A reader that has seen enough is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes bytes as they are to standard output.
///
/// # Errors
/// Those of [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Whether standard output is a terminal on which colours are welcome: `NO_COLOR`, `CLICOLOR_FORCE` and `TERM` are
/// heeded.
pub fn is_colourful() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// The columns of the terminal that is standard output; `COLUMNS`, or 100, where it is none.
pub fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    size.or_else(told).filter(|columns| (20..=1000).contains(columns)).unwrap_or(100)
}

/// A number with the digits that a person looks at: `0.5`, `-12.34`, `6.1e-5`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    if value != 0.0 && !(0.001..100_000.0).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let before_the_point = if value.abs() >= 1.0 { value.abs().log10() as usize + 1 } else { 1 };
    let text = format!("{value:.*}", 5_usize.saturating_sub(before_the_point).min(4));
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let cases = [
            (0.0, "0"),
            (0.5, "0.5"),
            (-12.3456, "-12.346"),
            (99_999.4, "99999"),
            (1_234_567.0, "1.23e6"),
            (0.000_061, "6.10e-5"),
            (-0.25, "-0.25"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (100.0, "100"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
