//! What the kernel says of a descriptor, and what that forbids.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags, SealFlags};

use super::placement::MapFrom;
use super::{Access, Extent, Guard, MapError, Unsealed};
use crate::fd::{FileSystem, REQUIRED_SEALS, dma_buf_size, exporter};

/// Exporters whose buffers were seen to be mapped right from any offset: memfds as a dma-buf, and the system heap.
const MAPS_PARTS: [&str; 2] = ["udmabuf", "system"];

/// What the kernel says of a descriptor, as far as mapping it goes. Nothing of it comes from the peer that sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mappable {
    /// Whether it is a buffer that devices share, whose size never changes, and not a memfd or a file.
    pub is_dma_buf: bool,
    /// Mappings start and end at multiples of this.
    pub page_bytes: u64,
    size: u64,
    mode: OFlags,
    seals: SealFlags,
}

impl Mappable {
    /// Asks the kernel.
    pub fn of(descriptor: BorrowedFd<'_>) -> Result<Self, MapError> {
        let FileSystem { is_dma_buf, page_bytes } = FileSystem::of(descriptor).map_err(MapError::system("fstatfs"))?;
        let mode = rustix::fs::fcntl_getfl(descriptor).map_err(MapError::system("F_GETFL"))?;
        // Seals come before the size: a holder that truncates and then seals must not pass with the size from before.
        // Files that know no seals answer EINVAL: they have none.
        let seals = rustix::fs::fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
        let size = if is_dma_buf {
            dma_buf_size(descriptor).map_err(MapError::system("lseek"))?
        } else {
            file_size(descriptor)?
        };
        Ok(Self { is_dma_buf, page_bytes, size, mode, seals })
    }

    /// Whether the memory comes from a pool of huge pages.
    pub fn is_huge(&self) -> bool {
        self.page_bytes > rustix::param::page_size() as u64
    }

    /// From where the descriptor, which is this one, is to be mapped.
    ///
    /// Several DRM drivers count a mapping's pages from its first one, wherever in the buffer that lies, also after the
    /// kernel has split the mapping (Linux, drivers/gpu/drm/drm_gem_shmem_helper.c, `drm_gem_shmem_fault`): a part would show
    /// the buffer's first bytes. Mapped in one piece from its start, a buffer is seen right with every driver.
    pub fn map_from(&self, descriptor: BorrowedFd<'_>, guard: Guard) -> Result<MapFrom, MapError> {
        match (self.is_dma_buf, guard) {
            (false, _) => Ok(MapFrom::Offset),
            (true, Guard::None | Guard::Region) => Ok(MapFrom::Start),
            (true, Guard::Tensor) => match exporter(descriptor) {
                Some(exporter) if MAPS_PARTS.contains(&exporter.as_str()) => Ok(MapFrom::Offset),
                exporter => Err(MapError::GuardOfParts { exporter: exporter.unwrap_or_default() }),
            },
        }
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
            return Err(if self.is_dma_buf { MapError::DmaBufReadOnly } else { MapError::FileReadOnly });
        }
        if self.seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(MapError::SealedAgainstWriting);
        }
        Ok(())
    }

    pub fn check_seals(&self, unsealed: Unsealed) -> Result<(), MapError> {
        let accepted = self.is_dma_buf || unsealed == Unsealed::AcceptSigbus || self.seals.contains(REQUIRED_SEALS);
        if accepted { Ok(()) } else { Err(MapError::Unsealed) }
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
