//! What a descriptor is: kind, size, access mode, seals, names.
//!
//! Everything is read from the descriptor itself and none of it from what a peer says.

use super::file_system::FileSystem;
use super::{FdError, REQUIRED_SEALS, Seals};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat, fcntl_get_seals, fcntl_getfl, fstat, seek};
use rustix::io::{Errno, FdFlags};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What kind of thing a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Anonymous memory of [memfd_create(2)](https://man7.org/linux/man-pages/man2/memfd_create.2.html), in pages of
    /// any size.
    Memfd,
    /// A buffer that a driver exported as a dma-buf.
    DmaBuf,
    /// Memory of an NVIDIA GPU that CUDA exported: the descriptor's link is one of `/dev/nvidia*`.
    Cuda,
    /// A file in a file system.
    RegularFile,
    /// A directory.
    Directory,
    /// A socket of any family.
    Socket,
    /// A pipe or a named pipe.
    Pipe,
    /// A descriptor opened with `O_PATH`: it names a file but cannot read or map it.
    PathOnly,
    /// A character or block device other than an NVIDIA GPU.
    Device,
    /// Anything else, an eventfd or a pidfd for example.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Memfd => "memfd",
            Self::DmaBuf => "dma-buf",
            Self::Cuda => "CUDA memory",
            Self::RegularFile => "regular file",
            Self::Directory => "directory",
            Self::Socket => "socket",
            Self::Pipe => "pipe",
            Self::PathOnly => "path-only descriptor (O_PATH)",
            Self::Device => "device",
            Self::Other => "descriptor of another kind",
        })
    }
}

/// What a descriptor's access mode allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenMode {
    /// Neither reading nor writing: the descriptor was opened with `O_PATH`.
    Neither,
    /// Reading only.
    ReadOnly,
    /// Writing only.
    WriteOnly,
    /// Reading and writing.
    ReadWrite,
}

impl fmt::Display for OpenMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Neither => "neither readable nor writable",
            Self::ReadOnly => "read-only",
            Self::WriteOnly => "write-only",
            Self::ReadWrite => "read-write",
        })
    }
}

impl From<OFlags> for OpenMode {
    fn from(flags: OFlags) -> Self {
        if flags.contains(OFlags::PATH) {
            Self::Neither
        } else if flags.contains(OFlags::RDWR) {
            Self::ReadWrite
        } else if flags.contains(OFlags::WRONLY) {
            Self::WriteOnly
        } else {
            Self::ReadOnly
        }
    }
}

/// Which file a descriptor stands for: equal for two descriptors of one file, however they came here.
///
/// This tells memfds, dma-bufs and files apart. It does not tell CUDA allocations apart, whose descriptors all stand for
/// one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The device that holds the file.
    pub device: u64,
    /// The file's number on that device.
    pub inode: u64,
}

impl Identity {
    pub(crate) fn of(status: &Stat) -> Self {
        Self { device: status.st_dev, inode: status.st_ino }
    }
}

/// What one descriptor is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// What it stands for.
    pub kind: Kind,
    /// How many bytes it has; `None` where it cannot say, as CUDA memory cannot.
    pub size: Option<u64>,
    /// What its access mode allows.
    pub access: OpenMode,
    /// Its seals; `None` where the kind has none.
    pub seals: Option<Seals>,
    /// The name of a memfd or a dma-buf, if it has one.
    pub name: Option<String>,
    /// The driver that exported a dma-buf.
    pub exporter: Option<String>,
    /// Whether it closes when this process starts another program in its place.
    pub close_on_exec: bool,
    /// Which file it stands for.
    pub identity: Identity,
}

