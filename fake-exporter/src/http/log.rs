//! What the server says on standard error. Whoever started it may have closed that; nobody's request fails for it.

use std::error::Error;
use std::fmt::Display;
use std::io::{Write as _, stderr};

/// Writes a line.
pub(super) fn line(text: impl Display) {
    let _ = writeln!(stderr(), "fake-exporter: {text}");
}

/// Writes an error with its causes. A cause whose words stand in the error already is left out.
pub(super) fn error(error: &dyn Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    line(text);
}
