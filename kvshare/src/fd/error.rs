//! What can go wrong with a descriptor.

use super::Kind;
use std::io;
use std::process::ExitStatus;

/// Why a descriptor was refused, or could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FdError {
    /// The descriptor is of a kind that is never memory.
    #[error("a {kind} cannot be a region; send a memfd, a dma-buf or other memory that its owner exported")]
    NotARegion {
        /// What the descriptor is.
        kind: Kind,
    },
    /// The number belongs to a standard stream.
    #[error("descriptor {number} cannot be inherited memory: numbers below 3 are the standard streams")]
    StandardStream {
        /// The number as it was given.
        number: i32,
    },
    /// No descriptor is open at the number.
    #[error("no descriptor is open at {number}; was this program started with it?")]
    NotOpen {
        /// The number as it was given.
        number: i32,
    },
    /// The number stands twice in the list.
    #[error("descriptor {number} is listed twice; list each descriptor once")]
    Repeated {
        /// The number as it was given.
        number: i32,
    },
    /// This process took the number before.
    #[error("descriptor {number} was taken before; take the inherited descriptors once and pass them on")]
    TakenBefore {
        /// The number as it was given.
        number: i32,
    },
    /// The descriptor was opened by this process itself.
    #[error(
        "descriptor {number} was not inherited: it closes on exec, so this process opened it itself; was the list meant \
         for another program?"
    )]
    NotInherited {
        /// The number as it was given.
        number: i32,
    },
    /// A program that we started has ended, and a process of its group did not die of `SIGKILL`: a driver holds it in the
    /// kernel, or it has taken on another user's rights.
    #[error(
        "the program ended ({status}), but a process that it started still runs after SIGKILL; do not use the memory \
         again that it was given"
    )]
    GroupRemains {
        /// How the program itself ended.
        status: ExitStatus,
    },
    /// The operating system refused a call.
    #[error("{call} failed: {source}")]
    System {
        /// The call, by the name of its manual page.
        call: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

impl FdError {
    /// Turns the error of the system call `call` into ours.
    pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { call, source: errno.into() }
    }
}
