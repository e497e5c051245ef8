//! Bytes that cross as a descriptor: a memfd that nobody can change any more.

use crate::memory::create_memfd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};

/// What makes a copy of the bytes needless: no length and no byte of them changes any more.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Why sealed bytes could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedError {
    /// Whoever sent them could still change them.
    #[error("it is no memfd that is sealed against writing, shrinking and growing (fcntl(2), F_ADD_SEALS)")]
    NotSealed,
    /// They are longer than allowed.
    #[error("it has {size} bytes, over the limit of {limit}")]
    TooLong {
        /// How long they are.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The system.
    #[error("it could not be read: {0}")]
    System(#[from] std::io::Error),
}

/// A sealed memfd of these bytes.
pub(crate) fn seal(name: &str, bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = File::from(create_memfd(name, MemfdFlags::empty())?);
    file.write_all(bytes)?;
    let memfd = OwnedFd::from(file);
    fcntl_add_seals(&memfd, FIXED | SealFlags::SEAL)?;
    Ok(memfd)
}

/// The bytes of a sealed memfd, at most `limit`. Its sender can neither change them while they are read nor have
/// more read than are there.
pub(crate) fn read_sealed(memfd: impl AsFd, limit: u64) -> Result<Vec<u8>, SealedError> {
    let memfd = memfd.as_fd();
    // EINVAL: no memfd at all.
    let seals = fcntl_get_seals(memfd).unwrap_or(SealFlags::empty());
    if !seals.contains(FIXED) {
        return Err(SealedError::NotSealed);
    }
    let size = u64::try_from(fstat(memfd).map_err(std::io::Error::from)?.st_size).unwrap_or(0);
    if size > limit {
        return Err(SealedError::TooLong { size, limit });
    }
    let mut bytes = vec![0; size as usize];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(memfd, &mut bytes[done..], done as u64) {
            Ok(0) => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_read_and_cannot_be_changed() {
        let memfd = seal("bytes", b"some bytes").unwrap();
        assert_eq!(read_sealed(&memfd, 10).unwrap(), b"some bytes");
        assert_eq!(rustix::io::pwrite(&memfd, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&memfd, 0), Err(Errno::PERM));
        assert_eq!(read_sealed(seal("none", b"").unwrap(), 0).unwrap(), b"");
    }

    #[test]
    fn what_can_change_or_is_too_long_is_not_read() {
        let open = create_memfd("open", MemfdFlags::empty()).unwrap();
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW | SealFlags::SHRINK] {
            fcntl_add_seals(&open, seals).unwrap();
            assert!(matches!(read_sealed(&open, 9), Err(SealedError::NotSealed)), "{seals:?}");
        }
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(matches!(read_sealed(pipe, 9), Err(SealedError::NotSealed)));
        let long = seal("long", b"0123456789").unwrap();
        assert!(matches!(read_sealed(&long, 9), Err(SealedError::TooLong { size: 10, limit: 9 })));
    }
}
