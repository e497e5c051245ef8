//! A header that lies in a file, as it came.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use kvshare::header::MAX_BYTES;

/// A header file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the header {}: {source}", path.display())]
pub struct HeaderFileError {
    path: PathBuf,
    source: io::Error,
}

/// The bytes of the header at `path`, which may be a pipe. No more are read than show that it is too long.
///
/// # Errors
/// What the system answers.
pub fn read(path: &Path) -> Result<Vec<u8>, HeaderFileError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(source) => Err(HeaderFileError { path: path.to_owned(), source }),
    }
}
