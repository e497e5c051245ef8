//! Saving the slot to a state file, and restoring it from one.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use kvshare::state_file::{CopyError, Expected, ReadOptions, Slot, StateFile, StateFileError, check_filename};

use super::{Decoder, DecoderError};

/// What was saved or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Tokens.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Decoder {
    /// Writes the slot to the file `name` in the slot directory.
    ///
    /// # Errors
    /// No slot directory, a name that leads elsewhere, a file that cannot be written.
    pub fn save(&mut self, name: &str) -> Result<FileReport, DecoderError> {
        self.path_of(name)?;
        let directory = self.settings.slot_directory()?.to_owned();
        let tokens = &self.tokens;
        let bytes = self.cache.access(|cache| {
            let file = StateFile::of_prompt(tokens.clone(), cache.state_shape(), Slot::default());
            let file = file.map_err(|error| DecoderError::Save(error.into()))?;
            file.publish(cache, &directory, name).map_err(DecoderError::Save)
        })?;
        Ok(FileReport { tokens: self.tokens.len(), bytes })
    }

    /// Fills the slot from the file `name` in the slot directory.
    ///
    /// The file is followed to its last byte before a row of the cache changes; a stock server would abort on one that is
    /// cut, and answer with other text from one whose positions are wrong.
    ///
    /// # Errors
    /// No slot directory, a name that leads elsewhere; a file that is missing, broken or of another cache, after which
    /// the slot is empty, as a stock server's.
    pub fn restore(&mut self, name: &str) -> Result<FileReport, DecoderError> {
        let path = self.path_of(name)?;
        self.tokens.clear();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), BufReader::new(file))));
        let (bytes, mut reader) =
            opened.map_err(|source| DecoderError::Restore(StateFileError::Io { action: "open", source }.into()))?;
        let file = StateFile::walk(&mut reader, ReadOptions::default()).map_err(refused)?;
        file.validate(&Expected {
            n_vocab: Some(self.brain.n_vocab()),
            n_ctx: Some(self.cells()),
            n_stream: Some(1),
            shape: Some(&self.cache.mapped().state_shape()),
            tokens: None,
        })
        .map_err(refused)?;
        self.own_cells()?;
        self.cache.access(|cache| file.scatter(&mut reader, cache).map_err(DecoderError::Restore))?;
        self.tokens = file.tokens;
        Ok(FileReport { tokens: self.tokens.len(), bytes })
    }

    fn path_of(&self, name: &str) -> Result<PathBuf, DecoderError> {
        check_filename(name).map_err(DecoderError::Filename)?;
        Ok(self.settings.slot_directory()?.join(name))
    }
}

fn refused(error: StateFileError) -> DecoderError {
    DecoderError::Restore(CopyError::File(error))
}
