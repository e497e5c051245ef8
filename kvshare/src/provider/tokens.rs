//! The prompt's token ids, as they lie in a file: one decimal id a line.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::ProviderError;

/// A longer file is refused: it would hold several million tokens.
const MAX_BYTES: u64 = 64 << 20;

/// Reads the ids in the file at `path`, in order.
///
/// # Errors
/// A file that cannot be read, is too long or empty, or a line that is no id.
pub fn read_tokens(path: &Path) -> Result<Vec<i32>, ProviderError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text))
        .map_err(|source| ProviderError::Read { what: "the token file", path: path.to_owned(), source })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ProviderError::TokensTooLong { path: path.to_owned(), limit: MAX_BYTES });
    }
    let tokens = parse_tokens(&text)?;
    if tokens.is_empty() { Err(ProviderError::NoTokens { path: path.to_owned() }) } else { Ok(tokens) }
}

/// The ids in `text`; blank lines do not count.
///
/// # Errors
/// A line that is no decimal number from 0 to 2^31 - 1.
pub fn parse_tokens(text: &[u8]) -> Result<Vec<i32>, ProviderError> {
    let mut tokens = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let id = std::str::from_utf8(line).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
        let id = id.and_then(|digits| digits.parse().ok()).ok_or_else(|| ProviderError::TokenLine {
            line: index + 1,
            text: String::from_utf8_lossy(&line[..line.len().min(32)]).into_owned(),
        })?;
        tokens.push(id);
    }
    Ok(tokens)
}

/// `tokens` as [`parse_tokens`] reads them.
pub fn format_tokens(tokens: &[i32]) -> String {
    tokens.iter().fold(String::with_capacity(tokens.len() * 6), |mut text, id| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{id}");
        text
    })
}
