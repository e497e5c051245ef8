//! A backend that we start, watch, and start again when it dies.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvshare::fd::{Child, FdError, Program, Signal, SpawnError, check_program};
use kvshare::handoff::{Cancel, Ending};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::runtime::Handle;

use super::backend::{Backend, BackendState};
use super::end_with_parent;
use super::log::{Event, LogFormat};
use super::metrics::Metrics;

/// The first pause before another start; each failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that lived so long is started again without much ado.
const LONG_LIFE: Duration = Duration::from_secs(60);
/// Between two looks whether it answers yet.
const PROBE_EVERY: Duration = Duration::from_millis(25);
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// How a backend is started.
#[derive(Clone, Debug)]
pub struct BackendCommand {
    /// The program; a name without a slash is looked for in `PATH`.
    pub program: PathBuf,
    /// The model.
    pub model: PathBuf,
    /// Where it keeps state files.
    pub slot_directory: PathBuf,
    /// The user's own flags.
    pub flags: Vec<OsString>,
    /// The key it demands.
    pub api_keys: Option<String>,
    /// Whether it is to share its cache, which it learns from `ONEBIT_KV_SHARE`.
    pub shares: bool,
}

/// Why a backend is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The program did not start.
    #[error("the backend did not start: {0}")]
    Start(#[from] SpawnError),
    /// It ended.
    #[error("the backend ended ({0}); what it said stands above")]
    Ended(Ending),
    /// It was ended: a provider that could not be may still write into its memory.
    #[error("the backend was ended, since a provider that could not be may still write into its cache")]
    Spoiled,
    /// No directory of `PATH` has it.
    #[error("no directory of PATH holds a program {}; install llama.cpp, or give the path with --backend", program.display())]
    NotFound {
        /// The program.
        program: PathBuf,
    },
    /// The system.
    #[error("the backend cannot be watched: {0}")]
    System(#[from] std::io::Error),
    /// Waiting for it failed.
    #[error("the backend cannot be watched: {0}")]
    Watch(#[from] FdError),
}

/// A backend that is kept alive by a thread of its own. It is ended when this is dropped.
#[derive(Debug)]
pub struct BackendProcess {
    /// The backend as requests see it.
    pub backend: Backend,
    stop: Cancel,
    keeper: Option<JoinHandle<()>>,
}

impl BackendProcess {
    /// Starts a backend on a free port of this machine. It is [`BackendState::Starting`] then.
    ///
    /// # Errors
    /// The system has no port or thread left.
    pub fn start(
        command: BackendCommand,
        http: reqwest::Client,
        log: LogFormat,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BackendError> {
        let port = free_port()?;
        let url = format!("http://127.0.0.1:{port}");
        let health = format!("{url}/health");
        let backend = Backend::ours(url)?;
        let (stop, runtime) = (Cancel::new()?, Handle::current());
        let keeper =
            Keeper { command, port, health, http, runtime, backend: backend.clone(), stop: stop.clone(), log, metrics };
        // The kernel ends the backend with the thread that started it, so that thread must live as long as we do.
        let keeper = std::thread::Builder::new().name("backend".to_owned()).spawn(move || keeper.keep())?;
        Ok(Self { backend, stop, keeper: Some(keeper) })
    }
}

impl Drop for BackendProcess {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(keeper) = self.keeper.take() {
            // It panicked, if at all, in its own thread, and said so there.
            let _ = keeper.join();
        }
    }
}

/// What the thread needs.
struct Keeper {
    command: BackendCommand,
    port: u16,
    health: String,
    http: reqwest::Client,
    runtime: Handle,
    backend: Backend,
    stop: Cancel,
    log: LogFormat,
    metrics: Arc<Metrics>,
}

impl Keeper {
    fn keep(self) {
        let (mut pause, mut has_served) = (FIRST_PAUSE, false);
        let stopping = || BackendState::Stopped("the server is stopping".to_owned());
        loop {
            let born = Instant::now();
            let Err(error) = self.live() else {
                self.backend.set(stopping());
                return;
            };
            has_served |= self.backend.state() != BackendState::Starting;
            if !has_served {
                // One that never served would not the second time either.
                self.backend.set(BackendState::Stopped(error.to_string()));
                return;
            }
            self.log.write(Event::Notice { words: &format_args!("{error}; it is started again") });
            self.backend.set(BackendState::Down(error.to_string()));
            pause = if born.elapsed() >= LONG_LIFE { FIRST_PAUSE } else { (2 * pause).min(LONGEST_PAUSE) };
            if self.is_stopped_within(pause) {
                self.backend.set(stopping());
                return;
            }
            self.metrics.backend_restarts.inc();
        }
    }

    /// One life of the backend. `Ok` where it was ended on request.
    fn live(&self) -> Result<(), BackendError> {
        let mut child = self.command.spawn(self.port)?;
        let mut is_up = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Err(BackendError::Ended(status.into()));
            }
            if !is_up && self.runtime.block_on(self.answers()) {
                is_up = true;
                self.backend.set(BackendState::Up);
            }
            let limit = if is_up { None } else { Some(PROBE_EVERY) };
            if self.wait(Some(&child), limit)? {
                return end(&mut child);
            }
            if self.backend.takes_restart() {
                end(&mut child)?;
                return Err(BackendError::Spoiled);
            }
        }
    }

    async fn answers(&self) -> bool {
        let health = self.http.get(&self.health).timeout(Duration::from_secs(2)).send().await;
        health.is_ok_and(|answer| answer.status().is_success())
    }

    /// Waits for the child's end, for a request to stop or to start it again, or for `limit`; says whether to stop.
    fn wait(&self, child: Option<&Child>, limit: Option<Duration>) -> Result<bool, BackendError> {
        let restart = self.backend.restart().filter(|_| child.is_some());
        let others = [child.map(|child| child.as_fd()), restart].into_iter().flatten();
        let mut sources = vec![PollFd::new(&self.stop, PollFlags::IN)];
        sources.extend(others.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut sources, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!sources[0].revents().is_empty()),
            Err(errno) => Err(BackendError::System(errno.into())),
        }
    }

    fn is_stopped_within(&self, limit: Duration) -> bool {
        self.wait(None, Some(limit)).unwrap_or(true)
    }
}

impl BackendCommand {
    fn spawn(&self, port: u16) -> Result<Child, BackendError> {
        // Becoming another program hides why that failed, so the usual reasons are looked for first.
        check_program(&self.program).map_err(|error| match error {
            SpawnError::NotInPath { program } => BackendError::NotFound { program },
            error => error.into(),
        })?;
        // The proxy's own standard output is for its users.
        let [us, command, parent] = end_with_parent::launcher();
        let mut program = Program::new(us)
            .args([command, "--quiet".into(), parent])
            .arg(&self.program)
            .arg("-m")
            .arg(&self.model)
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "-np", "1", "--slot-save-path"])
            .arg(&self.slot_directory)
            .args(&self.flags);
        if let Some(keys) = &self.api_keys {
            program = program.env("LLAMA_API_KEY", keys);
        }
        if self.shares {
            program = program.env("ONEBIT_KV_SHARE", "1");
        }
        Ok(program.spawn()?)
    }
}

/// Ends the backend, by force if it takes too long.
fn end(child: &mut Child) -> Result<(), BackendError> {
    child.signal_group(Signal::TERM)?;
    if child.wait(Instant::now() + GRACE)?.is_none() {
        child.signal_group(Signal::KILL)?;
        child.wait(Instant::now() + GRACE)?;
    }
    Ok(())
}

/// A port that nobody listens at now. Should somebody take it first, the backend says so and does not start.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
