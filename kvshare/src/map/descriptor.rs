//! What the kernel says of a descriptor, and what that forbids.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags, SealFlags, SeekFrom};

use super::{Access, Extent, MapError, Unsealed};

/// `HUGETLBFS_MAGIC` and `DMA_BUF_MAGIC` (linux/magic.h), as `fstatfs` tells them.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// Without these a holder could truncate the file under a mapping, or take the right to seal it from us.
const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What a descriptor refers to, as far as mapping it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A memfd, or a file on a disk or a tmpfs.
    File,
    /// A buffer that devices share. Its size never changes.
    DmaBuf,
}

/// What the kernel says of a descriptor. Nothing of it comes from the peer that sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub kind: Kind,
    /// Mappings start and end at multiples of this.
    pub page_bytes: u64,
    size: u64,
    mode: OFlags,
    seals: SealFlags,
}

impl Facts {
    /// Asks the kernel.
    pub fn of(descriptor: BorrowedFd<'_>) -> Result<Self, MapError> {
        let file_system = rustix::fs::fstatfs(descriptor).map_err(MapError::system("fstatfs"))?;
        let mode = rustix::fs::fcntl_getfl(descriptor).map_err(MapError::system("F_GETFL"))?;
        // Seals come before the size: a holder that truncates and then seals must not pass with the size from before.
        // Files that know no seals answer EINVAL: they have none.
        let seals = rustix::fs::fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
        let mut page_bytes = rustix::param::page_size() as u64;
        let (kind, size) = match file_system.f_type as u32 {
            DMA_BUF_MAGIC => {
                // A dma-buf tells its size so (Linux, Documentation/driver-api/dma-buf.rst); nothing moves.
                let end = rustix::fs::seek(descriptor, SeekFrom::End(0)).map_err(MapError::system("lseek"))?;
                (Kind::DmaBuf, end)
            }
            file_system_type => {
                if file_system_type == HUGETLBFS_MAGIC {
                    page_bytes = file_system.f_bsize as u64;
                }
                (Kind::File, file_size(descriptor)?)
            }
        };
        Ok(Self { kind, page_bytes, size, mode, seals })
    }

    /// Whether the memory comes from a pool of huge pages.
    pub fn is_huge(&self) -> bool {
        self.page_bytes > rustix::param::page_size() as u64
    }

    pub fn check_end(&self, region: Extent) -> Result<(), MapError> {
        let Extent { offset, size } = region;
        match region.end() {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(MapError::PastEnd { offset, size, held: self.size }),
        }
    }

    pub fn check_access(&self, access: Access) -> Result<(), MapError> {
        let mode = self.mode & OFlags::RWMODE;
        if mode == OFlags::WRONLY || self.mode.contains(OFlags::PATH) {
            return Err(MapError::NotReadable);
        }
        if access == Access::ReadOnly {
            return Ok(());
        }
        if mode != OFlags::RDWR {
            return Err(match self.kind {
                Kind::DmaBuf => MapError::DmaBufReadOnly,
                Kind::File => MapError::FileReadOnly,
            });
        }
        if self.seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(MapError::SealedAgainstWriting);
        }
        Ok(())
    }

    pub fn check_seals(&self, unsealed: Unsealed) -> Result<(), MapError> {
        match (self.kind, unsealed) {
            (Kind::File, Unsealed::Refuse) if !self.seals.contains(REQUIRED_SEALS) => Err(MapError::Unsealed),
            _ => Ok(()),
        }
    }
}

/// The size of a regular file. A CUDA allocation shows as a character device, and whatever else is no file has no
/// memory of a size that could be checked.
fn file_size(descriptor: BorrowedFd<'_>) -> Result<u64, MapError> {
    let stat = rustix::fs::fstat(descriptor).map_err(MapError::system("fstat"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MapError::NotByCpu);
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}
