//! Where a provider's rows go.

use std::sync::Arc;

use kvshare::handoff::{Destination, HandoffFile, ReceivedShare};

/// A provider's [`Destination`], owned: it must live until the provider is gone.
#[derive(Debug)]
pub enum Place {
    /// Into a decoder's memory.
    Shared(ReceivedShare),
    /// Into a file.
    File(Arc<HandoffFile>),
}

impl Place {
    /// The same, as a provider is told.
    pub fn destination(&self) -> Destination<'_> {
        match self {
            Self::Shared(share) => Destination::Shared(share),
            Self::File(file) => Destination::File { name: file.name() },
        }
    }
}
