//! The seals on a memfd, and which of them shared memory needs.

use rustix::fs::SealFlags;
use std::fmt;

/// The seals that a region needs, so that its size can be relied on: nobody, its maker included, can take pages from
/// under a mapping (an access to one that is gone raises `SIGBUS`), change the size in the other direction, or add a
/// seal that others do not expect. Writing stays allowed: it is what regions are for, and a udmabuf refuses a memfd that
/// is sealed against it.
pub(crate) const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The seals on a memfd: what nobody can do to it any more (`F_GET_SEALS` of
/// [fcntl(2)](https://man7.org/linux/man-pages/man2/F_GET_SEALS.2const.html)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seals {
    /// It cannot be made shorter, so a mapping of it cannot lose its pages.
    pub shrink: bool,
    /// It cannot be made longer.
    pub grow: bool,
    /// It cannot be written.
    pub write: bool,
    /// It cannot be written except through mappings that exist already.
    pub future_write: bool,
    /// No seal can be added.
    pub seal: bool,
}

impl From<SealFlags> for Seals {
    fn from(flags: SealFlags) -> Self {
        Self {
            shrink: flags.contains(SealFlags::SHRINK),
            grow: flags.contains(SealFlags::GROW),
            write: flags.contains(SealFlags::WRITE),
            future_write: flags.contains(SealFlags::FUTURE_WRITE),
            seal: flags.contains(SealFlags::SEAL),
        }
    }
}

impl fmt::Display for Seals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.shrink, "shrink"),
            (self.grow, "grow"),
            (self.write, "write"),
            (self.future_write, "future write"),
            (self.seal, "seal"),
        ];
        let set: Vec<&str> = names.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect();
        formatter.pad(&if set.is_empty() { "none".to_owned() } else { set.join(", ") })
    }
}
