//! Tensors of an answer as the JSON that a task's result is made of: an object with a member for each output.
//!
//! Dimensions of one are left out, and a tensor of one element is that element. `labels`, `scores` and `boxes` are lists
//! always, as the tasks expect them. The task finds its result by the names of the members.

use infergate_tasks::json::{member, parse_list, scan_members};
use serde_json::value::RawValue;

use super::answer::{MalformedAnswer, OutputHead, read_head, read_outputs};
use super::cost::{ReportedCosts, metric_of, sum_of_json};
use crate::api::json_text::push_text;

/// Outputs that are columns of a table.
const COLUMNS: [&str; 2] = ["labels", "scores"];
/// The column whose items are lists.
const BOXES: &str = "boxes";
/// Dimensions of a tensor; numpy has no more.
const DIMENSIONS_MAX: usize = 32;

/// Returns the JSON that an answer to `infer` is for the task, and the costs in it.
///
/// # Errors
/// The answer is none of the protocol, or an error's.
pub fn task_result(answer: &[u8]) -> Result<(Vec<u8>, ReportedCosts), MalformedAnswer> {
    let text = std::str::from_utf8(answer).map_err(|_| MalformedAnswer)?;
    let mut costs = ReportedCosts::default();
    let mut result = None;
    scan_members(text, |name, value| match &*name {
        "error" if value.get() != "null" => Err("the answer is an error"),
        "outputs" => {
            result = Some(write_outputs(value, &mut costs)?);
            Ok(())
        }
        _ => Ok(()),
    })
    .map_err(|_| MalformedAnswer)?;
    Ok((result.ok_or(MalformedAnswer)?, costs))
}

/// Answer to `generate`, or an event of `generate_stream`.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedPiece<'a> {
    /// JSON of the text; none where it has none.
    pub text: Option<&'a str>,
    /// Costs of this piece.
    pub costs: ReportedCosts,
}

/// Reads an answer to `generate`, or the data of an event of `generate_stream`.
///
/// # Errors
/// The answer is no JSON object, or an error's.
pub fn generated_piece(json: &[u8]) -> Result<GeneratedPiece<'_>, MalformedAnswer> {
    let text = std::str::from_utf8(json).map_err(|_| MalformedAnswer)?;
    let mut costs = ReportedCosts::default();
    scan_members(text, |name, value| {
        if name == "error" && value.get() != "null" {
            return Err("the answer is an error");
        }
        if let Some(metric) = metric_of(&name)
            && let Some(sum) = sum_of_json(value.get())
        {
            costs.add(metric, sum);
        }
        Ok(())
    })
    .map_err(|_| MalformedAnswer)?;
    let text = member(text.trim(), "text_output");
    // A batch of one is a list.
    let text = text.map(|text| match parse_list(text) {
        Some(items) if items.len() == 1 => items[0],
        _ => text,
    });
    Ok(GeneratedPiece { text, costs })
}

fn write_outputs(list: &RawValue, costs: &mut ReportedCosts) -> Result<Vec<u8>, &'static str> {
    let mut result = vec![b'{'];
    for output in read_outputs(list)? {
        let head = read_head(output)?;
        let data = head.data.ok_or("a tensor is not in JSON")?;
        if let Some(metric) = metric_of(&head.name) {
            if let Some(sum) = sum_of_json(data.get()) {
                costs.add(metric, sum);
            }
            continue;
        }
        if result.len() > 1 {
            result.push(b',');
        }
        push_text(&mut result, &head.name);
        result.push(b':');
        write_tensor(&head, data, &mut result)?;
    }
    result.push(b'}');
    Ok(result)
}

fn write_tensor(
    head: &OutputHead<'_>,
    data: &RawValue,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    let mut elements = Vec::new();
    flatten(data.get(), DIMENSIONS_MAX, &mut elements)?;
    let shape = head.shape.ok_or("a tensor has no shape")?;
    let shape: Vec<usize> = serde_json::from_str(shape.get()).map_err(|_| "a shape is none")?;
    let count = shape
        .iter()
        .try_fold(1_usize, |product, side| product.checked_mul(*side));
    if count != Some(elements.len()) || shape.len() > DIMENSIONS_MAX {
        return Err("a tensor has not the elements of its shape");
    }
    if elements.is_empty() {
        // Sides beside one of 0 are whatever the server claims: lists of nothing are written for none of them.
        out.extend_from_slice(b"[]");
        return Ok(());
    }
    let dimensions: Vec<usize> = match &*head.name {
        name if COLUMNS.contains(&name) => vec![elements.len()],
        BOXES => {
            let side = shape.last().copied().unwrap_or(1).max(1);
            vec![elements.len() / side, side]
        }
        _ => shape.into_iter().filter(|side| *side != 1).collect(),
    };
    write_nested(&elements, &dimensions, out);
    Ok(())
}

/// The elements of a list of lists, in their order.
fn flatten<'a>(
    json: &'a str,
    levels: usize,
    elements: &mut Vec<&'a str>,
) -> Result<(), &'static str> {
    if !json.starts_with('[') {
        elements.push(json);
        return Ok(());
    }
    let levels = levels.checked_sub(1).ok_or("a tensor is nested too deep")?;
    for item in parse_list(json).ok_or("a tensor is no list")? {
        flatten(item, levels, elements)?;
    }
    Ok(())
}

/// Writes elements as lists of these dimensions, whose product is their number: none is 0, and so lists are fewer than
/// elements.
fn write_nested(elements: &[&str], dimensions: &[usize], out: &mut Vec<u8>) {
    let Some((side, inner)) = dimensions.split_first() else {
        out.extend_from_slice(elements.first().unwrap_or(&"null").as_bytes());
        return;
    };
    out.push(b'[');
    let step = elements.len().checked_div(*side).unwrap_or(0).max(1);
    for (row, part) in elements.chunks(step).enumerate() {
        if row > 0 {
            out.push(b',');
        }
        write_nested(part, inner, out);
    }
    out.push(b']');
}
