//! How many descriptors this process may have open.

use super::FdError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit on a process's open descriptors, `RLIMIT_NOFILE` of
/// [getrlimit(2)](https://man7.org/linux/man-pages/man2/getrlimit.2.html). `None` is no limit.
///
/// A descriptor that arrives over a socket when the limit is reached is lost. Nothing in kvshare changes the limit
/// unless it is told to.
///
/// ```
/// use kvshare::fd::DescriptorLimit;
///
/// let limit = DescriptorLimit::current();
/// let raised = DescriptorLimit::raise_soft()?;
/// assert_eq!(raised.soft, limit.hard);
/// # Ok::<(), kvshare::fd::FdError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The limit that is in force.
    pub soft: Option<u64>,
    /// How far the process may raise the soft limit by itself.
    pub hard: Option<u64>,
}

impl DescriptorLimit {
    /// Reads the limit that is in force.
    pub fn current() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        Self { soft: current, hard: maximum }
    }

    /// Raises the soft limit to the hard one, for the whole process, and returns the new limit.
    ///
    /// # Errors
    ///
    /// [`FdError::System`] if the kernel refuses, which it does where the hard limit is above `fs.nr_open`.
    pub fn raise_soft() -> Result<Self, FdError> {
        let Self { hard, .. } = Self::current();
        setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).map_err(FdError::system("setrlimit"))?;
        Ok(Self { soft: hard, hard })
    }
}
