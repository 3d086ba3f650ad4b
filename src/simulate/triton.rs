//! Triton's own requests and responses: tensors, `generate`, and pages about the one model.
//!
//! A model with a task takes the task's members as inputs. Without any of them it answers its inputs: `INPUT0` becomes
//! `OUTPUT0`. `--cost-metric` becomes an output `COST_METRIC_name`, in turn of one dimension, of two and of none.

use std::collections::VecDeque;

use bytes::Bytes;
use http::header::HeaderValue;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::{EventScript, EventTail, TaskOutput};
use super::config::{Config, Task};
use super::stats::StatsSnapshot;
use super::task::{TaskRequest, guess};
use super::tensor::{InferRequest, Tensor, named, read_binary};
use super::text::SimulatedText;

/// Header with the bytes of JSON before tensors in binary.
pub(super) const JSON_BYTES: &str = "inference-header-content-length";
/// The only version of the model.
const VERSION: &str = "1";
/// Content type of tensors in binary.
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

#[derive(Deserialize)]
struct InferBody {
    id: Option<String>,
    inputs: Vec<InputBody>,
    outputs: Option<Vec<OutputBody>>,
    #[serde(default)]
    parameters: Map<String, Value>,
    x_sim_fault: Option<String>,
}

#[derive(Deserialize)]
struct InputBody {
    name: String,
    shape: Vec<u64>,
    datatype: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    data: Option<Value>,
}

#[derive(Deserialize)]
struct OutputBody {
    name: String,
    #[serde(default)]
    parameters: Map<String, Value>,
}

/// The words of a refusal where the path names another model or version.
pub(super) fn unknown_model(config: &Config, path: &str) -> Option<String> {
    let (name, version, _) = named(path)?;
    if config.answered_model(Some(&name)) != name {
        return Some(format!("Request for unknown model: '{name}' is not found"));
    }
    let version = version.filter(|version| *version != VERSION)?;
    Some(format!(
        "Request for unknown model: '{name}' version {version} is not found"
    ))
}

/// Reads tensors and the fault they carry; the error says what is wrong with them.
pub(super) fn read_infer(
    parts: &Parts,
    body: &Bytes,
) -> Result<(InferRequest, Option<String>), String> {
    let length = parts.headers.get(JSON_BYTES);
    let length = length.map(|value| value.to_str().unwrap_or_default().parse::<usize>());
    let length = length.transpose().map_err(|_| "invalid header length")?;
    let (json, mut binary) = body
        .split_at_checked(length.unwrap_or(body.len()))
        .ok_or("header length is beyond the body")?;
    let read: InferBody = serde_json::from_slice(json)
        .map_err(|error| format!("failed to parse the request JSON buffer: {error}"))?;
    let mut inputs = Vec::new();
    for input in read.inputs {
        let elements = match (input.data, input.parameters.get("binary_data_size")) {
            (Some(data), _) => flat(data),
            (None, Some(size)) => {
                let size = size.as_u64().unwrap_or(u64::MAX) as usize;
                let (own, rest) = binary
                    .split_at_checked(size)
                    .ok_or_else(|| format!("unexpected size of input '{}'", input.name))?;
                binary = rest;
                read_binary(&input.datatype, own)?
            }
            (None, None) => return Err(format!("input '{}' has no data", input.name)),
        };
        if input.shape.iter().product::<u64>() != elements.len() as u64 {
            return Err(format!("unexpected shape for input '{}'", input.name));
        }
        inputs.push(Tensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            elements,
        });
    }
    let flag =
        |parameters: &Map<String, Value>, name: &str| parameters.get(name).and_then(Value::as_bool);
    let is_binary = flag(&read.parameters, "binary_data_output").unwrap_or(false);
    let outputs = read
        .outputs
        .filter(|outputs| !outputs.is_empty())
        .map(|outputs| {
            let wanted = |output: OutputBody| {
                let own = flag(&output.parameters, "binary_data");
                (output.name, own.unwrap_or(is_binary))
            };
            outputs.into_iter().map(wanted).collect()
        });
    let (model, ..) = named(parts.uri.path()).ok_or("no model")?;
    let ask = InferRequest {
        model,
        id: read.id,
        inputs,
        outputs,
        is_binary,
    };
    Ok((ask, read.x_sim_fault))
}

