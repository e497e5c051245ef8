//! Puts a finished file under its name in a slot directory, so that no server ever reads half of one.
//!
//! The only part of this module that touches the file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{CacheSource, CopyError, StateFile, StateFileError};

impl StateFile {
    /// Writes the file under a temporary name in `directory`, then renames it to `name`.
    ///
    /// A file of that name is replaced at once or not at all, and on any failure nothing is left behind. Only its owner
    /// may read it, since a cache tells the prompt. Returns its length.
    ///
    /// # Errors
    ///
    /// [`StateFileError::Name`] as [`check_filename`] says; otherwise those of [`write`](Self::write).
    pub fn publish<S: CacheSource>(
        &self,
        source: &S,
        directory: &Path,
        name: &str,
    ) -> Result<u64, CopyError<S::Error>> {
        check_filename(name)?;
        let (temporary, file) = Temporary::create_in(directory)?;
        let length = self.write(source, file)?;
        temporary.rename_to(&directory.join(name))?;
        Ok(length)
    }
}

/// A file that is removed again unless it gets its final name.
struct Temporary {
    path: Option<PathBuf>,
}

impl Temporary {
    fn create_in(directory: &Path) -> Result<(Self, File), StateFileError> {
        // Random, and not made from the final name, which may be as long as a name can be.
        let number = getrandom::u64().map_err(|error| failed("name")(io::Error::other(error.to_string())))?;
        let path = directory.join(format!(".kvshare-{number:016x}.tmp"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed("create"))?;
        Ok((Self { path: Some(path) }, file))
    }

    fn rename_to(mut self, target: &Path) -> Result<(), StateFileError> {
        if let Some(path) = &self.path {
            fs::rename(path, target).map_err(failed("rename"))?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The error that brought us here matters more than one of removing it.
            let _ = fs::remove_file(path);
        }
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> StateFileError {
    move |source| StateFileError::Io { action, source }
}

/// Makes sure that `name` is a bare file name that a server takes too.
///
/// The rules are those of `fs_validate_filename` in llama.cpp's `common/common.cpp`, which answers only "Invalid
/// filename".
///
/// # Errors
///
/// [`StateFileError::Name`], with the reason.
///
/// ```
/// use kvshare::state_file::check_filename;
///
/// assert!(check_filename("prompt-7.bin").is_ok());
/// assert!(check_filename("../prompt-7.bin").is_err());
/// ```
pub fn check_filename(name: &str) -> Result<(), StateFileError> {
    match what_is_wrong_with(name) {
        Some(reason) => Err(StateFileError::Name { name: name.chars().take(80).collect(), reason }),
        None => Ok(()),
    }
}

fn what_is_wrong_with(name: &str) -> Option<&'static str> {
    // The last five look like a dot or a slash, or like nothing at all.
    const FORBIDDEN: &[char] =
        &['/', '\\', ':', '*', '?', '"', '<', '>', '|', '\u{ff0e}', '\u{2215}', '\u{2216}', '\u{fffd}', '\u{feff}'];
    match name {
        "" => Some("it is empty"),
        _ if name.len() > 255 => Some("it is longer than 255 bytes"),
        _ if name.contains('/') => Some("it is a path"),
        _ if name.contains(FORBIDDEN) => Some("a server forbids one of its characters"),
        _ if name.contains(char::is_control) => Some("it has a control character"),
        _ if name.contains("..") => Some("it has two dots in a row"),
        _ if name.starts_with(' ') || name.ends_with(' ') => Some("it starts or ends with a space"),
        _ if name.ends_with('.') => Some("it ends with a dot"),
        _ => None,
    }
}
