//! Starting a program that inherits exactly the descriptors it is given.

use super::child::end_unwatched;
use super::posix_spawn::{Plan, Stream};
use super::{Child, DescriptorLimit, FIRST_INHERITED, SpawnError};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where a program's standard output or error goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Where ours goes.
    #[default]
    Inherit,
    /// Nowhere.
    Null,
    /// Into a pipe, whose other end is in the [`Child`].
    Pipe,
}

/// A program to start, with what it is given.
///
/// It inherits the environment, standard input from `/dev/null`, standard output and error, and exactly the
/// descriptors named here, at 3, 4, 5 and so on in their order. It leads a process group of its own, with no signal
/// blocked or ignored.
///
/// ```
/// use kvshare::fd::{Output, Program};
/// use std::io::{Read, Write};
/// use std::os::fd::AsFd;
/// use std::time::{Duration, Instant};
///
/// let (read_end, mut write_end) = std::io::pipe()?;
/// write_end.write_all(b"hello from 3")?;
/// drop(write_end);
///
/// let mut child =
///     Program::new("cat").arg("/proc/self/fd/3").descriptors([read_end.as_fd()]).stdout(Output::Pipe).spawn()?;
/// let mut text = String::new();
/// std::fs::File::from(child.stdout.take().unwrap()).read_to_string(&mut text)?;
/// assert_eq!(text, "hello from 3");
///
/// let status = child.wait(Instant::now() + Duration::from_secs(10))?;
/// assert!(status.is_some_and(|status| status.success()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a program starts when `spawn` is called"]
pub struct Program<'fd> {
    path: PathBuf,
    arguments: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
    directory: Option<PathBuf>,
    stdout: Output,
    stderr: Output,
    descriptors: Vec<BorrowedFd<'fd>>,
}

impl<'fd> Program<'fd> {
    /// The program at `path`. A name without a slash is looked for in `PATH`; a relative path is relative to this
    /// process's working directory, not to the one that the program starts in.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            arguments: Vec::new(),
            variables: BTreeMap::new(),
            directory: None,
            stdout: Output::Inherit,
            stderr: Output::Inherit,
            descriptors: Vec::new(),
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable beside, or in the place of, those inherited.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Starts the program in `directory`.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sends standard output to `output`.
    pub fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    /// Sends standard error to `output`.
    pub fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// Adds descriptors to inherit: the first one ever added becomes 3 there, the next 4, and so on.
    pub fn descriptors(mut self, descriptors: impl IntoIterator<Item = BorrowedFd<'fd>>) -> Self {
        self.descriptors.extend(descriptors);
        self
    }