fn flat(data: Value) -> Vec<Value> {
    match data {
        Value::Array(items) => items.into_iter().flat_map(flat).collect(),
        other => vec![other],
    }
}

impl InferRequest {
    /// The response; the error is an output that the model does not have.
    pub(super) fn answer(&self, config: &Config) -> Result<TaskOutput, String> {
        let mut tensors = self.results(config);
        for (index, metric) in config.cost_metrics.iter().enumerate() {
            let cost = cost_tensor(index, &format!("COST_METRIC_{}", metric.name), metric.value);
            // Some before the others and some behind them: no order is promised.
            let place = if index % 2 == 0 { 0 } else { tensors.len() };
            tensors.insert(place, cost);
        }
        let mut described = Vec::new();
        let mut binary = Vec::new();
        let mut describe = |tensor: &Tensor, is_binary: bool| {
            let bytes = is_binary.then(|| tensor.binary());
            described.push(tensor.describe(bytes.as_ref().map(Vec::len)));
            binary.extend(bytes.unwrap_or_default());
        };
        match &self.outputs {
            None => tensors
                .iter()
                .for_each(|tensor| describe(tensor, self.is_binary)),
            Some(outputs) => {
                for (name, is_binary) in outputs {
                    let found = tensors.iter().find(|tensor| tensor.name == *name);
                    let unexpected = || {
                        format!(
                            "unexpected inference output '{name}' for model '{}'",
                            self.model
                        )
                    };
                    describe(found.ok_or_else(unexpected)?, *is_binary);
                }
            }
        }
        let mut answer = json!({
            "model_name": config.answered_model(Some(&self.model)), "model_version": VERSION,
            "outputs": described,
        });
        if let Some(id) = &self.id {
            answer["id"] = id.as_str().into();
        }
        let mut body = answer.to_string().into_bytes();
        let json_bytes = (!binary.is_empty()).then_some(body.len());
        body.extend(binary);
        Ok(TaskOutput {
            content_type: match json_bytes {
                Some(_) => BINARY,
                None => HeaderValue::from_static("application/json"),
            },
            body: body.into(),
            tokens: 0,
            json_bytes,
        })
    }

    fn results(&self, config: &Config) -> Vec<Tensor> {
        let members: Map<String, Value> = self.inputs.iter().map(member).collect();
        let json = Value::Object(members);
        let task = config.task.unwrap_or_else(|| guess(&json, ""));
        if task == Task::DumbPipe {
            return self.inputs.iter().map(echo).collect();
        }
        let made = TaskRequest::of_json(task, json).answer(config);
        tensors_of(serde_json::from_slice(&made.body).unwrap_or_default())
    }
}

/// An input as the member of a task's payload: rows of `text`, or the value of the first row.
fn member(input: &Tensor) -> (String, Value) {
    let value = match input.elements.len() {
        2.. if input.name == "text" => input.elements.clone().into(),
        _ => input.elements.first().cloned().unwrap_or_default(),
    };
    (input.name.clone(), value)
}

fn echo(input: &Tensor) -> Tensor {
    let name = match input.name.contains("INPUT") {
        true => input.name.replace("INPUT", "OUTPUT"),
        false => format!("{}_out", input.name),
    };
    Tensor {
        name,
        ..input.clone()
    }
}

fn cost_tensor(index: usize, name: &str, value: f64) -> Tensor {
    let (shape, elements) = match index % 3 {
        0 => (vec![1], vec![json!(value)]),
        1 => (vec![2, 1], vec![json!(value / 2.0), json!(value / 2.0)]),
        _ => (Vec::new(), vec![json!(value)]),
    };
    Tensor {
        name: name.to_owned(),
        datatype: "FP64".to_owned(),
        shape,
        elements,
    }
}

