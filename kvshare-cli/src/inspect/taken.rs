//! Where the descriptors come from that are looked at: this program's own, or another process's.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;

use kvshare::fd::{FdError, take_inherited};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Why a descriptor could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// This program was not started with it.
    #[error("{0} (a shell opens one for a program so: kvshare-cli … 5<>FILE)")]
    Inherited(#[from] FdError),
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process id given.
        pid: i32,
    },
    /// The process has no such descriptor.
    #[error("process {pid} has no descriptor {number}; kvshare-cli inspect --pid {pid} shows those that are memory")]
    NotOpen {
        /// The process.
        pid: i32,
        /// The descriptor's number there.
        number: i32,
    },
    /// The kernel does not let us.
    #[error(
        "the kernel does not let this program take descriptors from process {pid}: that needs the same user and the \
         right to trace it{}; run as root, or let the process hand them over itself (kvshare-cli recv)",
        tracing_rule()
    )]
    NotPermitted {
        /// The process.
        pid: i32,
    },
    /// The kernel is too old.
    #[error("this kernel cannot take descriptors from another process ({call} came with Linux {since})")]
    TooOld {
        /// The call it lacks.
        call: &'static str,
        /// The version that brought it.
        since: &'static str,
    },
    /// The system answered something else.
    #[error("{call} for process {pid} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The process.
        pid: i32,
        /// What the system answered.
        source: io::Error,
    },
}

/// What Yama says of tracing, where it is in force (the kernel's Documentation/admin-guide/LSM/Yama.rst).
fn tracing_rule() -> String {
    let path = "/proc/sys/kernel/yama/ptrace_scope";
    match fs::read_to_string(path).as_deref().map(str::trim) {
        Ok("0") | Err(_) => String::new(),
        Ok(scope) => format!(" ({path} is {scope})"),
    }
}

/// Where descriptors are taken from.
#[derive(Debug)]
pub enum Holder {
    /// This program was started with them.
    ThisProcess,
    /// Another process has them.
    Other {
        /// Its process id.
        pid: i32,
        /// A handle to it.
        pidfd: OwnedFd,
    },
}

impl Holder {
    /// The process `pid`, or this one.
    ///
    /// # Errors
    /// [`TakeError`], but those about one descriptor.
    pub fn open(pid: Option<i32>) -> Result<Self, TakeError> {
        let Some(pid) = pid else { return Ok(Self::ThisProcess) };
        let number = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(TakeError::NoProcess { pid })?;
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self::Other { pid, pidfd }),
            // ESRCH where there is none, EINVAL where the id is a thread's.
            Err(Errno::SRCH | Errno::INVAL) => Err(TakeError::NoProcess { pid }),
            Err(Errno::NOSYS) => Err(TakeError::TooOld { call: "pidfd_open", since: "5.3" }),
            Err(errno) => Err(TakeError::System { call: "pidfd_open", pid, source: errno.into() }),
        }
    }

    /// A descriptor of our own for its descriptor `number`.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn take(&self, number: i32) -> Result<OwnedFd, TakeError> {
        let Self::Other { pid, pidfd } = self else {
            return take_inherited(&[number])?.pop().ok_or(TakeError::Inherited(FdError::NotOpen { number }));
        };
        let pid = *pid;
        pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()).map_err(|errno| match errno {
            Errno::BADF => TakeError::NotOpen { pid, number },
            Errno::PERM | Errno::ACCESS => TakeError::NotPermitted { pid },
            Errno::SRCH => TakeError::NoProcess { pid },
            Errno::NOSYS => TakeError::TooOld { call: "pidfd_getfd", since: "5.6" },
            errno => TakeError::System { call: "pidfd_getfd", pid, source: errno.into() },
        })
    }

    /// Whether its descriptor `number` closes on exec. (Our own for it says nothing of that.)
    pub fn closes_on_exec(&self, number: i32) -> bool {
        // What closed on exec was not inherited.
        let Self::Other { pid, .. } = self else { return false };
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        // In octal (proc_pid_fdinfo(5)).
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        rustix::fs::OFlags::from_bits_retain(flags).contains(rustix::fs::OFlags::CLOEXEC)
    }

    /// The numbers of its descriptors that are memory by their links in `/proc`: memfds, dma-bufs and NVIDIA's. Of
    /// several for the same memory, the lowest.
    ///
    /// # Errors
    /// [`TakeError::NotPermitted`], and what else the system answers.
    pub fn memory_descriptors(&self) -> Result<Vec<i32>, TakeError> {
        let (pid, directory) = match self {
            Self::ThisProcess => (0, "/proc/self/fd".to_owned()),
            Self::Other { pid, .. } => (*pid, format!("/proc/{pid}/fd")),
        };
        let entries = fs::read_dir(directory).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => TakeError::NotPermitted { pid },
            io::ErrorKind::NotFound => TakeError::NoProcess { pid },
            _ => TakeError::System { call: "reading /proc/PID/fd", pid, source },
        })?;
        let is_memory = |link: &str| ["/memfd:", "/dmabuf:", "/dev/nvidia"].iter().any(|start| link.starts_with(start));
        let memory = entries.flatten().filter_map(|entry| {
            let link = entry.path().read_link().ok().filter(|link| is_memory(&link.to_string_lossy()))?;
            // A device's file stands for all of its memory.
            let is_device = link.starts_with("/dev");
            let file = fs::metadata(entry.path()).ok().filter(|_| !is_device).map(|file| (file.dev(), file.ino()));
            Some((entry.file_name().to_str()?.parse().ok()?, file))
        });
        let mut memory: Vec<(i32, Option<(u64, u64)>)> = memory.collect();
        memory.sort_unstable();
        let mut known = HashSet::new();
        memory.retain(|(_, file)| file.is_none_or(|file| known.insert(file)));
        Ok(memory.into_iter().map(|(number, _)| number).collect())
    }
}
