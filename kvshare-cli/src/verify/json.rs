//! The result for programs.

use serde_json::{Value, json};

use super::{Agreement, Diagnosis, Element, Explained, Place, Plane, Verification};

/// All facts. A number that is none is `null`.
pub(crate) fn verification(verification: &Verification) -> Value {
    let Verification { against, positions, stream: (stream, _), tolerance, planes, diagnosis, model } = verification;
    let plane = |plane: &Plane| {
        let Agreement { relative, rows_off, first_off, rows_empty, worst, .. } = &plane.agreement;
        json!({
            "layer": plane.layer,
            "half": plane.place.half.to_string(),
            "within_tolerance": plane.holds,
            "relative_error": relative,
            "rows_off": rows_off,
            "first_row_off": first_off,
            "rows_empty": rows_empty,
            "worst": worst.map(|worst| element(worst, model.head_size)),
        })
    };
    json!({
        "right": verification.holds(),
        "against": against,
        "positions": positions,
        "stream": stream,
        "tolerance": {"k": tolerance.k, "v": tolerance.v},
        "planes": planes.iter().map(plane).collect::<Vec<_>>(),
        "worst": verification.worst().and_then(|plane| {
            let mut value = element(plane.agreement.worst?, model.head_size);
            value["layer"] = plane.layer.into();
            value["half"] = plane.place.half.to_string().into();
            Some(value)
        }),
        "diagnosis": diagnosis.as_ref().map(|diagnosis| of_diagnosis(verification, diagnosis)),
        "rope_not_tried": model.rope_unknown,
    })
}

fn element(worst: Element, head_size: Option<u64>) -> Value {
    let Element { position, channel, found, expected } = worst;
    json!({
        "position": position, "channel": channel, "head": head_size.map(|size| channel / size),
        "element": head_size.map(|size| channel % size), "found": found, "expected": expected,
        // JSON has no numbers for what is none.
        "found_is": found.to_string(),
    })
}

fn of_diagnosis(verification: &Verification, diagnosis: &Diagnosis) -> Value {
    let place = |place: &Place| {
        let layer = verification.plane(*place).map(|plane| plane.layer);
        json!({"layer": layer, "half": place.half.to_string()})
    };
    let explained = |explained: &Explained| {
        let mut value = place(&explained.place);
        value["found_in"] = explained.found_in.clone().into();
        value["positions"] = json!([explained.positions.start, explained.positions.end]);
        value["relative_error"] = json!(explained.relative);
        value
    };
    let explanations = diagnosis.explanations.iter().map(|explanation| {
        json!({
            "mistake": explanation.mistake.name(),
            "words": explanation.mistake.words(),
            "advice": explanation.mistake.advice(),
            "explains": explanation.places.iter().map(explained).collect::<Vec<_>>(),
        })
    });
    json!({
        "explanations": explanations.collect::<Vec<_>>(),
        "empty": diagnosis.empty.iter().map(place).collect::<Vec<_>>(),
        "unexplained": diagnosis.unexplained.iter().map(place).collect::<Vec<_>>(),
    })
}
