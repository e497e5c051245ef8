//! What a file descriptor is, and how a program that we start inherits some of ours.
//!
//! [`Facts`] tells a descriptor's kind, size, access mode, seals and name. [`Program`] starts a program that sees
//! exactly the descriptors it is given, at 3, 4, 5 and so on; [`take_inherited`] is how that program takes them up.
//! Nothing here sends or maps anything.
//!
//! ```
//! use kvshare::fd::{Facts, Kind};
//!
//! let file = std::fs::File::open("/dev/null")?;
//! let facts = Facts::of(&file)?;
//! assert_eq!(facts.kind, Kind::Device);
//! assert!(facts.close_on_exec);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod child;
mod error;
mod facts;
mod file_system;
mod group;
mod inherited;
mod limit;
mod posix_spawn;
mod ready;
mod seals;
mod spawn;
mod spawn_error;

pub use child::Child;
pub use error::FdError;
pub use facts::{Facts, Identity, Kind, OpenMode, PageUse, Truncation, check_region, size, sizes};
pub(crate) use facts::{dma_buf_size, exporter, identity};
pub(crate) use file_system::FileSystem;
pub use inherited::take_inherited;
pub use limit::DescriptorLimit;
pub(crate) use ready::{Waited, ready, ready_unless};
pub use rustix::process::Signal;
pub(crate) use seals::REQUIRED_SEALS;
pub use seals::Seals;
pub(crate) use spawn::is_bare_name;
pub use spawn::{Output, Program, check_program};
pub use spawn_error::SpawnError;

/// The lowest number at which a program inherits a descriptor; 0, 1 and 2 are the standard streams.
pub const FIRST_INHERITED: i32 = 3;
