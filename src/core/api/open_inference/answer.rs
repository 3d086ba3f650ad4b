//! Answer to an inference request: the edit of its JSON, and what becomes of each tensor behind it.
//!
//! Tensors of costs, and outputs that the client did not name, are taken out. No tensor is copied here: the decoder
//! passes or drops so many bytes. Bounds: [`OUTPUTS_MAX`] outputs.

use std::borrow::Cow;

use infergate_tasks::json::scan_members;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::cost::{CostSum, ReportedCosts, metric_of, sum_of_json};
use crate::api::json_text::push_text;

/// Outputs that one answer may have; models have fewer than 100.
const OUTPUTS_MAX: usize = 4096;

/// An answer that is none of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is none of the Open Inference Protocol")]
pub struct MalformedAnswer;

/// Edit of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerEdit {
    /// JSON for the client.
    pub json: Vec<u8>,
    /// Costs of the tensors in JSON.
    pub costs: ReportedCosts,
    /// Tensors behind the JSON, in their order.
    pub spans: Vec<TensorSpan>,
}

/// Bytes of a tensor behind the JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpan {
    /// Its bytes.
    pub bytes: u64,
    /// Use of them.
    pub purpose: TensorUse,
}

/// Use of a tensor's bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorUse {
    /// For the client.
    Pass,
    /// For nobody.
    Drop,
    /// Summed as a cost.
    Cost(CostSum),
}

/// An output, as far as it is looked at.
#[derive(Deserialize)]
pub(super) struct OutputHead<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) datatype: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) shape: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) parameters: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) data: Option<&'a RawValue>,
}

/// Edits the JSON of an answer: `model` is the name that the client used, `named` the outputs that it asked for, none of
/// them for all.
///
/// # Errors
/// The answer is none of the protocol, or an error's.
pub fn edit_answer(
    json: &[u8],
    model: &str,
    named: &[String],
) -> Result<AnswerEdit, MalformedAnswer> {
    let mut edit = AnswerEdit {
        json: Vec::with_capacity(json.len() + model.len()),
        costs: ReportedCosts::default(),
        spans: Vec::new(),
    };
    let text = std::str::from_utf8(json).map_err(|_| MalformedAnswer)?;
    let mut has_outputs = false;
    edit.json.push(b'{');
    scan_members(text, |name, value| {
        if edit.json.len() > 1 {
            edit.json.push(b',');
        }
        push_text(&mut edit.json, &name);
        edit.json.push(b':');
        match &*name {
            "error" if value.get() != "null" => return Err("the answer is an error"),
            "model_name" => push_text(&mut edit.json, model),
            "outputs" if std::mem::replace(&mut has_outputs, true) => {
                return Err("`outputs` stands twice");
            }
            "outputs" => edit_outputs(value, named, &mut edit)?,
            _ => edit.json.extend_from_slice(value.get().as_bytes()),
        }
        Ok(())
    })
    .map_err(|_| MalformedAnswer)?;
    edit.json.push(b'}');
    match has_outputs {
        true => Ok(edit),
        false => Err(MalformedAnswer),
    }
}

fn edit_outputs(
    list: &RawValue,
    named: &[String],
    edit: &mut AnswerEdit,
) -> Result<(), &'static str> {
    let mut is_first = true;
    edit.json.push(b'[');
    for output in read_outputs(list)? {
        let head = read_head(output)?;
        let size = binary_bytes(&head)?;
        let purpose = match metric_of(&head.name) {
            Some(metric) if size.is_some() => TensorUse::Cost(CostSum::new(metric, &head.datatype)),
            Some(metric) => {
                if let Some(sum) = head.data.and_then(|data| sum_of_json(data.get())) {
                    edit.costs.add(metric, sum);
                }
                TensorUse::Drop
            }
            None if named.is_empty() || named.iter().any(|name| *name == *head.name) => {
                TensorUse::Pass
            }
            None => TensorUse::Drop,
        };
        if purpose == TensorUse::Pass {
            if !std::mem::replace(&mut is_first, false) {
                edit.json.push(b',');
            }
            edit.json.extend_from_slice(output.get().as_bytes());
        }
        if let Some(bytes) = size {
            edit.spans.push(TensorSpan { bytes, purpose });
        }
    }
    edit.json.push(b']');
    Ok(())
}

/// The outputs of an answer, each as it stands there.
pub(super) fn read_outputs(list: &RawValue) -> Result<Vec<&RawValue>, &'static str> {
    let outputs: Vec<&RawValue> =
        serde_json::from_str(list.get()).map_err(|_| "`outputs` is no list")?;
    match outputs.len() <= OUTPUTS_MAX {
        true => Ok(outputs),
        false => Err("too many outputs"),
    }
}

/// An output of an answer.
pub(super) fn read_head(output: &RawValue) -> Result<OutputHead<'_>, &'static str> {
    // A list would be read as a struct too, member by member.
    if !output.get().starts_with('{') {
        return Err("an output is no object");
    }
    serde_json::from_str(output.get()).map_err(|_| "an output is not whole")
}

/// Bytes of a tensor behind the JSON; none where its data stands in it.
fn binary_bytes(head: &OutputHead<'_>) -> Result<Option<u64>, &'static str> {
    let Some(parameters) = head.parameters.filter(|it| it.get() != "null") else {
        return Ok(None);
    };
    let mut bytes = None;
    scan_members(parameters.get(), |name, value| {
        if name == "binary_data_size" {
            let size = value.get().parse().map_err(|_| "no size")?;
            if bytes.replace(size).is_some() || head.data.is_some() {
                return Err("two sizes");
            }
        }
        Ok(())
    })
    .map_err(|_| "a size is none")?;
    Ok(bytes)
}