    /// Starts the program.
    ///
    /// # Errors
    ///
    /// [`SpawnError`] says which of the program, its directory, its arguments or its descriptors was at fault.
    pub fn spawn(self) -> Result<Child, SpawnError> {
        // Keeps a place in the table, so that the program's own pidfd does not fail once it runs.
        let place = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::MFILE => self.too_many(),
            errno => self.system("pidfd_open", errno),
        })?;
        let (stdout, our_stdout) = self.stream(self.stdout)?;
        let (stderr, our_stderr) = self.stream(self.stderr)?;
        let plan = Plan {
            program: text("program", &self.program_path()?)?,
            arguments: self.argument_texts()?,
            environment: self.environment_texts()?,
            directory: self.directory.as_deref().map(|path| text("directory", path.as_os_str())).transpose()?,
            streams: [stdout, stderr],
            descriptors: self.descriptors.iter().map(|descriptor| self.lift(descriptor)).collect::<Result<_, _>>()?,
        };
        let pid = plan.start().map_err(|errno| self.diagnose(errno))?;
        drop(place);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Child::new(pid, pidfd, our_stdout, our_stderr)),
            Err(errno) => {
                let gone = end_unwatched(pid);
                Err(SpawnError::Unwatched { program: self.path, source: errno.into(), gone })
            }
        }
    }

    /// The program's end of a standard stream, and ours.
    fn stream(&self, output: Output) -> Result<(Stream, Option<OwnedFd>), SpawnError> {
        match output {
            Output::Inherit => Ok((Stream::Inherited, None)),
            Output::Null => Ok((Stream::Null, None)),
            Output::Pipe => {
                let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| self.system("pipe2", errno))?;
                Ok((Stream::To(self.lift(theirs)?), Some(ours)))
            }
        }
    }

    /// A duplicate of `descriptor` above every number that the program will see.
    fn lift(&self, descriptor: impl AsFd) -> Result<OwnedFd, SpawnError> {
        let above = i32::try_from(self.descriptors.len()).ok().and_then(|count| count.checked_add(FIRST_INHERITED));
        let above = above.ok_or_else(|| self.too_many())?;
        fcntl_dupfd_cloexec(descriptor, above).map_err(|errno| match errno {
            // EINVAL is what F_DUPFD answers where `above` itself is over the limit.
            Errno::MFILE | Errno::INVAL => self.too_many(),
            errno => self.system("fcntl F_DUPFD_CLOEXEC", errno),
        })
    }

    /// The program's path, made absolute where it is a path at all.
    fn program_path(&self) -> Result<OsString, SpawnError> {
        if self.is_bare_name() {
            return Ok(self.path.clone().into_os_string());
        }
        let absolute = std::path::absolute(&self.path).map_err(|source| SpawnError::System {
            program: self.path.clone(),
            call: "getcwd",
            source,
        })?;
        Ok(absolute.into_os_string())
    }

    fn is_bare_name(&self) -> bool {
        is_bare_name(&self.path)
    }

    fn is_in_path(&self) -> bool {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(&self.path).is_file()))
    }

    fn argument_texts(&self) -> Result<Vec<CString>, SpawnError> {
        let arguments = self.arguments.iter().map(|argument| text("argument", argument));
        [text("program", self.path.as_os_str())].into_iter().chain(arguments).collect()
    }

    /// Our environment, less the variables that are set anew, and those.
    fn environment_texts(&self) -> Result<Vec<CString>, SpawnError> {
        std::env::vars_os()
            .filter(|(name, _)| !self.variables.contains_key(name))
            .chain(self.variables.clone())
            .map(|(mut variable, value)| {
                variable.push("=");
                variable.push(value);
                text("environment variable", &variable)
            })
            .collect()
    }

    /// Says in words why the program did not start. What one number of the kernel's can mean is told apart by a look at
    /// the files.
    fn diagnose(&self, errno: Errno) -> SpawnError {
        let program = self.path.clone();
        if let Some(directory) = &self.directory
            && let Err(source) = check_directory(directory)
        {
            return SpawnError::WorkingDirectory { directory: directory.clone(), source };
        }
        match errno {
            // EACCES may also come from a directory of PATH that we may not search.
            Errno::NOENT | Errno::NOTDIR | Errno::ACCESS if self.is_bare_name() && !self.is_in_path() => {
                SpawnError::NotInPath { program }
            }
            Errno::NOENT if self.is_bare_name() || self.path.exists() => SpawnError::InterpreterMissing { program },
            Errno::NOENT | Errno::NOTDIR => SpawnError::Missing { program },
            Errno::ACCESS if self.path.is_dir() => SpawnError::IsDirectory { program },
            Errno::ACCESS | Errno::PERM => SpawnError::NotExecutable { program },
            Errno::NOEXEC => SpawnError::UnknownFormat { program },
            Errno::TXTBSY => SpawnError::BeingWritten { program },
            Errno::TOOBIG => SpawnError::ArgumentsTooLong,
            errno => self.system("posix_spawn", errno),
        }
    }

    fn too_many(&self) -> SpawnError {
        SpawnError::TooManyDescriptors { count: self.descriptors.len(), limit: DescriptorLimit::current().soft }
    }

    fn system(&self, call: &'static str, errno: Errno) -> SpawnError {
        SpawnError::System { program: self.path.clone(), call, source: errno.into() }
    }
}

/// Whether a program is looked for in `PATH`.
pub(crate) fn is_bare_name(path: &Path) -> bool {
    !path.as_os_str().as_bytes().contains(&b'/')
}

/// Whether the program at `path` could be started, as far as its file shows: for one that another program will become.
///
/// ```
/// use kvshare::fd::{SpawnError, check_program};
///
/// check_program("sh".as_ref())?;
/// assert!(matches!(check_program("/no/such/program".as_ref()), Err(SpawnError::Missing { .. })));
/// # Ok::<(), SpawnError>(())
/// ```
///
/// # Errors
///
/// [`SpawnError::NotInPath`], [`SpawnError::Missing`], [`SpawnError::IsDirectory`] or [`SpawnError::NotExecutable`].
pub fn check_program(path: &Path) -> Result<(), SpawnError> {
    let program = Program::new(path);
    if program.is_bare_name() {
        return if program.is_in_path() { Ok(()) } else { Err(program.diagnose(Errno::NOENT)) };
    }
    match rustix::fs::access(path, rustix::fs::Access::EXEC_OK) {
        Ok(()) if path.is_dir() => Err(program.diagnose(Errno::ACCESS)),
        Ok(()) => Ok(()),
        Err(errno) => Err(program.diagnose(errno)),
    }
}

/// Whether a program could start in `directory`.
fn check_directory(directory: &Path) -> io::Result<()> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(rustix::fs::access(directory, rustix::fs::Access::EXEC_OK)?)
}

/// `value` as C takes it.
fn text(part: &'static str, value: &OsStr) -> Result<CString, SpawnError> {
    CString::new(value.to_owned().into_vec())
        .map_err(|_| SpawnError::NulByte { part, value: value.to_string_lossy().into_owned() })
}
