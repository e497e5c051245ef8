//! Why a provider cannot do what it was asked.

use std::io;
use std::path::PathBuf;

use crate::fd::FdError;
use crate::header::HeaderError;
use crate::layout::{GgufError, LayoutError, TensorType};
use crate::map::MapError;
use crate::rows::RowsError;
use crate::state_file::CopyError;
use crate::wire::{PacketError, SealedError};

/// Why a provider cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say in code what the messages say in words")]
pub enum ProviderError {
    #[error(
        "{0}; a provider takes --tokens FILE --model FILE and either --out FILE or --layout FILE --fds N[,N...], \
         or --model FILE --resident N"
    )]
    Arguments(#[from] lexopt::Error),
    #[error("the argument {flag} is missing")]
    MissingArgument { flag: &'static str },
    #[error("neither --out (file route) nor --layout and --fds (shared route) was given")]
    NoRoute,
    #[error("--out was given together with --layout or --fds; a provider takes one route")]
    BothRoutes,
    #[error(
        "--resident was given together with what belongs to one prompt; a resident provider takes --model and --elfs"
    )]
    ResidentAndOnce,
    #[error("this provider does not stay resident; start it for each prompt")]
    NotResident,
    #[error("{flag} has {text:?}, which is no descriptor number from 3 up")]
    DescriptorNumber { flag: &'static str, text: String },
    #[error("--fds has {given} descriptors, but the header names {named}")]
    DescriptorCount { given: usize, named: usize },
    #[error("cannot read {what} {}: {source}", path.display())]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the token file {} is longer than {limit} bytes", path.display())]
    TokensTooLong { path: PathBuf, limit: u64 },
    #[error("the token file {} has no token in it", path.display())]
    NoTokens { path: PathBuf },
    #[error("line {line} of the token file is {text:?}, which is no token id from 0 to 2147483647")]
    TokenLine { line: usize, text: String },
    #[error("the prompt has {tokens} tokens, but the decoder's cache only {cells} cells; shorten it, or raise its -c")]
    TooManyTokens { tokens: usize, cells: u64 },
    #[error("--out is {out:?}, which is no bare filename in the working directory")]
    OutName { out: PathBuf },
    #[error("the model file {}: {source}", path.display())]
    Model { path: PathBuf, source: GgufError },
    #[error(
        "the decoder's regions fit this model with no cell count and no pair of cache types: \
         it serves another model, or has other memory than a plain K/V cache"
    )]
    NoGeometry,
    #[error("the decoder's cache has no attention layer, so there is no row to write; serve a model with attention")]
    NoAttentionLayers,
    #[error(
        "the decoder's cache is {tensor_type} and may be rotated by head size, but the model's head sizes are not known; \
         give them with its layers, or use f16"
    )]
    RotationUnknown { tensor_type: TensorType },
    #[error("the proxy and this provider do not understand each other: {problem}")]
    Order { problem: String },
    #[error("the proxy cannot be heard or told: {0}")]
    Packet(#[from] PacketError),
    #[error("{what} that the proxy sent: {source}")]
    Sealed { what: &'static str, source: SealedError },
    #[error("token {index} is {id}, which is no token id from 0 to 2147483647")]
    TokenId { index: usize, id: u32 },
    #[error("the proxy sent no token; a prompt that is handed over has at least one")]
    NoToken,
    #[error("the cache of generation {asked} was not sent, or was not usable: {problem}")]
    NoCache { asked: u64, problem: String },
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Descriptor(#[from] FdError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Rows(#[from] RowsError),
    #[error(transparent)]
    StateFile(#[from] CopyError<RowsError>),
    #[error("cannot print the result: {0}")]
    Print(#[source] io::Error),
    /// The provider's own part failed; its words.
    #[error("{words}")]
    Prefill { words: String },
}
