//! `kvshare-cli send`.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use clap::Args;
use kvshare::fd::{self, take_inherited};
use kvshare::header::Header;
use kvshare::layout::ALIGNMENT;
use kvshare::memory::{Memfd, RegionSource as _};
use kvshare::wire::connect;
use serde_json::json;

use super::{deadline, seconds};
use crate::header_file;
use crate::output::{Failure, counted, print};

/// Bytes that are copied from a file into memory at once.
const PIECE: usize = 1 << 20;

/// Sends a header with descriptors, or with files as memory, to a socket that somebody listens at
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli send --socket run/kv.sock --layout header.json --fds 3,4 3<>/dev/shm/a 4<>/dev/shm/b
  kvshare-cli send --socket run/kv.sock --layout header.json --files region-0.bin,region-1.bin")]
pub struct SendArguments {
    /// The socket's path
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The header: a file
    #[arg(long, value_name = "FILE")]
    layout: PathBuf,
    /// Send these descriptors of this program as they are
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        required_unless_present = "files",
        conflicts_with = "files"
    )]
    fds: Vec<i32>,
    /// Copy these files into sealed memory and send that
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// Send the header as it is, even if it is wrong or does not go with the descriptors
    #[arg(long)]
    unchecked: bool,
    /// How long to wait for the peer, in seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "10")]
    timeout: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &SendArguments) -> Result<(), Failure> {
    let header = header_file::read(&arguments.layout).map_err(Failure::new)?;
    let descriptors = match &arguments.files[..] {
        [] => take_inherited(&arguments.fds).map_err(Failure::new)?,
        files => files.iter().map(|path| in_memory(path)).collect::<Result<_, _>>()?,
    };
    if !arguments.unchecked {
        let sizes = fd::sizes(&descriptors).map_err(Failure::new)?;
        let checked = Header::parse(&header).and_then(|header| header.check_descriptors(&sizes));
        checked.map_err(|error| Failure::new(format!("{error} (--unchecked sends it all the same)")))?;
    }
    let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    let deadline = deadline(arguments.timeout);
    let connection = connect(&arguments.socket, deadline).map_err(Failure::new)?;
    connection.send(&header, &borrowed, deadline).map_err(Failure::new)?;
    let (bytes, count) = (header.len(), descriptors.len());
    if arguments.json {
        return print(&json!({"header_bytes": bytes, "descriptors": count}).to_string());
    }
    print(&format!("sent a header of {bytes} bytes with {}", counted(count as u64, "descriptor")))
}

/// The contents of a file in sealed memory, with zeros up to the next multiple of 4096.
fn in_memory(path: &Path) -> Result<OwnedFd, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("cannot copy {}: {error}", path.display()));
    let mut file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let size = length.max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
    let name = path.file_name().map_or("file".into(), |name| name.to_string_lossy());
    let name: String = name.chars().take(60).collect();
    let memory = Memfd::new().allocate(&name, size).map_err(Failure::new)?.descriptor;
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Ok(memory);
        }
        // A file that grows meanwhile does not fit: the memory is sealed against growing.
        let mut piece = &buffer[..count];
        while !piece.is_empty() {
            let written = rustix::io::pwrite(&memory, piece, done).map_err(|errno| failed(errno.into()))?;
            done += written as u64;
            piece = &piece[written..];
        }
    }
}
