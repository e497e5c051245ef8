//! The report for programs.

use kvshare::fd::{OpenMode, Seals};
use kvshare::header::Header;
use serde_json::{Value, json};

use super::descriptor::exporter_in_words;
use super::findings::Finding;
use super::reader::{Padding, RowsSurvey, TensorSurvey};
use super::{CpuRefusal, Descriptor, Holder, Inspected, Report, Surveyed};

/// Ranges of written rows that are listed, at most; the counts are always of all.
const MOST_RANGES: usize = 64;

pub(super) fn report(report: &Report) -> Value {
    json!({
        "descriptors": report.descriptors.iter().map(inspected).collect::<Vec<_>>(),
        "layout": report.layout.as_ref().map(layout),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn finding(finding: &Finding) -> Value {
    json!({"kind": finding.kind, "about": finding.about, "message": finding.message})
}

fn inspected(inspected: &Inspected) -> Value {
    let mut value = match &inspected.outcome {
        Ok(found) => descriptor(found),
        Err(error) => json!({"error": error.to_string()}),
    };
    value["number"] = inspected.number.into();
    value
}

fn descriptor(found: &Descriptor) -> Value {
    let facts = &found.facts;
    let access = match facts.access {
        OpenMode::Neither => "none",
        OpenMode::ReadOnly => "read",
        OpenMode::WriteOnly => "write",
        OpenMode::ReadWrite => "read-write",
    };
    let refusal = |result: &Result<(), CpuRefusal>| result.as_ref().err().map(ToString::to_string);
    json!({
        "kind": facts.kind.to_string(),
        "name": facts.name,
        "exporter": facts.exporter,
        "exporter_is": facts.exporter.as_deref().and_then(exporter_in_words),
        "size": facts.size,
        "access": access,
        "seals": facts.seals.map(seals),
        "close_on_exec": facts.close_on_exec,
        "inode": facts.identity.inode,
        "page_bytes": found.pages.map(|pages| pages.page_bytes),
        "allocated_bytes": found.pages.map(|pages| pages.allocated),
        "cpu_may_read": found.cpu_read.is_ok(),
        "cpu_may_write": found.cpu_write.is_ok(),
        "why_not_read": refusal(&found.cpu_read),
        "why_not_write": refusal(&found.cpu_write),
        "also_open_in": found.holders.as_ref().map(|holders| holders.found.iter().map(holder).collect::<Vec<_>>()),
        "processes_not_looked_into": found.holders.as_ref().map(|holders| holders.hidden),
    })
}

fn seals(seals: Seals) -> Value {
    let Seals { shrink, grow, write, future_write, seal } = seals;
    json!({"shrink": shrink, "grow": grow, "write": write, "future_write": future_write, "seal": seal})
}

fn holder(holder: &Holder) -> Value {
    let Holder { pid, name, descriptors, is_mapped } = holder;
    json!({"pid": pid, "name": name, "descriptors": descriptors, "mapped": is_mapped})
}

fn layout(surveyed: &Surveyed) -> Value {
    let Surveyed { header, has_digest, fit, tensors } = surveyed;
    json!({
        "model": header.model.as_ref().map(|model| &model.name),
        "v_trans": header.v_trans(),
        "digest": if *has_digest { json!("right") } else { Value::Null },
        "fits_the_descriptors": fit.is_ok(),
        "regions": regions(header),
        "tensors": tensors.iter().map(tensor).collect::<Vec<_>>(),
    })
}

fn regions(header: &Header) -> Vec<Value> {
    let of = |region: &kvshare::header::Region| {
        json!({
            "descriptor": region.fd, "offset": region.offset, "size": region.size, "group": region.group,
            "layout": region.layout,
        })
    };
    header.regions.iter().map(of).collect()
}

fn tensor(survey: &TensorSurvey) -> Value {
    let placed = &survey.tensor.placed;
    let padding = match &survey.padding {
        Ok(Padding::None) => json!({"state": "none"}),
        Ok(Padding::Zeros) => json!({"state": "zeros"}),
        Ok(Padding::Intact) => json!({"state": "intact"}),
        Ok(Padding::Damaged { offset }) => json!({"state": "damaged", "offset": offset}),
        Err(error) => json!({"state": "unreadable", "error": error.to_string()}),
    };
    json!({
        "name": survey.tensor.name(),
        "type": placed.tensor.tensor_type().name(),
        "ne": placed.tensor.ne(),
        "region": placed.region,
        "offset": placed.offset,
        "bytes": placed.tensor.bytes(),
        "padding": padding,
        "streams": survey.streams.as_ref().ok().map(|streams| streams.iter().map(rows).collect::<Vec<_>>()),
        "error": survey.streams.as_ref().err().map(ToString::to_string),
    })
}

fn rows(rows: &RowsSurvey) -> Value {
    let ranges = rows.written();
    let shown = ranges.iter().take(MOST_RANGES).map(|range| [range.start, range.end]);
    json!({
        "stream": rows.stream,
        "written": rows.rows.len(),
        "ranges": shown.collect::<Vec<_>>(),
        "range_count": ranges.len(),
        "min": rows.least,
        "max": rows.most,
        "mean": rows.mean,
        "odd_rows": rows.odd_rows,
        "first_odd": rows.first_odd.map(|odd| json!({
            "position": odd.position, "channel": odd.channel, "oddity": odd.oddity.to_string(),
            // JSON has no numbers for what is none.
            "value": odd.value.to_string(),
        })),
    })
}
