//! Why a program could not be started.

use std::io;
use std::path::PathBuf;

/// Why a program could not be started. No process exists then, and no descriptor was passed on, but for
/// [`Unwatched`](Self::Unwatched).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// No file has the program's path.
    #[error("the program {} does not exist; check the path", program.display())]
    Missing {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The name has no slash, and no directory of `PATH` holds such a program.
    #[error("no directory of PATH holds a program {}; give its path", program.display())]
    NotInPath {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The program is there and the interpreter that it asks for is not.
    #[error("{} names an interpreter that does not exist; check its #! line, or which system it was built for", program.display())]
    InterpreterMissing {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The file may not be executed.
    #[error("{} may not be executed; set its executable bit (chmod +x), or check its directories and mount", program.display())]
    NotExecutable {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The path is a directory's.
    #[error("{} is a directory; give the path of the program in it", program.display())]
    IsDirectory {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The kernel does not know the file's format.
    #[error("{} is no program for this machine; a script needs a #! line", program.display())]
    UnknownFormat {
        /// The program as it was given.
        program: PathBuf,
    },
    /// Somebody has the program open for writing.
    #[error("{} is being written; wait until its build or copy is done", program.display())]
    BeingWritten {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The directory to start in is not usable.
    #[error("cannot start in the directory {}: {source}", directory.display())]
    WorkingDirectory {
        /// The directory as it was given.
        directory: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The descriptors do not fit under this process's limit.
    #[error(
        "{count} descriptors do not fit under this process's limit of {}; raise it (ulimit -n)",
        limit.map_or("none".to_owned(), |limit| limit.to_string())
    )]
    TooManyDescriptors {
        /// How many the program was to inherit.
        count: usize,
        /// The soft limit on open descriptors; `None` is no limit.
        limit: Option<u64>,
    },
    /// Arguments and environment together are longer than the kernel takes.
    #[error("the arguments and the environment are longer than the kernel takes; pass long text in a file")]
    ArgumentsTooLong,
    /// An argument, a variable or a path holds a NUL byte.
    #[error("the {part} {value:?} holds a NUL byte, which no program can be given; remove it")]
    NulByte {
        /// Which part holds it.
        part: &'static str,
        /// The part's text.
        value: String,
    },
    /// The program did start, with its descriptors, but its end could not have been seen, so it was killed.
    #[error(
        "{} was started and cannot be watched (pidfd_open failed: {source}), so it was killed{}; if the table of \
         descriptors is full, raise its limit (ulimit -n)",
        program.display(), if *gone { "" } else { ", but has not ended yet" }
    )]
    Unwatched {
        /// The program as it was given.
        program: PathBuf,
        /// What the system answered to `pidfd_open`.
        source: io::Error,
        /// Whether it and its group are known to be gone.
        gone: bool,
    },
    /// The operating system refused a call.
    #[error("cannot start {}: {call} failed: {source}", program.display())]
    System {
        /// The program as it was given.
        program: PathBuf,
        /// The call, by the name of its manual page.
        call: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}