/// A task's result as tensors.
fn tensors_of(result: Value) -> Vec<Tensor> {
    let tensor = |name: &str, datatype: &str, shape: Vec<u64>, elements: Vec<Value>| Tensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape,
        elements,
    };
    match result {
        Value::Array(rows) => {
            let count = rows.len() as u64;
            let column =
                |key: &str| -> Vec<Value> { rows.iter().map(|row| row[key].clone()).collect() };
            let mut tensors = vec![
                tensor("labels", "BYTES", vec![1, count], column("label")),
                tensor("scores", "FP32", vec![1, count], column("score")),
            ];
            if rows.first().is_some_and(|row| row["box"].is_object()) {
                let sides = ["xmin", "ymin", "xmax", "ymax"];
                let sides = |row: &Value| sides.map(|side| row["box"][side].clone());
                let boxes = rows.iter().flat_map(sides).collect();
                tensors.push(tensor("boxes", "FP32", vec![1, count, 4], boxes));
            }
            tensors
        }
        Value::Object(mut members) => {
            if let (Some(shape), Some(data)) = (members.remove("shape"), members.remove("data")) {
                let shape = flat(shape).iter().filter_map(Value::as_u64).collect();
                return vec![tensor("embeddings", "FP32", shape, flat(data))];
            }
            let one = |(name, value): (String, Value)| match value {
                Value::String(_) => tensor(&name, "BYTES", vec![1, 1], vec![value]),
                Value::Number(_) => tensor(&name, "INT64", vec![1, 1], vec![value]),
                other => tensor(&name, "BYTES", vec![1, 1], vec![other.to_string().into()]),
            };
            members.into_iter().map(one).collect()
        }
        _ => Vec::new(),
    }
}

/// Response to `generate`.
pub(super) fn generated(model: &str, text: &SimulatedText, prompt_tokens: u64) -> Bytes {
    let answer = json!({
        "model_name": model, "model_version": VERSION, "text_output": text.as_str(),
        "COST_METRIC_input_tokens": prompt_tokens, "COST_METRIC_output_tokens": text.tokens(),
    });
    answer.to_string().into()
}

/// The same as events, each with its own costs. No end mark follows.
pub(super) fn generated_stream(
    model: &str,
    text: SimulatedText,
    prompt_tokens: u64,
) -> EventScript {
    let model = json!(model);
    let opening = format!(
        "data: {{\"model_name\":{model},\"model_version\":\"1\",\"text_output\":\"\",\
         \"COST_METRIC_input_tokens\":[{prompt_tokens}]}}\n\n"
    );
    let before = format!("data: {{\"model_name\":{model},\"model_version\":\"1\",\"text_output\":");
    EventScript {
        opening: Some(opening.into()),
        before: before.into(),
        after: Bytes::from_static(b",\"COST_METRIC_output_tokens\":[1]}\n\n"),
        tail: EventTail::None,
        streamed: text.tokens(),
        closing: VecDeque::new(),
        text,
    }
}

/// Status and JSON of a page, or of an order.
pub(super) fn page(config: &Config, counts: StatsSnapshot, path: &str) -> (u16, Value) {
    let costs = config.cost_metrics.iter().map(|metric| {
        json!({ "name": format!("COST_METRIC_{}", metric.name), "datatype": "FP64", "shape": [-1] })
    });
    let input = json!({ "name": "INPUT0", "datatype": "FP32", "shape": [-1] });
    let mut outputs = vec![json!({ "name": "OUTPUT0", "datatype": "FP32", "shape": [-1] })];
    outputs.extend(costs);
    let served = config.answered_model(None);
    match path {
        "/v2" => {
            let page = json!({
                "name": "triton", "version": env!("CARGO_PKG_VERSION"),
                "extensions": ["binary_tensor_data", "model_repository", "generate"],
            });
            return (200, page);
        }
        "/v2/repository/index" => {
            let one = json!({ "name": served, "version": VERSION, "state": "READY" });
            return (200, json!([one]));
        }
        _ if path.starts_with("/v2/repository/models/") => return (200, json!({})),
        _ => {}
    }
    let Some((name, _, page)) = named(path) else {
        return (404, json!({ "error": "Not Found" }));
    };
    match page {
        "" => (
            200,
            json!({ "name": name, "versions": [VERSION], "platform": "python",
                    "inputs": [input], "outputs": outputs }),
        ),
        "config" => (
            200,
            json!({ "name": name, "backend": "python", "max_batch_size": 0,
                    "input": [input], "output": outputs }),
        ),
        "stats" => (
            200,
            json!({ "model_stats": [{ "name": name, "version": VERSION,
                                      "inference_count": counts.served, "execution_count": counts.served }] }),
        ),
        _ => (404, json!({ "error": "Not Found" })),
    }
}