impl Facts {
    /// Looks at a descriptor, changing nothing about it.
    ///
    /// # Errors
    ///
    /// [`FdError::System`] if the kernel refuses to tell, or `/proc` is not mounted.
    pub fn of(descriptor: impl AsFd) -> Result<Self, FdError> {
        let descriptor = descriptor.as_fd();
        let flags = fcntl_getfl(descriptor).map_err(FdError::system("fcntl F_GETFL"))?;
        // Seals come before the size: a holder that truncates and then seals must not pass with the size from before.
        let seals = fcntl_get_seals(descriptor).ok().map(Seals::from);
        let status = fstat(descriptor).map_err(FdError::system("fstat"))?;
        let link = link(descriptor)?;
        let coarse = if flags.contains(OFlags::PATH) { Kind::PathOnly } else { coarse_kind(&status) };
        let kind = match coarse {
            Kind::RegularFile | Kind::Other if is_dma_buf(descriptor)? => Kind::DmaBuf,
            Kind::RegularFile if link.starts_with("/memfd:") && seals.is_some() => Kind::Memfd,
            Kind::RegularFile if link.starts_with("anon_inode:") => Kind::Other,
            Kind::Device if link.starts_with("/dev/nvidia") => Kind::Cuda,
            kind => kind,
        };
        Ok(Self {
            kind,
            size: match kind {
                Kind::Memfd | Kind::RegularFile => u64::try_from(status.st_size).ok(),
                Kind::DmaBuf => dma_buf_size(descriptor).ok(),
                _ => None,
            },
            access: flags.into(),
            seals: seals.filter(|_| kind == Kind::Memfd),
            name: match kind {
                Kind::Memfd => link.strip_prefix("/memfd:").map(|name| name.strip_suffix(" (deleted)").unwrap_or(name)),
                Kind::DmaBuf => {
                    link.strip_prefix("/dmabuf:").map(|name| name.strip_suffix(" (deleted)").unwrap_or(name))
                }
                _ => None,
            }
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
            exporter: if kind == Kind::DmaBuf { exporter(descriptor) } else { None },
            close_on_exec: rustix::io::fcntl_getfd(descriptor)
                .map_err(FdError::system("fcntl F_GETFD"))?
                .contains(FdFlags::CLOEXEC),
            identity: Identity::of(&status),
        })
    }

    /// Refuses a descriptor that can be no region, by its kind, as [`check_region`] does.
    ///
    /// # Errors
    ///
    /// [`FdError::NotARegion`].
    pub fn check_region(&self) -> Result<(), FdError> {
        region_kind(self.kind)
    }
}

/// The pages of a memfd or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageUse {
    /// The bytes of one page: those of a huge page for a memfd from such a pool.
    pub page_bytes: u64,
    /// The bytes that pages were allocated for. Of a memfd they are in memory (or in swap), of a file on its disk.
    pub allocated: u64,
}

impl PageUse {
    /// Asks the kernel; `None` for a descriptor that is no file, such as a dma-buf, whose driver alone knows its pages.
    ///
    /// Looking allocates no page: no byte of the file is touched.
    ///
    /// # Errors
    ///
    /// [`FdError::System`] if the kernel refuses to tell.
    pub fn of(descriptor: impl AsFd) -> Result<Option<Self>, FdError> {
        let descriptor = descriptor.as_fd();
        let status = fstat(descriptor).map_err(FdError::system("fstat"))?;
        if coarse_kind(&status) != Kind::RegularFile {
            return Ok(None);
        }
        let FileSystem { is_dma_buf, page_bytes } = FileSystem::of(descriptor).map_err(FdError::system("fstatfs"))?;
        if is_dma_buf {
            return Ok(None);
        }
        // st_blocks counts units of 512 bytes, whatever st_blksize says (stat(2)).
        let blocks = u64::try_from(status.st_blocks).unwrap_or(0);
        Ok(Some(Self { page_bytes, allocated: blocks.saturating_mul(512) }))
    }
}

/// Whether the size of a region's memory can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Truncation {
    /// It never changes: a memfd sealed against shrinking, growing and further seals, a dma-buf, a device's memory.
    Impossible,
    /// Whoever else holds it can truncate it: a memfd without those seals, or a file.
    Possible,
}

/// Refuses a socket, a pipe, a directory and an `O_PATH` descriptor, none of which is ever memory, and tells of all
/// others whether their memory can be truncated.
///
/// Costs one system call for a memfd, two or three for others, against the eight or so of [`Facts::of`].
///
/// # Errors
///
/// [`FdError::NotARegion`], and [`FdError::System`] if the kernel refuses to tell.
pub fn check_region(descriptor: impl AsFd) -> Result<Truncation, FdError> {
    let descriptor = descriptor.as_fd();
    match fcntl_get_seals(descriptor) {
        Ok(seals) if seals.contains(REQUIRED_SEALS) => return Ok(Truncation::Impossible),
        Ok(_) => return Ok(Truncation::Possible),
        // Of a descriptor that is open, it is the answer to O_PATH (open(2)).
        Err(Errno::BADF) => return Err(FdError::NotARegion { kind: Kind::PathOnly }),
        // EINVAL: no memfd.
        Err(_) => {}
    }
    let kind = coarse_kind(&fstat(descriptor).map_err(FdError::system("fstat"))?);
    region_kind(kind)?;
    let is_file = kind == Kind::RegularFile && !is_dma_buf(descriptor)?;
    Ok(if is_file { Truncation::Possible } else { Truncation::Impossible })
}

