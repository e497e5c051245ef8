//! `state show`: a file in words.

use kvshare::layout::Part;
use kvshare::state_file::{Packing, StateFile, Stream};
use serde_json::{Value, json};

use super::arguments::ShowArguments;
use super::loaded::Loaded;
use crate::inspect::reader::{CacheReader, RowsSurvey, TensorSurvey, survey};
use crate::output::{Failure, bytes_in_words, number, print, table};

/// Token ids that are printed, at most; `--json` has all.
const MOST_TOKENS: usize = 24;

pub(super) fn run(arguments: &ShowArguments) -> Result<(), Failure> {
    let loaded = Loaded::read(&arguments.file, arguments.form.m_rope).map_err(Failure::new)?;
    let surveys = surveys(&loaded)?;
    let name = arguments.file.display().to_string();
    if arguments.json {
        return print(&format!("{:#}", as_json(&name, &loaded.file, &surveys)));
    }
    print(&as_text(&name, &loaded.file, &surveys))
}

/// Every row of a file, looked at as `inspect` does.
pub(super) fn surveys(loaded: &Loaded) -> Result<Vec<TensorSurvey>, Failure> {
    let reader = CacheReader::open(&loaded.header, &loaded.descriptors).map_err(Failure::new)?;
    Ok(survey(&reader))
}

/// `f16 x 192`, of K or V in all layers, or how it differs.
fn widths(stream: &Stream, part: Part) -> String {
    let of = |layer: &kvshare::state_file::LayerShape| {
        let shape = if part == Part::K { layer.k } else { layer.v };
        format!("{} x {}", shape.tensor_type, shape.width)
    };
    let mut all: Vec<String> = stream.shape.layers.iter().map(of).collect();
    all.dedup();
    all.join(", ")
}

fn as_text(name: &str, file: &StateFile, surveys: &[TensorSurvey]) -> String {
    let packing = match &file.packing {
        Packing::Plain => "bare ids".to_owned(),
        Packing::Packed(media) if media.is_empty() => "packed, no media".to_owned(),
        Packing::Packed(media) => format!("packed, with {} images or sounds", media.len()),
    };
    let ids: Vec<String> = file.tokens.iter().take(MOST_TOKENS).map(ToString::to_string).collect();
    let more = if file.tokens.len() > MOST_TOKENS { " …" } else { "" };
    let length = file.byte_length().unwrap_or(0);
    let mut text = format!(
        "{name}: a llama.cpp sequence state, version 4, {length} bytes ({})\n\ntokens    {} ({packing}): {}{more}\n\
         streams   {}",
        bytes_in_words(length),
        file.tokens.len(),
        ids.join(" "),
        file.streams.len()
    );
    for (index, stream) in file.occupied() {
        let shape = &stream.shape;
        let (first, last) = (stream.cells.first().map_or(0, |cell| cell.position), stream.cells.last());
        let lie = if shape.v_trans { "by channel (no flash attention)" } else { "by position (flash attention)" };
        text.push_str(&format!(
            "\nstream {index}  {} cells, positions {first} to {}, sequence {}\n\
             rows      {} layers, K {}, V {}; V lies {lie}\nrotation  K {}, V {}",
            stream.cells.len(),
            last.map_or(0, |cell| cell.position),
            last.map_or(0, |cell| cell.seq_id),
            shape.layers.len(),
            widths(stream, Part::K),
            widths(stream, Part::V),
            rotation(shape.n_rot_k),
            rotation(shape.n_rot_v),
        ));
    }
    let mut layers = table(&["tensor", "rows not 0", "min", "mean", "max", "first odd row"], &[1, 2, 3, 4]);
    for survey in surveys {
        let rows = rows_of(survey);
        let odd = rows.first_odd.map_or_else(String::new, |odd| format!("{}: {}", odd.position, odd.oddity));
        let [min, mean, max] = [f64::from(rows.least), rows.mean, f64::from(rows.most)].map(number);
        layers.add_row([survey.tensor.name().to_owned(), rows.rows.len().to_string(), min, mean, max, odd]);
    }
    format!("{text}\n\n{layers}")
}

fn rotation(size: u32) -> String {
    if size == 0 { "none".to_owned() } else { format!("by {size}") }
}

/// The survey of the one stream; nothing where all of it is 0.
pub(super) fn rows_of(survey: &TensorSurvey) -> RowsSurvey {
    survey.streams.as_ref().ok().and_then(|streams| streams.first().cloned()).unwrap_or_default()
}

fn as_json(name: &str, file: &StateFile, surveys: &[TensorSurvey]) -> Value {
    let stream = |(index, stream): (usize, &Stream)| {
        let shape = &stream.shape;
        json!({
            "stream": index,
            "cells": stream.cells.len(),
            "positions": stream.cells.iter().map(|cell| cell.position).collect::<Vec<_>>(),
            "seq_id": stream.cells.first().map(|cell| cell.seq_id),
            "v_trans": shape.v_trans,
            "n_layer": shape.layers.len(),
            "n_rot_k": shape.n_rot_k,
            "n_rot_v": shape.n_rot_v,
            "k": widths(stream, Part::K),
            "v": widths(stream, Part::V),
        })
    };
    let tensor = |survey: &TensorSurvey| {
        let rows = rows_of(survey);
        json!({
            "name": survey.tensor.name(), "rows_not_0": rows.rows.len(), "min": rows.least, "mean": rows.mean,
            "max": rows.most, "odd_rows": rows.odd_rows,
        })
    };
    json!({
        "file": name,
        "version": kvshare::state_file::VERSION,
        "bytes": file.byte_length().ok(),
        "tokens": file.tokens,
        "packed": matches!(file.packing, Packing::Packed(_)),
        "n_stream": file.streams.len(),
        "streams": file.occupied().map(stream).collect::<Vec<_>>(),
        "tensors": surveys.iter().map(tensor).collect::<Vec<_>>(),
    })
}
