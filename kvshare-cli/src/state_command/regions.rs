//! `state into-regions` and `from-regions`: between a file and memory that was handed over.

use std::os::fd::OwnedFd;

use kvshare::fd::{self, take_inherited};
use kvshare::header::Header;
use kvshare::map::{Access, MapOptions, Unsealed};
use kvshare::provider::read_tokens;
use kvshare::rows::MappedCache;
use kvshare::state_file::{Slot, StateFile};
use serde_json::json;

use super::arguments::{FromRegionsArguments, IntoRegionsArguments, RegionArguments};
use super::convert::{copy_rows, publish};
use super::loaded::Loaded;
use crate::header_file;
use crate::output::{Failure, print};

pub(super) fn write(arguments: &IntoRegionsArguments) -> Result<(), Failure> {
    let (header, descriptors) = arguments.regions.take()?;
    let loaded = Loaded::read(&arguments.file, arguments.form.m_rope).map_err(Failure::new)?;
    let options = arguments.regions.options(Access::ReadWrite);
    let mut target = MappedCache::map(&header, &descriptors, &options).map_err(Failure::new)?;
    let access = target.begin_cpu_access(Access::ReadWrite).map_err(Failure::new)?;
    copy_rows(&loaded.cache.0, &mut target, loaded.cells()).map_err(Failure::new)?;
    access.end().map_err(Failure::new)?;
    let (cells, layers) = (loaded.cells(), target.layers().len());
    if arguments.json {
        return print(&json!({"cells": cells, "layers": layers}).to_string());
    }
    print(&format!("wrote {cells} cells of {layers} layers"))
}

pub(super) fn read(arguments: &FromRegionsArguments) -> Result<(), Failure> {
    let (header, descriptors) = arguments.regions.take()?;
    let tokens = read_tokens(&arguments.tokens).map_err(Failure::new)?;
    let cache =
        MappedCache::map(&header, &descriptors, &arguments.regions.options(Access::ReadOnly)).map_err(Failure::new)?;
    if tokens.len() as u64 > cache.cells() {
        let (tokens, cells) = (tokens.len(), cache.cells());
        return Err(Failure::new(format!("there are {tokens} tokens, but the cache has only {cells} cells")));
    }
    let access = cache.begin_cpu_access(Access::ReadOnly).map_err(Failure::new)?;
    let file = StateFile::of_prompt(tokens, cache.state_shape(), Slot::default()).map_err(Failure::new)?;
    let length = publish(&file, &cache, &arguments.file)?;
    access.end().map_err(Failure::new)?;
    if arguments.json {
        return print(&json!({"file": arguments.file.display().to_string(), "bytes": length}).to_string());
    }
    print(&format!("{}: {length} bytes", arguments.file.display()))
}

impl RegionArguments {
    /// The header with its descriptors, which go together.
    fn take(&self) -> Result<(Header, Vec<OwnedFd>), Failure> {
        let descriptors = take_inherited(&self.fds).map_err(Failure::new)?;
        let bytes = header_file::read(&self.layout).map_err(Failure::new)?;
        let header = Header::parse(&bytes).map_err(Failure::new)?;
        let sizes = fd::sizes(&descriptors).map_err(Failure::new)?;
        header.check_descriptors(&sizes).map_err(Failure::new)?;
        Ok((header, descriptors))
    }

    fn options(&self, access: Access) -> MapOptions {
        let unsealed = if self.unsealed { Unsealed::AcceptSigbus } else { Unsealed::Refuse };
        MapOptions { access, unsealed, ..MapOptions::default() }
    }
}