/// How many bytes a descriptor's file or buffer has, `None` where it does not tell.
///
/// Costs one system call for a memfd or a file, three for a dma-buf, against the eight or so of [`Facts::of`].
///
/// # Errors
///
/// [`FdError::System`] if the kernel refuses to tell.
pub fn size(descriptor: impl AsFd) -> Result<Option<u64>, FdError> {
    let descriptor = descriptor.as_fd();
    let status = fstat(descriptor).map_err(FdError::system("fstat"))?;
    match coarse_kind(&status) {
        Kind::RegularFile => Ok(u64::try_from(status.st_size).ok()),
        Kind::Other if is_dma_buf(descriptor)? => {
            dma_buf_size(descriptor).map(Some).map_err(FdError::system("lseek of a dma-buf"))
        }
        _ => Ok(None),
    }
}

/// The [`size`] of each of several descriptors, as a header is compared with them.
///
/// # Errors
///
/// That of the first one of which the kernel refuses to tell.
pub fn sizes(descriptors: &[impl AsFd]) -> Result<Vec<Option<u64>>, FdError> {
    descriptors.iter().map(size).collect()
}

/// Which file a descriptor stands for.
pub(crate) fn identity(descriptor: BorrowedFd<'_>) -> Result<Identity, Errno> {
    fstat(descriptor).map(|status| Identity::of(&status))
}

fn is_dma_buf(descriptor: BorrowedFd<'_>) -> Result<bool, FdError> {
    Ok(FileSystem::of(descriptor).map_err(FdError::system("fstatfs"))?.is_dma_buf)
}

/// The size of a dma-buf. It has no position: seeking to its end only tells where that is (the kernel's
/// drivers/dma-buf/dma-buf.c, dma_buf_llseek).
pub(crate) fn dma_buf_size(descriptor: BorrowedFd<'_>) -> Result<u64, Errno> {
    seek(descriptor, SeekFrom::End(0))
}

fn region_kind(kind: Kind) -> Result<(), FdError> {
    match kind {
        Kind::Directory | Kind::Socket | Kind::Pipe | Kind::PathOnly => Err(FdError::NotARegion { kind }),
        _ => Ok(()),
    }
}

/// The kind as far as the file type tells it. A dma-buf has no file type, or that of a regular file.
fn coarse_kind(status: &Stat) -> Kind {
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Kind::RegularFile,
        FileType::Directory => Kind::Directory,
        FileType::Socket => Kind::Socket,
        FileType::Fifo => Kind::Pipe,
        FileType::CharacterDevice | FileType::BlockDevice => Kind::Device,
        FileType::Symlink | FileType::Unknown => Kind::Other,
    }
}

/// Where the descriptor's link in `/proc` points, which is the only place that names a memfd.
fn link(descriptor: BorrowedFd<'_>) -> Result<String, FdError> {
    let path = format!("/proc/thread-self/fd/{}", descriptor.as_raw_fd());
    let target = std::fs::read_link(path)
        .map_err(|source| FdError::System { call: "readlink of /proc/thread-self/fd (is /proc mounted?)", source })?;
    Ok(target.to_string_lossy().into_owned())
}

/// The line `exp_name:` that a dma-buf adds to its fdinfo (the kernel's drivers/dma-buf/dma-buf.c, dma_buf_show_fdinfo).
pub(crate) fn exporter(descriptor: BorrowedFd<'_>) -> Option<String> {
    // The name, which any holder can set, stands among the lines and need not be UTF-8; it comes after this one.
    let bytes = std::fs::read(format!("/proc/thread-self/fdinfo/{}", descriptor.as_raw_fd())).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().find_map(|line| line.strip_prefix("exp_name:")).map(|name| name.trim().to_owned())
}
