//! What a command that shows handoffs runs on: a runtime, a private directory, a decoder and a provider of this program.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fake_exporter::model::EMBEDDED_GGUF;
use indicatif::{ProgressBar, ProgressStyle};
use kvshare::handoff::ProviderProgram;

use crate::cycle::{Cycle, DecoderClient};
use crate::decoder_process::DecoderProcess;
use crate::output::Failure;

/// A runtime, this program's own path, a private directory, and a place for progress.
pub(crate) struct Stage {
    runtime: tokio::runtime::Runtime,
    program: PathBuf,
    slot_directory: tempfile::TempDir,
    progress: ProgressBar,
}

impl Stage {
    pub(crate) fn prepare() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let progress = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
        progress.enable_steady_tick(Duration::from_millis(100));
        Ok(Self {
            runtime: runtime.map_err(Failure::new)?,
            program: std::env::current_exe().map_err(Failure::new)?,
            slot_directory: private_directory().map_err(Failure::new)?,
            progress,
        })
    }

    /// Says what is going on, where standard error is a terminal.
    pub(crate) fn say(&self, what: &str) {
        self.progress.set_message(what.to_owned());
    }

    /// The private directory.
    pub(crate) fn directory(&self) -> &Path {
        self.slot_directory.path()
    }

    /// Prints a provider's words on standard error, beside the progress.
    pub(crate) fn log(&self) -> impl Fn(&str) + use<> {
        let progress = self.progress.clone();
        // Whoever started us may have closed it; nobody is left to tell then.
        move |line| progress.suspend(|| _ = writeln!(std::io::stderr(), "provider: {line}"))
    }

    /// Starts a decoder with `arguments` of its own.
    pub(crate) fn decoder(&self, arguments: &[&str]) -> Result<DecoderProcess, Failure> {
        let parent = std::process::id().to_string();
        let mut all: Vec<OsString> =
            ["fake-exporter", "--exit-with-parent", &parent, "--port", "0", "--slot-save-path"].map(Into::into).into();
        all.push(self.slot_directory.path().into());
        all.extend(arguments.iter().map(Into::into));
        DecoderProcess::start(&self.program, all).map_err(Failure::new)
    }

    /// This program's reference provider, with `arguments` of its own.
    pub(crate) fn reference_provider(&self, model: PathBuf, arguments: &[&str]) -> ProviderProgram {
        let leading_arguments = ["reference-provider"].iter().chain(arguments).map(Into::into).collect();
        ProviderProgram { leading_arguments, ..ProviderProgram::new(&self.program, model) }
    }

    /// The cycle between `decoder` and `provider`.
    pub(crate) fn cycle(&self, decoder: &DecoderProcess, provider: ProviderProgram) -> Result<Cycle, Failure> {
        let decoder = DecoderClient::new(decoder.address());
        Ok(Cycle { decoder, provider, slot_directory: self.slot_directory.path().to_owned() })
    }

    /// The embedded model as a file, since the contract names models by their paths.
    pub(crate) fn embedded_model(&self) -> Result<PathBuf, Failure> {
        let path = self.slot_directory.path().join("kvshare-tiny.gguf");
        std::fs::write(&path, EMBEDDED_GGUF).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Ok(path)
    }

    /// Waits for `work`, or for Ctrl-C: then everything is torn down in order.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.runtime.block_on(async {
            tokio::select! {
                outcome = work => outcome,
                _ = tokio::signal::ctrl_c() => Err(Failure::new("interrupted")),
            }
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// A directory that nobody else can reach, as the socket in it needs; gone at the end.
fn private_directory() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("kvshare-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// What a provider says on standard error: its progress is shown by the spinner, an error by the failure that follows.
pub(crate) fn quiet(_line: &str) {}

/// A time as it is reported: in milliseconds, to the microsecond.
pub(crate) fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
