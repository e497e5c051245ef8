//! The header beside the descriptors, and the rows in them.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use kvshare::header::{Header, HeaderError};
use kvshare::provider::{AssumedCache, ProviderError, match_model};

use super::Inspected;
use super::reader::{CacheReader, ReadError, TensorSurvey, survey};
use crate::header_file::{self, HeaderFileError};

/// Why the cache cannot be looked into.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutProblem {
    /// The header file cannot be read.
    #[error(transparent)]
    File(#[from] HeaderFileError),
    /// The header is refused, or does not go with the descriptors.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The header is not this model's.
    #[error(transparent)]
    Model(#[from] ProviderError),
    /// It names no tensors.
    #[error("the header names no tensors, so nobody knows where a row lies; --model FILE completes it")]
    NoTensors,
    /// A descriptor that it describes cannot be looked at.
    #[error("the cache was not looked into, since descriptor {number} cannot be")]
    Descriptor {
        /// Its number.
        number: i32,
    },
    /// A tensor is not made of rows.
    #[error(transparent)]
    Tensors(#[from] ReadError),
}

/// A header that holds together, and what lies in its regions.
#[derive(Debug)]
pub struct Surveyed {
    /// The header.
    pub header: Header,
    /// Whether it has a digest. One that is wrong was refused.
    pub has_digest: bool,
    /// Whether the descriptors are as the header says.
    pub fit: Result<(), HeaderError>,
    /// The tensors, in the header's order.
    pub tensors: Vec<TensorSurvey>,
}

/// Reads the header at `path`, compares it with the model or completes it from there, and says whether it has a digest.
///
/// # Errors
/// [`LayoutProblem`].
pub(crate) fn read(path: &Path, model: Option<&Path>) -> Result<(Header, bool), LayoutProblem> {
    let bytes = header_file::read(path)?;
    let mut header = Header::parse(&bytes)?;
    if let Some(model) = model {
        match_model(&mut header, model, &AssumedCache::default())?;
    }
    if header.tensors.is_empty() {
        return Err(LayoutProblem::NoTensors);
    }
    Ok((header, has_digest(&bytes)))
}

/// Whether a header that was parsed has a digest, which is then right.
pub(crate) fn has_digest(bytes: &[u8]) -> bool {
    let fields: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    fields.get("digest").is_some_and(|digest| !digest.is_null())
}

/// The descriptors, all of which must have been taken.
///
/// # Errors
/// [`LayoutProblem::Descriptor`].
pub(super) fn own<'a>(descriptors: &'a [Inspected]) -> Result<Vec<BorrowedFd<'a>>, LayoutProblem> {
    // Whoever leaves one out shifts the places of the others.
    let own = |inspected: &'a Inspected| match &inspected.outcome {
        Ok(found) => Ok(found.own.as_fd()),
        Err(_) => Err(LayoutProblem::Descriptor { number: inspected.number }),
    };
    descriptors.iter().map(own).collect()
}

impl Surveyed {
    pub(super) fn of(header: Header, has_digest: bool, descriptors: &[Inspected]) -> Result<Self, LayoutProblem> {
        let own = own(descriptors)?;
        let size = |inspected: &Inspected| inspected.outcome.as_ref().ok().and_then(|found| found.facts.size);
        let fit = header.check_descriptors(&descriptors.iter().map(size).collect::<Vec<_>>());
        let tensors = survey(&CacheReader::open(&header, &own)?);
        Ok(Self { header, has_digest, fit, tensors })
    }
}
