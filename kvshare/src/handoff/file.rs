//! The state file of one handoff, from the name it is given to the check before the decoder sees it.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, open};

use super::KnownCache;
use crate::state_file::{ReadOptions, StateFile, StateFileError};

/// Numbers the state files of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A state file in the slot directory. It is removed when this is dropped, whoever wrote it and whatever became of it.
#[derive(Debug)]
pub struct HandoffFile {
    name: String,
    path: PathBuf,
}

/// Why a state file is not to be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateCheckError {
    /// It is not there, or cannot be read.
    #[error("the provider left no state file: {0}")]
    Missing(#[source] io::Error),
    /// Something else lies in its place.
    #[error("the provider left no state file: what lies there is no regular file; write it, or rename it into place")]
    NotAFile,
    /// It would not restore to the prompt, or not into this cache.
    #[error("the provider's state file is refused: {0}")]
    Refused(#[from] StateFileError),
}

impl HandoffFile {
    /// A name that no other handoff has, for a file in the slot directory `directory`. Nothing is created.
    pub fn new(directory: &Path) -> Self {
        // The process's id keeps two proxies apart that were pointed at one slot directory.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvshare-{}-{number}.bin", std::process::id());
        Self { path: directory.join(&name), name }
    }

    /// The bare name, for the provider's `--out` and the decoder's `filename`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is to lie.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Walks the file to its last byte, makes sure that it restores to `tokens` in the cache that is `known`, and returns
    /// its length.
    ///
    /// # Errors
    /// [`StateCheckError`].
    pub fn check(&self, tokens: &[i32], known: &KnownCache) -> Result<u64, StateCheckError> {
        let (state, length) = self.read()?;
        known.check(&state, tokens)?;
        Ok(length)
    }

    /// Walks the file to its last byte; returns what it says of itself, and its length.
    ///
    /// # Errors
    /// [`StateCheckError`].
    pub fn read(&self) -> Result<(StateFile, u64), StateCheckError> {
        // Neither a link out of the directory is followed, which the decoder would follow, too, nor a pipe waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(&self.path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP) => return Err(StateCheckError::NotAFile),
            Err(errno) => return Err(StateCheckError::Missing(errno.into())),
        };
        let facts = file.metadata().map_err(StateCheckError::Missing)?;
        if !facts.is_file() {
            return Err(StateCheckError::NotAFile);
        }
        Ok((StateFile::walk(BufReader::new(file), ReadOptions::default())?, facts.len()))
    }
}

impl Drop for HandoffFile {
    fn drop(&mut self) {
        // It is not there if the provider failed.
        let _ = std::fs::remove_file(&self.path);
    }
}
