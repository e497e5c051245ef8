//! The command's arguments.

use std::path::PathBuf;

use clap::Args;

use super::prompt::PromptArguments;

/// Compares the K and V rows of a cache with those that should be there, and says what was probably done wrong
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli verify --layout header.json --fds 3 --against model.gguf --tokens prompt.tokens 3<>region.bin
  kvshare-cli verify --layout header.json --pid 1234 --fds 7,8 --against saved-by-the-server.bin -m model.gguf
  kvshare-cli verify --layout header.json --fds 3 --against-fds 4 3<>region.bin 4<>other.bin

The relative error of a layer's K or V is the norm of the difference over the norm of the expected rows, of all positions \
of the prompt together. Nothing is changed.

Exit status: 0 the tolerance held, 1 it did not or nothing could be compared, 2 misuse")]
pub struct VerifyArguments {
    /// The header of the cache
    #[arg(long, value_name = "FILE")]
    pub(super) layout: PathBuf,
    /// Numbers of its descriptors, in the header's order [default with --pid: all that are memory]
    #[arg(long, value_name = "N,N", value_delimiter = ',', required_unless_present = "pid")]
    pub(super) fds: Vec<i32>,
    /// Take these descriptors from this process instead of from this program's own
    #[arg(long, value_name = "PID")]
    pub(super) pid: Option<i32>,
    /// What should be there: a state file, or a model (GGUF) that prefills the prompt itself
    #[arg(long, value_name = "FILE", required_unless_present = "against_fds", conflicts_with = "against_fds")]
    pub(super) against: Option<PathBuf>,
    /// What should be there: other regions, by the numbers of this program's descriptors
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(super) against_fds: Vec<i32>,
    /// The header of the other regions [default: that of --layout]
    #[arg(long, value_name = "FILE", requires = "against_fds")]
    pub(super) against_layout: Option<PathBuf>,
    /// The stream whose rows are compared; of other regions, too. A state file's or a model's rows have one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) stream: u64,
    #[command(flatten)]
    pub(super) prompt: PromptArguments,
    /// The model (GGUF): tells how K is turned by RoPE, and completes a header that names no tensors [default: --against,
    /// if that is one]
    #[arg(short, long, value_name = "FILE")]
    pub(super) model: Option<PathBuf>,
    /// The relative error that K and V of each layer may have [default: by the types of the caches, at least 0.04 for K and
    /// 0.08 for V]
    #[arg(long, value_name = "R", value_parser = tolerance)]
    pub(super) tolerance: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// A relative error from the command line.
pub(crate) fn tolerance(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "it must be a number from 0 up, such as 0.04".to_owned())
}
