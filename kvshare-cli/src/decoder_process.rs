//! A decoder as a process of its own, for as long as it is needed.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use kvshare::fd::{Child, Output, Program, SpawnError};

/// How long a decoder may take to load its model and listen.
const START_LIMIT: Duration = Duration::from_secs(120);

/// What the stand-in prints before its address.
const READY: &str = "listening on ";

/// Why a decoder did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It ended, or closed its output, before it listened.
    #[error("the decoder ended before it listened; what it said stands above")]
    Ended,
    /// It did not listen in time.
    #[error("the decoder did not listen within {} s", START_LIMIT.as_secs())]
    Late,
}

/// A running `fake-exporter`. It is killed when this is dropped, and when this process dies.
#[derive(Debug)]
pub struct DecoderProcess {
    child: Child,
    address: String,
}

impl DecoderProcess {
    /// Starts `program` with `arguments`, and waits until it says where it listens.
    ///
    /// Its standard error is ours. Call it from a thread that lives as long as the decoder is to: the kernel ends the
    /// decoder with the thread that started it (prctl(2), `PR_SET_PDEATHSIG`).
    ///
    /// # Errors
    /// The program does not start, or ends, or stays silent.
    pub fn start(program: &Path, arguments: Vec<OsString>) -> Result<Self, StartError> {
        let mut child = Program::new(program).args(arguments).stdout(Output::Pipe).spawn()?;
        let stdout = child.stdout.take().map(std::fs::File::from);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let Some(stdout) = stdout else { return };
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            // A line that never ends is no address.
            let _ = lines.by_ref().take(4096).read_line(&mut line);
            let _ = sender.send(line);
            // Read on, so that the decoder never meets a closed pipe.
            let _ = std::io::copy(&mut lines, &mut std::io::sink());
        });
        let line = receiver.recv_timeout(START_LIMIT).map_err(|_| StartError::Late)?;
        let address = line.trim().strip_prefix(READY).ok_or(StartError::Ended)?.to_owned();
        Ok(Self { child, address })
    }

    /// Where it listens, such as `http://127.0.0.1:41234`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The most memory it has held resident, in bytes, as far as /proc tells (`VmHWM`, proc_pid_status(5)).
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(PathBuf::from(format!("/proc/{}/status", self.id()))).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }
}
