//! The command's arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kvshare::layout::TensorType;

use crate::verify::{PromptArguments, parse_tolerance};

/// Runs a provider once, as the proxy would, and says which element it got wrong and what it probably did
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli run-provider -m model.gguf --prompt \"Why does it rain?\" -- ./my-provider
  kvshare-cli run-provider -m model.gguf --tokens prompt.tokens --type-k q8_0 --type-v q8_0 -- ./my-provider --device 1
  kvshare-cli run-provider --layout header.json --fds 3 --token-ids 1,325,201 -- ./my-provider 3<>region.bin

Without --fds the memory is made here, sealed memfds as a decoder shares them. The padding behind each tensor gets a pattern \
first, and rows of regions that were given are emptied. The provider gets its own arguments, then those of the contract; its \
standard error is passed on.

Exit status: 0 all is right, 1 nothing could be run or compared, 2 misuse, 3 the provider failed, 4 it wrote outside the \
prompt's rows (into padding, or into later cells), 5 its rows are wrong; of several the first")]
pub struct RunProviderArguments {
    /// The model (GGUF), for the provider and for the rows that are expected [default: the embedded kvshare-tiny]
    #[arg(short, long, value_name = "FILE")]
    pub(super) model: Option<PathBuf>,
    #[command(flatten)]
    pub(super) prompt: PromptArguments,
    /// Expect the rows of this state file instead of the model's own prefill
    #[arg(long, value_name = "FILE")]
    pub(super) against: Option<PathBuf>,
    /// The header of the cache [default: one that suits the model]
    #[arg(long, value_name = "FILE")]
    pub(super) layout: Option<PathBuf>,
    /// Numbers of this program's descriptors, in the header's order [default: memory is made]
    #[arg(long, value_name = "N,N", value_delimiter = ',', requires = "layout")]
    pub(super) fds: Vec<i32>,
    /// Cells of the cache [default: some more than the prompt has tokens, an odd number]
    #[arg(short = 'c', long, value_name = "N", conflicts_with = "layout", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) ctx_size: Option<u32>,
    /// The type of K
    #[arg(long, value_name = "TYPE", default_value = "f16", conflicts_with = "layout")]
    pub(super) type_k: TensorType,
    /// The type of V
    #[arg(long, value_name = "TYPE", default_value = "f16", conflicts_with = "layout")]
    pub(super) type_v: TensorType,
    /// Have V stored by channel, as a decoder without flash attention does
    #[arg(long, conflicts_with = "layout")]
    pub(super) v_trans: bool,
    /// Where the provider's kernels are
    #[arg(long, value_name = "DIR", env = "ONEBIT_HYBRID_ELFS")]
    pub(super) elfs: Option<OsString>,
    /// How long the provider may take
    #[arg(long, value_name = "SECONDS", env = "ONEBIT_HYBRID_PREFILL_TIMEOUT_S", default_value = "600", value_parser = seconds)]
    pub(super) prefill_timeout: Duration,
    /// A backend that the provider may ask
    #[arg(long, value_name = "URL")]
    pub(super) backend_url: Option<String>,
    /// The relative error that K and V of each layer may have [default: by the types of the cache, at least 0.04 for K and
    /// 0.08 for V]
    #[arg(long, value_name = "R", value_parser = parse_tolerance)]
    pub(super) tolerance: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// The provider, and arguments of its own
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    value.filter(|value| !value.is_zero()).ok_or_else(|| "it must be a number of seconds over 0".to_owned())
}
