//! A region mapped into this process.
//!
//! [`MappedRegion::map`] checks a descriptor before it maps it, keeps tensors apart with guard pages where that is
//! asked for, and gives out [`View`]s and [`ViewMut`]s. A view is a window on memory that other processes may write at
//! any time, so it copies bytes in and out and never lends a slice.
//!
//! ```
//! use kvshare::map::{Access, Extent, MapOptions, MappedRegion};
//! use kvshare::memory::{Memfd, RegionSource};
//!
//! let allocation = Memfd::new().allocate("cache-0", 8192)?;
//! let whole = Extent { offset: 0, size: allocation.size };
//! let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
//! let mut writer = MappedRegion::map(&allocation.descriptor, whole, &[], &options)?;
//! let reader = MappedRegion::map(&allocation.descriptor, whole, &[], &MapOptions::default())?;
//!
//! writer.view_mut(4096, 5)?.copy_from(b"a row")?;
//! let mut row = [0; 5];
//! reader.view(4096, 5)?.copy_to(&mut row)?;
//! assert_eq!(&row, b"a row");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cpu_access;
mod descriptor;
mod error;
mod extent;
mod fence;
#[allow(unsafe_code)]
mod mapping;
mod options;
mod placement;
mod region;
#[allow(unsafe_code)]
mod view;

pub use cpu_access::{CPU_ACCESS_TIMEOUT, CpuAccess};
pub use error::MapError;
pub use extent::Extent;
pub use fence::Fence;
pub use options::{Access, Guard, MapOptions, Unsealed};
pub use region::MappedRegion;
pub use view::{View, ViewMut};

#[cfg(test)]
mod tests;
