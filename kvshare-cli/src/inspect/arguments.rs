//! The command's arguments.

use std::path::PathBuf;

use clap::Args;

use super::plot::PlotFile;

/// Shows what descriptors are, and what lies in the cache that they hold
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli inspect --fds 3,4 --layout header.json 3<>region-0.bin 4<>region-1.bin
  kvshare-cli inspect --pid 1234
  kvshare-cli inspect --pid 1234 --fds 7,8 --layout header.json --plot cache.png
  kvshare-cli inspect --fds 3 --layout header.json --tensor cache_k_l3 --row 17 --count 4 3<>region.bin

Nothing is changed, and no page is allocated by looking.

Exit status: 0 nothing is wrong, 1 something is, 2 misuse")]
pub struct InspectArguments {
    /// Numbers of the descriptors, in the header's order [default with --pid: all that are memory]
    #[arg(long, value_name = "N,N", value_delimiter = ',', required_unless_present = "pid")]
    pub(super) fds: Vec<i32>,
    /// Take them from this process instead of from this program's own
    #[arg(long, value_name = "PID")]
    pub(super) pid: Option<i32>,
    /// Look into the cache that this header describes
    #[arg(long, value_name = "FILE")]
    pub(super) layout: Option<PathBuf>,
    /// Compare the header with this model's cache (GGUF), or complete it where it names no tensors
    #[arg(long, value_name = "FILE", requires = "layout")]
    pub(super) model: Option<PathBuf>,
    /// Draw the cache into this file as well: .svg or .png
    #[arg(long, value_name = "FILE", requires = "layout", conflicts_with = "tensor", value_parser = PlotFile::parse)]
    pub(super) plot: Option<PlotFile>,
    /// Print the values of this tensor instead, such as cache_k_l3
    #[arg(long, value_name = "NAME", requires_all = ["layout", "row"])]
    pub(super) tensor: Option<String>,
    /// The position whose row is printed
    #[arg(long, value_name = "POSITION", requires = "tensor")]
    pub(super) row: Option<u64>,
    /// How many rows
    #[arg(long, value_name = "N", requires = "tensor", default_value_t = 1)]
    pub(super) count: u64,
    /// The stream that the rows are in
    #[arg(long, value_name = "N", requires = "tensor", default_value_t = 0)]
    pub(super) stream: u64,
    /// Write the rows' bytes as they lie in memory
    #[arg(long, requires = "tensor", conflicts_with = "json")]
    pub(super) raw: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}
