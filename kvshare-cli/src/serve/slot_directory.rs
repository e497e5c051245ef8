//! Where state files, token files and sockets lie.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The slot directory.
#[derive(Debug)]
pub enum SlotDirectory {
    /// Ours: made fresh, of mode 0700, and gone with its contents when this is dropped.
    Fresh(tempfile::TempDir),
    /// That of a backend which somebody else started.
    Given(PathBuf),
}

impl SlotDirectory {
    /// Makes one in the system's directory for temporary files.
    ///
    /// # Errors
    /// The system's.
    pub fn fresh() -> io::Result<Self> {
        let only_ours = Permissions::from_mode(0o700);
        tempfile::Builder::new().prefix("kvshare-slots-").permissions(only_ours).tempdir().map(Self::Fresh)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::Fresh(directory) => directory.path(),
            Self::Given(path) => path,
        }
    }
}
