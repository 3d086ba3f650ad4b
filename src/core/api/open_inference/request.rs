//! Body of an inference request: its JSON is looked at, tensors behind it are not.
//!
//! A request that names its outputs is sent without their names, so that the server answers the tensors of costs too;
//! `answer` takes out what was not named. Where one named output is asked for in binary, all come so.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::routes;
use crate::Refusal;
use crate::api::body::BodyMembers;
use crate::api::call::{ApiDialect, Call, RangeEdit};
use crate::api::dialect::RequestBody;
use crate::api::json::{bad, each_item, each_member, within};
use crate::api::tensor_request::TensorRequest;

/// Inputs, or outputs, that one request names at most: models have fewer than 100.
const TENSORS_MAX: usize = 1024;

/// Content type of a body with tensors in binary.
const BINARY: &str = "application/octet-stream";
/// Content type of a body that is JSON alone.
const JSON: &str = "application/json";

/// An input, as far as it is looked at.
#[derive(Deserialize)]
struct InputHead<'a> {
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
}

/// An output that the client names.
#[derive(Deserialize)]
struct NamedOutput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
}

/// Outputs that the client names, and whether one of them is asked for in binary.
struct OutputList {
    names: Vec<String>,
    is_binary: bool,
}

/// Parses the body of an inference request.
///
/// # Errors
/// [`Refusal::BadRequest`] with the JSON Pointer of the fault.
pub(super) fn parse(request: RequestBody<'_>) -> Result<Call, Refusal> {
    let RequestBody {
        operation,
        path_model,
        body,
        path,
        json_bytes,
        ..
    } = request;
    let model = path_model.ok_or(Refusal::NoSuchRoute)?;
    let json_bytes = json_bytes
        .map(|text| json_length(text, &body))
        .transpose()?;
    let json = &body[..json_bytes.unwrap_or(body.len())];
    if json.starts_with(&[0x1f, 0x8b]) {
        return Err(bad("", "the body is compressed: send it as it is"));
    }
    let members = BodyMembers::read(json)?;
    let [inputs, outputs, parameters] = members.unique(["inputs", "outputs", "parameters"])?;
    let raw = |range: &std::ops::Range<usize>| raw_value(&json[range.clone()]);
    let inputs = inputs.ok_or_else(|| bad("/inputs", "`inputs` is missing"))?;
    let tensor_bytes = check_inputs(raw(&inputs.value)?)?;
    if json_bytes.is_some() && tensor_bytes != (body.len() - json.len()) as u64 {
        return Err(bad(
            "/inputs",
            "the sizes of the tensors do not add up to the body",
        ));
    }
    let parameters = parameters.map(|member| raw(&member.value)).transpose()?;
    let outputs = outputs.map(|member| raw(&member.value)).transpose()?;
    let default_binary = wants_binary(parameters)?;
    let outputs = outputs
        .map(|list| read_outputs(list, default_binary))
        .transpose()?;
    let outputs = outputs.filter(|outputs| !outputs.names.is_empty());
    let content_type = if json_bytes.is_some() { BINARY } else { JSON };
    let mut call = Call::opaque(model, content_type.into(), body.clone());
    call.dialect = ApiDialect::OpenInference;
    call.operation = operation;
    let mut tensors = TensorRequest {
        version: routes::version_in(path).map(str::to_owned),
        json_bytes,
        outputs: Vec::new(),
    };
    if let Some(outputs) = outputs {
        let edits = all_outputs(&members, parameters, outputs.is_binary)?;
        call.body = call.edited(edits);
        tensors.json_bytes = json_bytes.map(|bytes| bytes + call.body.len() - body.len());
        tensors.outputs = outputs.names;
    }
    call.tensors = Some(Box::new(tensors));
    Ok(call)
}

fn json_length(text: &str, body: &Bytes) -> Result<usize, Refusal> {
    let length = text.trim().parse().ok();
    length
        .filter(|length| *length <= body.len())
        .ok_or_else(|| {
            let message = "`Inference-Header-Content-Length` must be the bytes of JSON in the body";
            bad("", message)
        })
}

fn raw_value(json: &[u8]) -> Result<&RawValue, Refusal> {
    serde_json::from_slice(json).map_err(|_| bad("", "the body is not a JSON object"))
}

fn read_member<'a, T: Deserialize<'a>>(value: &'a RawValue, pointer: &str) -> Result<T, Refusal> {
    crate::api::json::read(value).map_err(|refusal| within(pointer, refusal))
}

