//! Running a provider program, once, by the contract.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::device_work::wait_for_writers;
use super::watch::{Outputs, Stop, Watched, watch};
use super::{Cancel, Ending, ProviderFailure, ReceivedShare};
use crate::fd::{FIRST_INHERITED, Output, Program, SpawnError, check_program, is_bare_name};
use crate::map::MapError;
use crate::provider::{ResultLine, format_tokens};

/// A provider as a proxy knows it: which program, for which model, under which limit.
#[derive(Clone, Debug)]
pub struct ProviderProgram {
    /// The program; a name without a slash is looked for in `PATH`.
    pub program: PathBuf,
    /// Arguments before those of the contract.
    pub leading_arguments: Vec<OsString>,
    /// A program that is started in the provider's place and becomes it, with its own arguments: one that sets a priority
    /// or a parent-death signal, say. The provider and its arguments follow. Empty for none.
    pub launcher: Vec<OsString>,
    /// The model file that the decoder serves.
    pub model: PathBuf,
    /// Where the provider's kernels are.
    pub elfs: Option<PathBuf>,
    /// Environment variables beside our own.
    pub environment: Vec<(OsString, OsString)>,
    /// How long it may run: then SIGTERM, and SIGKILL five seconds later.
    pub time_limit: Duration,
}

/// Where a provider's cache goes.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// Into a state file of this name in the working directory.
    File {
        /// A bare filename.
        name: &'a str,
    },
    /// Into the regions that a decoder shared.
    Shared(&'a ReceivedShare),
}

impl Destination<'_> {
    /// Waits until no device is to write there any more.
    pub(super) fn wait_for_writers(self, deadline: Instant) -> Result<(), MapError> {
        match self {
            Self::File { .. } => Ok(()),
            Self::Shared(share) => wait_for_writers(&share.descriptors, deadline),
        }
    }
}

/// What a provider achieved.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderReport {
    /// Its result line, whose count is that of the tokens it was given.
    pub result: ResultLine,
    /// From before it was started until its end was seen.
    pub wall: Duration,
}

impl ProviderReport {
    /// How long the prefill took: the provider's own word if it gave one, else its whole run.
    pub fn prefill(&self) -> Duration {
        let own = self.result.prefill_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        own.unwrap_or(self.wall)
    }
}

