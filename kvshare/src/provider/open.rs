//! A provider's life in steps: open, map, fill, finish.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::geometry::{match_model, own_header};
use super::{Arguments, AssumedCache, ProviderError, ResultLine, Route, read_tokens};
use crate::fd::{self, take_inherited};
use crate::header::{Header, MAX_BYTES};
use crate::map::{Access, MapOptions};
use crate::memory::Memfd;
use crate::rows::{MappedCache, allocate};
use crate::state_file::{CopyError, Slot, StateFile, check_filename};

/// A provider that knows its tokens and holds the memory to fill: the decoder's on the shared route, its own on the file
/// route.
#[derive(Debug)]
pub struct Provider {
    arguments: Arguments,
    tokens: Vec<i32>,
    header: Header,
    descriptors: Vec<OwnedFd>,
}

impl Provider {
    /// Reads the tokens and takes the descriptors, or makes memory for the file route, where `cache` says what the
    /// decoder's cache is like.
    ///
    /// A header's tensors are compared with the model, by name, type and shape, if the model file is a GGUF with a plain
    /// K/V cache and `cache` has no layers of its own.
    ///
    /// Call it early: it takes over descriptors by their numbers (see [`take_inherited`]).
    ///
    /// # Errors
    /// Whatever is wrong with the files, the header or the descriptors; a decoder that serves another model; a prompt
    /// longer than the cache.
    pub fn open(arguments: Arguments, cache: &AssumedCache) -> Result<Self, ProviderError> {
        let tokens = read_tokens(&arguments.tokens)?;
        let (header, descriptors) = match &arguments.route {
            Route::File { out } => {
                check_out(out)?;
                own(&arguments.model, tokens.len(), cache)?
            }
            Route::Shared { layout, fds } => shared(layout, fds, &arguments.model, cache)?,
        };
        check_room(&header, tokens.len())?;
        Ok(Self { arguments, tokens, header, descriptors })
    }

    /// The prompt's tokens, whose cells are positions 0 and up.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// The arguments it was started with.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// Which tensor lies where.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The regions' descriptors, in the header's order, for a device that maps them itself.
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }

    /// Maps the cache for the CPU.
    ///
    /// # Errors
    /// Memory that the CPU cannot map or may not write.
    pub fn map(&self) -> Result<MappedCache, ProviderError> {
        map_to_fill(&self.header, &self.descriptors)
    }

    /// Says that every cell is written: makes the state file on the file route, and returns the result line, which must
    /// be the last on standard output.
    ///
    /// `argmax` is the likeliest next token, `took` the time of the prefill.
    ///
    /// # Errors
    /// A state file that cannot be written.
    pub fn finish(self, argmax: i32, took: Duration) -> Result<ResultLine, ProviderError> {
        if let Route::File { out } = &self.arguments.route {
            let cache = MappedCache::map(&self.header, &self.descriptors, &MapOptions::default())?;
            publish(out, &self.tokens, &cache)?;
        }
        Ok(result_line(self.tokens.len(), argmax, took))
    }
}

/// Maps a cache for the CPU to fill.
pub(super) fn map_to_fill(header: &Header, descriptors: &[OwnedFd]) -> Result<MappedCache, ProviderError> {
    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    Ok(MappedCache::map(header, descriptors, &options)?)
}

/// What a prefill of so many tokens reports.
pub(super) fn result_line(tokens: usize, argmax: i32, took: Duration) -> ResultLine {
    let prefill_ms = Some((took.as_secs_f64() * 1e6).round() / 1e3);
    ResultLine { n_tokens: tokens as u64, argmax: argmax.into(), prefill_ms }
}

/// Writes the state file of a filled cache to the working directory.
pub(super) fn publish(out: &Path, tokens: &[i32], cache: &MappedCache) -> Result<(), ProviderError> {
    let name = check_out(out)?;
    let file = StateFile::of_prompt(tokens.to_vec(), cache.state_shape(), Slot::default());
    file.map_err(CopyError::File)?.publish(cache, Path::new("."), name)?;
    Ok(())
}

/// Memory of our own for a state file's cache, and its header.
pub(super) fn own(model: &Path, tokens: usize, cache: &AssumedCache) -> Result<(Header, Vec<OwnedFd>), ProviderError> {
    let header = own_header(model, tokens as u64, cache)?;
    let descriptors = allocate(&header, &Memfd::new(), "kvshare-provider")?;
    Ok((header, descriptors))
}

/// Whether there are rows to write, and enough of them.
pub(super) fn check_room(header: &Header, tokens: usize) -> Result<(), ProviderError> {
    let planes = header.planes()?;
    if planes.layers().is_empty() {
        return Err(ProviderError::NoAttentionLayers);
    }
    let cells = planes.cells();
    if tokens as u64 > cells { Err(ProviderError::TooManyTokens { tokens, cells }) } else { Ok(()) }
}

fn shared(
    layout: &Path,
    fds: &[i32],
    model: &Path,
    cache: &AssumedCache,
) -> Result<(Header, Vec<OwnedFd>), ProviderError> {
    let descriptors = take_inherited(fds)?;
    let read = |source| ProviderError::Read { what: "the header", path: layout.to_owned(), source };
    let mut bytes = Vec::new();
    // One byte over the limit shows that there is more.
    File::open(layout).and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)).map_err(read)?;
    let header = checked_header(&bytes, &descriptors, model, cache)?;
    Ok((header, descriptors))
}

/// A header that describes these descriptors, and a cache of this model.
pub(super) fn checked_header(
    bytes: &[u8],
    descriptors: &[OwnedFd],
    model: &Path,
    cache: &AssumedCache,
) -> Result<Header, ProviderError> {
    let mut header = Header::parse(bytes)?;
    if header.descriptor_count() != descriptors.len() {
        let (given, named) = (descriptors.len(), header.descriptor_count());
        return Err(ProviderError::DescriptorCount { given, named });
    }
    header.check_descriptors(&fd::sizes(descriptors)?)?;
    match_model(&mut header, model, cache)?;
    Ok(header)
}

pub(super) fn check_out(out: &Path) -> Result<&str, ProviderError> {
    let name = out.to_str().filter(|name| check_filename(name).is_ok());
    name.ok_or_else(|| ProviderError::OutName { out: out.to_owned() })
}
