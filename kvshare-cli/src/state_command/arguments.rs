//! The command's arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use kvshare::layout::TensorType;

/// Shows, checks, compares and converts llama.cpp's sequence-state files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli state show slot.bin
  kvshare-cli state check --tokens prompt.tokens --like saved-by-the-server.bin slot.bin
  kvshare-cli state convert slot.bin slot-nofa.bin --v-trans 1")]
pub struct StateArguments {
    #[command(subcommand)]
    pub(super) command: StateCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum StateCommand {
    Show(ShowArguments),
    Check(CheckArguments),
    Diff(DiffArguments),
    Convert(ConvertArguments),
    IntoRegions(IntoRegionsArguments),
    FromRegions(FromRegionsArguments),
}

// Plain comments on the two below: a documentation comment would become the help of the command they are part of.

// What a state file does not say of itself.
#[derive(Debug, Args)]
pub(super) struct Form {
    /// The model has several positions a token (M-RoPE)
    #[arg(long)]
    pub m_rope: bool,
}

// Regions that were handed over.
#[derive(Debug, Args)]
pub(super) struct RegionArguments {
    /// The header
    #[arg(long, value_name = "FILE")]
    pub layout: PathBuf,
    /// Numbers of the descriptors, in the header's order
    #[arg(long, value_name = "N,N", value_delimiter = ',', required = true)]
    pub fds: Vec<i32>,
    /// Take files and memory that others could truncate meanwhile, which would kill this program
    #[arg(long)]
    pub unsealed: bool,
}

/// Says in words what a file holds
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvshare-cli state show slot.bin")]
pub(super) struct ShowArguments {
    /// The file
    pub file: PathBuf,
    #[command(flatten)]
    pub form: Form,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Says whether files restore to what they should, and what the stock server would not notice
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kvshare-cli state check --tokens prompt.tokens --n-ctx 4096 slot.bin

Exit status: 0 every file is good, 1 one is not, 2 misuse")]
pub(super) struct CheckArguments {
    /// The files
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// They must hold exactly these token ids, one decimal id a line
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// They must be made as this one is, which the server itself saved: types, widths, layers, v_trans, rotation
    #[arg(long, value_name = "FILE")]
    pub like: Option<PathBuf>,
    /// They must fit into so many cells
    #[arg(long, value_name = "N")]
    pub n_ctx: Option<u64>,
    /// Their token ids must be below this
    #[arg(long, value_name = "N")]
    pub n_vocab: Option<u32>,
    #[command(flatten)]
    pub form: Form,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Compares two files: tokens, cells, and the rows of each layer, whatever types they have and whichever way they lie
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kvshare-cli state diff provider.bin server.bin --tolerance 0.06

Exit status: 0 they are equal (or within the tolerance), 1 they differ, 2 misuse")]
pub(super) struct DiffArguments {
    /// The file that is taken as right
    pub right: PathBuf,
    /// The file that is compared with it
    pub other: PathBuf,
    /// The relative error that a layer's K or V may have
    #[arg(long, value_name = "R", default_value_t = 0.0)]
    pub tolerance: f64,
    #[command(flatten)]
    pub form: Form,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Writes a file again with rows of another type, or lying another way
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli state convert slot.bin wide.bin --type f32
  kvshare-cli state convert quantized.bin plain.bin --type f16
  kvshare-cli state convert slot.bin without-flash-attention.bin --v-trans 1

Rows that keep their type are copied bit by bit. Quantized rows that become f16, f32 or bf16 are turned back from their
rotation.")]
pub(super) struct ConvertArguments {
    /// The file
    pub from: PathBuf,
    /// The file to write; its directory must exist
    pub to: PathBuf,
    /// The type of K and V: f16, f32 or bf16 [default: as they are]
    #[arg(long = "type", value_name = "TYPE", value_parser = float_type)]
    pub tensor_type: Option<TensorType>,
    /// 1 stores V by channel, as the server does without flash attention; 0 by position [default: as it is]
    #[arg(long, value_name = "0|1", value_parser = value_parser!(u8).range(0..=1))]
    pub v_trans: Option<u8>,
    #[command(flatten)]
    pub form: Form,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Writes the rows of a file into the regions that a header describes
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kvshare-cli recv --socket run/kv.sock -- kvshare-cli state into-regions slot.bin --layout {layout} --fds {fds}")]
pub(super) struct IntoRegionsArguments {
    /// The file
    pub file: PathBuf,
    #[command(flatten)]
    pub regions: RegionArguments,
    #[command(flatten)]
    pub form: Form,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Writes the rows in regions as a file that llama-server restores
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kvshare-cli state from-regions slot.bin --tokens prompt.tokens --layout header.json --fds 3 --unsealed 3<>region.bin")]
pub(super) struct FromRegionsArguments {
    /// The file to write; its directory must exist
    pub file: PathBuf,
    /// The prompt's token ids, one decimal id a line: there are as many rows
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    #[command(flatten)]
    pub regions: RegionArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn float_type(name: &str) -> Result<TensorType, String> {
    let known = name.parse::<TensorType>().ok().filter(|found| !found.is_quantized());
    known.ok_or_else(|| {
        "it must be f16, f32 or bf16: a quantized cache is rotated, and only its server knows how".to_owned()
    })
}
