//! The bytes of one region.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvshare::fd::{Facts, Kind, OpenMode};
use kvshare::map::{Access, CpuAccess, Extent, MapError, MapOptions, MappedRegion};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::ReadError;

/// The bytes of one region, for reading.
#[derive(Debug)]
pub(super) struct RegionBytes {
    source: Source,
    extent: Extent,
}

#[derive(Debug)]
enum Source {
    /// A memfd or a file. `holes` is another opening of it, whose position may be moved; none where it has none.
    File { file: OwnedFd, holes: Option<OwnedFd> },
    /// A dma-buf, with the access that lets the CPU read it.
    Mapped { region: MappedRegion, _access: CpuAccess },
}

impl RegionBytes {
    pub(super) fn open(descriptor: BorrowedFd<'_>, extent: Extent) -> Result<Self, ReadError> {
        let facts = Facts::of(descriptor).map_err(Arc::new)?;
        facts.check_region().map_err(Arc::new)?;
        if facts.access == OpenMode::WriteOnly {
            return Err(ReadError::NotReadable);
        }
        let source = match facts.kind {
            Kind::DmaBuf => {
                let region = MappedRegion::map(descriptor, extent, &[], &MapOptions::default())?;
                let access = region.begin_cpu_access(Access::ReadOnly)?;
                Source::Mapped { region, _access: access }
            }
            Kind::Memfd | Kind::RegularFile => {
                let file = rustix::io::fcntl_dupfd_cloexec(descriptor, 0).map_err(system("fcntl F_DUPFD_CLOEXEC"))?;
                Source::File { holes: reopened(&file), file }
            }
            _ => return Err(ReadError::NotByCpu),
        };
        Ok(Self { source, extent })
    }

    /// Fills `buffer` with the bytes from `offset` on, counted from the region's start.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        match &self.source {
            Source::Mapped { region, .. } => Ok(region.view(offset, buffer.len() as u64)?.copy_to(buffer)?),
            Source::File { file, .. } => {
                let within = offset.checked_add(buffer.len() as u64).is_some_and(|end| end <= self.extent.size);
                if !within {
                    let (len, size) = (buffer.len() as u64, self.extent.size);
                    return Err(MapError::OutOfBounds { offset, len, size }.into());
                }
                read_fully(file, self.extent.offset, offset, buffer)
            }
        }
    }

    /// The first offset from `offset` on, before `end`, at which there may be a byte that is not 0; `end` if there is
    /// none. Pages that nobody has written are passed over unread, also those that `fallocate` reserved (the kernel's
    /// mm/filemap.c, `mapping_seek_hole_data`).
    pub(super) fn next_data(&self, offset: u64, end: u64) -> u64 {
        let Source::File { holes: Some(holes), .. } = &self.source else { return offset };
        match rustix::fs::seek(holes, SeekFrom::Data(self.extent.offset.saturating_add(offset))) {
            Ok(found) => found.saturating_sub(self.extent.offset).clamp(offset, end),
            // No data up to the end of the file.
            Err(Errno::NXIO) => end,
            Err(_) => offset,
        }
    }
}

fn read_fully(file: &OwnedFd, start: u64, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
    let mut done = 0;
    while done < buffer.len() {
        // No overflow: a region ends before 2^63.
        let at = start.saturating_add(offset).saturating_add(done as u64);
        match rustix::io::pread(file, &mut buffer[done..], at) {
            Ok(0) => return Err(ReadError::PastEnd { offset: offset.saturating_add(done as u64) }),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("pread")(errno)),
        }
    }
    Ok(())
}

/// The same file with a position of its own: the descriptor's is shared with everybody who holds it.
fn reopened(file: &OwnedFd) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).ok().map(OwnedFd::from)
}

fn system(call: &'static str) -> impl Fn(Errno) -> ReadError {
    move |errno| ReadError::System { call, errno }
}
