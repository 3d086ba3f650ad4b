//! Tasks whose result is a list of labels: text and image classification, object detection.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use super::input::TaskInput;
use super::result::TaskResult;
use super::values::TaskError;
use crate::json::{member, parse_list, parse_number, parse_object, parse_string, to_json_string};

/// Text classification.
pub(super) fn prepare_text_classification(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("text")?;
    input.report("input_characters", input.characters("text") as f64);
    Ok(())
}

/// Text and image classification: `[{label, score}]`.
pub(super) fn finish_classification(json: &str) -> Result<TaskResult, String> {
    let names = ["labels", "scores", "predictions", "classes"];
    finish(json, &names, |row| {
        let (label, score) = label(row)?;
        Some(format!(r#"{{"label":{label},"score":{score}}}"#))
    })
}

/// Object detection: `[{label, score, box}]`.
pub(super) fn finish_detection(json: &str) -> Result<TaskResult, String> {
    let names = ["boxes", "detections", "objects", "predictions"];
    finish(json, &names, |row| {
        let (label, score) = label(row)?;
        let place = ["box", "bbox", "bounding_box"];
        let place = corners(place.iter().find_map(|name| member(row, name))?)?;
        Some(format!(
            r#"{{"label":{label},"score":{score},"box":{place}}}"#
        ))
    })
}

/// The rows of the response, each in its documented shape; all or none, because half a list is wrong.
fn finish(
    json: &str,
    names: &[&str],
    row: impl Fn(&str) -> Option<String>,
) -> Result<TaskResult, String> {
    let rows = rows(json, names).ok_or("there is no list of labels in the answer")?;
    let rows: Option<Vec<String>> = rows.iter().map(|json| row(json)).collect();
    let rows = rows.ok_or("a label in the answer is not whole")?;
    Ok(TaskResult::new(format!("[{}]", rows.join(","))).with_usage(member(json, "usage")))
}

/// The list itself, the first one in a list of lists (one per input), one under a name, columns put
/// together, or one row.
fn rows(json: &str, names: &[&str]) -> Option<Vec<String>> {
    let owned = |all: Vec<&str>| all.into_iter().map(str::to_owned).collect();
    if let Some(all) = parse_list(json) {
        let inner = all.first().and_then(|first| parse_list(first));
        return Some(owned(inner.unwrap_or(all)));
    }
    if let Some(columns) = columns(json) {
        return Some(columns);
    }
    let named = names
        .iter()
        .find_map(|name| parse_list(member(json, name)?));
    match named {
        Some(all) => Some(owned(all)),
        None => label(json).map(|_| vec![json.to_owned()]),
    }
}

/// `{labels: […], scores: […], boxes?: […]}` as rows.
fn columns(json: &str) -> Option<Vec<String>> {
    let labels = parse_list(member(json, "labels")?)?;
    let scores = parse_list(member(json, "scores")?)?;
    if labels.len() != scores.len() || labels.iter().any(|label| label.starts_with('{')) {
        return None;
    }
    let boxes = member(json, "boxes").and_then(parse_list);
    let mut rows = Vec::with_capacity(labels.len());
    for (at, (label, score)) in labels.into_iter().zip(scores).enumerate() {
        let place = boxes.as_ref().and_then(|boxes| boxes.get(at));
        let place = place.map_or(String::new(), |place| format!(r#","box":{place}"#));
        rows.push(format!(r#"{{"label":{label},"score":{score}{place}}}"#));
    }
    Some(rows)
}

/// Label and score, as JSON. Some servers number their labels.
fn label(row: &str) -> Option<(String, &str)> {
    let names = ["label", "class", "class_name", "name"];
    let label = names.iter().find_map(|name| member(row, name))?;
    let label = match parse_string(label) {
        Some(text) => to_json_string(&text),
        None => to_json_string(&parse_number(label)?.to_string()),
    };
    let names = ["score", "confidence", "probability"];
    let score = names.iter().find_map(|name| member(row, name))?;
    parse_number(score).map(|_| (label, score))
}

/// `{xmin, ymin, xmax, ymax}` from that, from other names of the corners, from corner and size, or
/// from a list of four.
fn corners(json: &str) -> Option<String> {
    let of = |[xmin, ymin, xmax, ymax]: [f64; 4]| {
        format!(r#"{{"xmin":{xmin},"ymin":{ymin},"xmax":{xmax},"ymax":{ymax}}}"#)
    };
    if let Some(all) = parse_list(json) {
        let numbers: Option<Vec<f64>> = all.into_iter().map(parse_number).collect();
        return <[f64; 4]>::try_from(numbers?).ok().map(of);
    }
    let members = parse_object(json)?;
    let side = |names: &[&str]| members.first_of(names).and_then(parse_number);
    let (x, y) = (
        side(&["xmin", "x1", "left", "x"])?,
        side(&["ymin", "y1", "top", "y"])?,
    );
    let right = side(&["xmax", "x2", "right"]).or_else(|| Some(x + side(&["width", "w"])?));
    let bottom = side(&["ymax", "y2", "bottom"]).or_else(|| Some(y + side(&["height", "h"])?));
    let all = [x, y, right?, bottom?];
    all.iter().all(|side| side.is_finite()).then(|| of(all))
}
