//! `inspect --tensor NAME --row POSITION`: the numbers themselves.

use serde_json::{Value, json};

use super::reader::{CacheReader, CacheTensor};
use super::{InspectArguments, Inspected, layout};
use crate::output::{Failure, number, print, print_bytes};

/// Rows that are printed, at most: whoever wants more wants `--raw`, or a state file.
const MOST_ROWS: u64 = 4096;

pub(super) fn run(arguments: &InspectArguments, name: &str, descriptors: &[Inspected]) -> Result<(), Failure> {
    // clap requires both with a tensor.
    let (Some(path), Some(first)) = (&arguments.layout, arguments.row) else { return Ok(()) };
    let (header, _) = layout::read(path, arguments.model.as_deref()).map_err(Failure::new)?;
    if let Some((number, error)) =
        descriptors.iter().find_map(|inspected| Some((inspected.number, inspected.outcome.as_ref().err()?)))
    {
        return Err(Failure::new(format!("descriptor {number}: {error}")));
    }
    let own = layout::own(descriptors).map_err(Failure::new)?;
    let cache = CacheReader::open(&header, &own).map_err(Failure::new)?;
    let tensor = cache.tensor(name).map_err(Failure::new)?;
    // Also refuses a range that has no end.
    tensor.plane.check_positions(arguments.stream, first, arguments.count).map_err(Failure::new)?;
    let positions = first..first + arguments.count;
    if arguments.raw {
        for position in positions {
            print_bytes(&cache.row_bytes(tensor, arguments.stream, position).map_err(Failure::new)?)?;
        }
        return Ok(());
    }
    if arguments.count > MOST_ROWS {
        return Err(Failure::new(format!(
            "--count is {}, but at most {MOST_ROWS} rows are printed; use --raw",
            arguments.count
        )));
    }
    let rows = positions.map(|position| Ok((position, cache.row(tensor, arguments.stream, position)?)));
    let rows = rows.collect::<Result<Vec<_>, super::reader::ReadError>>().map_err(Failure::new)?;
    if arguments.json {
        print(&format!("{:#}", as_json(tensor, arguments.stream, &rows)))
    } else {
        print(&as_text(tensor, &rows))
    }
}

fn as_json(tensor: &CacheTensor, stream: u64, rows: &[(u64, Vec<f32>)]) -> Value {
    // JSON has no number for what is none; null stands for it.
    let rows = rows.iter().map(|(position, values)| json!({"position": position, "values": values}));
    json!({
        "tensor": tensor.name(),
        "type": tensor.plane.tensor_type.name(),
        "stream": stream,
        "unrotated_by": tensor.rotation,
        "rows": rows.collect::<Vec<_>>(),
    })
}

fn as_text(tensor: &CacheTensor, rows: &[(u64, Vec<f32>)]) -> String {
    let rotation = match tensor.rotation {
        0 => String::new(),
        size => format!(", turned back from its rotation by {size}"),
    };
    let mut text = format!("{}{rotation}", tensor.placed.tensor);
    for (position, values) in rows {
        text.push_str(&format!("\nrow {position}"));
        for (line, values) in values.chunks(8).enumerate() {
            let numbers: Vec<String> = values.iter().map(|value| format!("{:>11}", number((*value).into()))).collect();
            text.push_str(&format!("\n{:>6}{}", line * 8, numbers.concat()));
        }
    }
    text
}