/// Checks the inputs and returns the bytes of their tensors in binary.
fn check_inputs(list: &RawValue) -> Result<u64, Refusal> {
    let mut total = 0_u64;
    each_item(list, |at, input| {
        let pointer = format!("/inputs/{at}");
        if at >= TENSORS_MAX {
            return Err(bad(&pointer, "too many tensors"));
        }
        let head: InputHead<'_> = read_member(input, &pointer)?;
        let Some(parameters) = head.parameters else {
            return Ok(());
        };
        let pointer = pointer + "/parameters";
        each_member(parameters.get().as_bytes(), |name, value| match name {
            "binary_data_size" => {
                let bytes: Option<u64> = value.get().parse().ok();
                let sum = bytes.and_then(|bytes| total.checked_add(bytes));
                total =
                    sum.ok_or_else(|| bad("/binary_data_size", "expected a number of bytes"))?;
                Ok(())
            }
            // Memory of the server's host may hold what is not the client's.
            _ if name.starts_with("shared_memory") => Err(not_served(name)),
            _ => Ok(()),
        })
        .map_err(|refusal| within(&pointer, refusal))
    })
    .map_err(|refusal| match refusal {
        Refusal::BadRequest { pointer, message } if pointer.is_empty() => bad("/inputs", &message),
        other => other,
    })?;
    Ok(total)
}

fn not_served(name: &str) -> Refusal {
    let message = "is not served here: send and take tensors in the body";
    bad(&format!("/{name}"), message)
}

/// Returns whether the request asks for all outputs in binary.
fn wants_binary(parameters: Option<&RawValue>) -> Result<bool, Refusal> {
    let mut is_binary = false;
    let Some(parameters) = parameters else {
        return Ok(false);
    };
    each_member(parameters.get().as_bytes(), |name, value| {
        if name == "binary_data_output" {
            is_binary = value.get() == "true";
        }
        Ok(())
    })
    .map_err(|refusal| within("/parameters", refusal))?;
    Ok(is_binary)
}

fn read_outputs(list: &RawValue, default_binary: bool) -> Result<OutputList, Refusal> {
    let mut outputs = OutputList {
        names: Vec::new(),
        is_binary: false,
    };
    each_item(list, |at, output| {
        let pointer = format!("/outputs/{at}");
        if at >= TENSORS_MAX {
            return Err(bad(&pointer, "too many tensors"));
        }
        let named: NamedOutput<'_> = read_member(output, &pointer)?;
        let mut is_binary = default_binary;
        if let Some(parameters) = named.parameters {
            each_member(parameters.get().as_bytes(), |name, value| match name {
                "binary_data" => {
                    is_binary = value.get() == "true";
                    Ok(())
                }
                // The server would apply it to one named output alone, and all of them are asked for.
                _ => Err(not_served(name)),
            })
            .map_err(|refusal| within(&format!("{pointer}/parameters"), refusal))?;
        }
        outputs.is_binary |= is_binary;
        outputs.names.push(named.name.into_owned());
        Ok(())
    })
    .map_err(|refusal| match refusal {
        Refusal::BadRequest { pointer, message } if pointer.is_empty() => bad("/outputs", &message),
        other => other,
    })?;
    Ok(outputs)
}

/// Edits that ask for every output, in binary or in JSON.
fn all_outputs(
    members: &BodyMembers<'_>,
    parameters: Option<&RawValue>,
    is_binary: bool,
) -> Result<Vec<RangeEdit>, Refusal> {
    let (mut edits, kept) =
        members.strip_edits(|member| *member.key == *b"outputs" || *member.key == *b"parameters");
    let mut own = String::new();
    let mut add = |name: &str, json: &str| {
        if !own.is_empty() {
            own.push(',');
        }
        own.push_str(&serde_json::Value::from(name).to_string());
        own.push(':');
        own.push_str(json);
    };
    if let Some(parameters) = parameters {
        each_member(parameters.get().as_bytes(), |name, value| {
            if name != "binary_data_output" {
                add(name, value.get());
            }
            Ok(())
        })?;
    }
    if is_binary {
        add("binary_data_output", "true");
    }
    if !own.is_empty() {
        let comma = if kept == 0 { "" } else { "," };
        let at = members.first_member;
        edits.push(RangeEdit {
            range: at..at,
            text: format!(r#""parameters":{{{own}}}{comma}"#).into_bytes(),
        });
    }
    Ok(edits)
}
