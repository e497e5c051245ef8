//! `kvshare-cli layout`: which tensor lies where.

use std::path::PathBuf;

use clap::{Args, value_parser};
use kvshare::layout::{Geometry, Layout, TensorType};
use kvshare::provider::read_metadata;
use serde_json::{Value, json};

use crate::output::{Failure, bytes_in_words, print, table};

/// Prints regions, sizes, hashes and tensor offsets of a cache
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli layout --layers 28 --k-width 1024 --v-width 1024 --cells 20480 --type f16
  kvshare-cli layout --model model.gguf --cells 4096 --json")]
pub struct LayoutArguments {
    /// Take layers and widths from this GGUF
    #[arg(long, value_name = "FILE", conflicts_with_all = ["layers", "k_width", "v_width"])]
    model: Option<PathBuf>,
    /// Attention layers
    #[arg(long, value_name = "N", required_unless_present = "model", value_parser = value_parser!(u32).range(..=4096))]
    layers: Option<u32>,
    /// Channels of K: KV heads times head size (n_embd_k_gqa)
    #[arg(long, value_name = "N", required_unless_present = "model")]
    k_width: Option<u64>,
    /// Channels of V (n_embd_v_gqa)
    #[arg(long, value_name = "N", required_unless_present = "model")]
    v_width: Option<u64>,
    /// Positions of one stream (kv_size)
    #[arg(long, value_name = "N")]
    cells: u64,
    /// Streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: u64,
    /// Type of K and V: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl
    #[arg(long = "type", value_name = "TYPE", default_value = "f16")]
    tensor_type: TensorType,
    /// Type of V, where it is another than K's
    #[arg(long, value_name = "TYPE")]
    type_v: Option<TensorType>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &LayoutArguments) -> Result<(), Failure> {
    let layout = geometry(arguments)?.layout().map_err(Failure::new)?;
    if arguments.json { print(&format!("{:#}", as_json(&layout))) } else { print(&as_text(&layout)) }
}

fn geometry(arguments: &LayoutArguments) -> Result<Geometry, Failure> {
    let (type_k, cells) = (arguments.tensor_type, arguments.cells);
    let type_v = arguments.type_v.unwrap_or(type_k);
    let geometry = match &arguments.model {
        Some(path) => {
            let metadata = read_metadata(path).map_err(Failure::new)?;
            metadata.geometry(cells, type_k, type_v).map_err(Failure::new)?
        }
        None => {
            // clap requires all three where there is no model.
            let (layers, k, v) = (arguments.layers, arguments.k_width, arguments.v_width);
            Geometry::uniform(layers.unwrap_or(0), k.unwrap_or(0), v.unwrap_or(0), cells, type_k)
        }
    };
    Ok(Geometry { type_v, streams: arguments.streams, ..geometry })
}

fn as_json(layout: &Layout) -> Value {
    let regions = layout.chunks().iter();
    let regions = regions.map(|chunk| json!({"size": chunk.size, "layout": chunk.hash, "group": chunk.group}));
    let tensors = layout.tensors().iter().map(|placed| {
        let tensor = &placed.tensor;
        json!({
            "name": tensor.name(), "type": tensor.tensor_type().name(), "ne": tensor.ne(), "region": placed.region,
            "offset": placed.offset, "bytes": tensor.bytes(),
        })
    });
    json!({"bytes": layout.bytes(), "regions": regions.collect::<Vec<_>>(), "tensors": tensors.collect::<Vec<_>>()})
}

fn as_text(layout: &Layout) -> String {
    let mut regions = table(&["region", "group", "tensors", "size", "layout hash"], &[2, 3, 4]);
    for (index, chunk) in layout.chunks().iter().enumerate() {
        let count = chunk.tensors.len();
        regions.add_row([
            index.to_string(),
            chunk.group.to_string(),
            count.to_string(),
            chunk.size.to_string(),
            chunk.hash.to_string(),
        ]);
    }
    let mut tensors = table(&["tensor", "type", "ne", "region", "offset", "bytes"], &[3, 4, 5]);
    for placed in layout.tensors() {
        let (tensor, [a, b, c, d]) = (&placed.tensor, placed.tensor.ne());
        let ne = if d == 1 { format!("{a} x {b} x {c}") } else { format!("{a} x {b} x {c} x {d}") };
        tensors.add_row([
            tensor.name().to_owned(),
            tensor.tensor_type().to_string(),
            ne,
            placed.region.to_string(),
            placed.offset.to_string(),
            tensor.bytes().to_string(),
        ]);
    }
    let count = layout.chunks().len();
    let total = bytes_in_words(layout.bytes());
    format!("{count} region{}, {total}\n\n{regions}\n\n{tensors}", if count == 1 { "" } else { "s" })
}