impl ProviderProgram {
    /// A provider without extras and with the contract's limit of 600 seconds.
    pub fn new(program: impl Into<PathBuf>, model: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            leading_arguments: Vec::new(),
            launcher: Vec::new(),
            model: model.into(),
            elfs: None,
            environment: Vec::new(),
            time_limit: Duration::from_secs(600),
        }
    }

    /// Runs the provider on `tokens` in `directory`, the slot directory, and waits until it and its process group are
    /// gone, and until its device has written what it was still writing then. The files it reads lie there meanwhile; `log` gets every line of its standard error.
    ///
    /// # Errors
    /// [`ProviderFailure`] says what went wrong, and whether anything may have been written or still be.
    pub fn run(
        &self,
        tokens: &[i32],
        destination: Destination<'_>,
        directory: &Path,
        cancel: Option<&Cancel>,
        log: &mut dyn FnMut(&str),
    ) -> Result<ProviderReport, ProviderFailure> {
        let started = Instant::now();
        let deadline = self.deadline(started);
        let token_file = placed(directory, "the token file", ".tokens", format_tokens(tokens).as_bytes())?;
        let layout_file = match destination {
            Destination::File { .. } => None,
            Destination::Shared(share) => Some(placed(directory, "the header", ".json", &share.header_bytes)?),
        };
        let program = self.command(&token_file, layout_file.as_ref(), destination)?.current_dir(directory);
        let mut child = program.stdout(Output::Pipe).stderr(Output::Pipe).spawn()?;
        let mut outputs = Outputs::of(&mut child)?;
        let watched = watch(&mut child, &mut outputs, deadline, cancel, log)?;
        let written = destination.wait_for_writers(deadline);
        if let Err(MapError::DeviceBusy) = written {
            // Whatever else went wrong, this is what keeps the cells from being used again.
            return Err(ProviderFailure::Device(MapError::DeviceBusy));
        }
        let result = self.judge(watched, outputs, tokens.len())?;
        written.map_err(ProviderFailure::Device)?;
        Ok(ProviderReport { result, wall: started.elapsed() })
    }

    /// When a run that starts now is over its limit.
    pub(super) fn deadline(&self, started: Instant) -> Instant {
        started.checked_add(self.time_limit).unwrap_or(started + Duration::from_secs(1 << 30))
    }

    fn command<'a>(
        &self,
        token_file: &NamedTempFile,
        layout_file: Option<&NamedTempFile>,
        destination: Destination<'a>,
    ) -> Result<Program<'a>, SpawnError> {
        let mut program = self.launched()?.arg("--tokens").arg(token_file.path());
        program = program.arg("--model").arg(absolute(&self.model));
        if let Destination::File { name } = destination {
            program = program.arg("--out").arg(name);
        }
        if let (Destination::Shared(share), Some(layout_file)) = (destination, layout_file) {
            program = program.arg("--layout").arg(layout_file.path()).arg("--fds").arg(numbers(&share.descriptors));
            program = program.descriptors(share.descriptors.iter().map(|descriptor| descriptor.as_fd()));
        }
        Ok(self.equipped(program))
    }

    /// `program` with what does not depend on the prompt: the kernels' place and the environment.
    pub(super) fn equipped<'a>(&self, mut program: Program<'a>) -> Program<'a> {
        if let Some(elfs) = &self.elfs {
            program = program.arg("--elfs").arg(absolute(elfs));
        }
        self.environment.iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// The program with its own arguments alone, or the launcher that is to become it.
    pub(super) fn launched<'a>(&self) -> Result<Program<'a>, SpawnError> {
        let [launcher, arguments @ ..] = &self.launcher[..] else {
            return Ok(Program::new(&self.program).args(&self.leading_arguments));
        };
        // A launcher that cannot become the provider only ends; the usual reasons are named before.
        check_program(&self.program)?;
        let provider = if is_bare_name(&self.program) { self.program.clone() } else { absolute(&self.program) };
        Ok(Program::new(launcher).args(arguments).arg(provider).args(&self.leading_arguments))
    }

    fn judge(&self, watched: Watched, mut outputs: Outputs, given: usize) -> Result<ResultLine, ProviderFailure> {
        let Watched { ending, stopped } = watched;
        match stopped {
            Some(Stop::Timeout) => return Err(ProviderFailure::TimedOut { limit: self.time_limit, ending }),
            Some(Stop::Cancelled) => return Err(ProviderFailure::Cancelled { ending }),
            None => {}
        }
        if ending != Ending::Exit(0) {
            return Err(ProviderFailure::Failed { ending, said: outputs.said() });
        }
        let result: ResultLine = outputs.last_stdout.ok_or(ProviderFailure::NoResult)?.parse()?;
        check_count(&result, given)?;
        Ok(result)
    }
}

pub(super) fn check_count(result: &ResultLine, given: usize) -> Result<(), ProviderFailure> {
    match result.n_tokens {
        reported if reported != given as u64 => Err(ProviderFailure::WrongCount { reported, given }),
        _ => Ok(()),
    }
}

/// A file in the slot directory that only its owner may read and that is gone when dropped.
fn placed(
    directory: &Path,
    what: &'static str,
    suffix: &str,
    contents: &[u8],
) -> Result<NamedTempFile, ProviderFailure> {
    let write = || {
        let mut file = tempfile::Builder::new().prefix("kvshare-").suffix(suffix).tempfile_in(directory)?;
        file.write_all(contents)?;
        Ok(file)
    };
    write().map_err(|source: io::Error| ProviderFailure::Prepare { what, directory: directory.to_owned(), source })
}

/// The provider runs in another directory, so a path must not depend on ours.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `3,4,5` for as many descriptors as there are.
fn numbers(descriptors: &[OwnedFd]) -> String {
    let numbers = (FIRST_INHERITED..).take(descriptors.len()).map(|number| number.to_string());
    numbers.collect::<Vec<_>>().join(",")
}
