//! The built-in tasks, from the outside.

mod finish;
mod prepare;
mod random;
mod schemas;
mod streams;

use serde_json::Value;

use super::{BodyEdit, BuiltinTask, PrepareResult, TaskBody, TaskError, TaskRequest, TaskResponse};
use crate::model::Task;

fn request(content_type: &str, body: &[u8]) -> TaskRequest {
    TaskRequest {
        model: "@cf/test/model".into(),
        content_type: content_type.into(),
        body: TaskBody::Whole(body.to_vec()),
        attributes: Vec::new(),
    }
}

fn response(body: &[u8]) -> TaskResponse {
    TaskResponse {
        status: 200,
        content_type: "application/json".into(),
        body: TaskBody::Whole(body.to_vec()),
        state: Vec::new(),
    }
}

fn prepare(task: Task, body: Value) -> Result<PrepareResult, TaskError> {
    BuiltinTask::of(task).prepare(&request("application/json", body.to_string().as_bytes()))
}

fn json(edit: &BodyEdit) -> Value {
    match edit {
        BodyEdit::Replace(body) => serde_json::from_slice(body).unwrap(),
        other => panic!("expected a new body, found {other:?}"),
    }
}

fn metric(metrics: &[(String, f64)], name: &str) -> Option<f64> {
    let found = metrics.iter().find(|(metric, _)| metric == name)?;
    Some(found.1)
}
