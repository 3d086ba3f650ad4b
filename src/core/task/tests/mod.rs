//! The built-in tasks, from the outside.

mod finish;
mod prepare;
mod random;
mod schemas;
mod streams;

use serde_json::Value;

use super::{Builtin, Edit, Prepared, Request, Response, TaskError, View};
use crate::model::Task;

fn request(content_type: &str, body: &[u8]) -> Request {
    Request {
        model: "@cf/test/model".into(),
        content_type: content_type.into(),
        body: View::Whole(body.to_vec()),
        attributes: Vec::new(),
    }
}

fn response(body: &[u8]) -> Response {
    Response {
        status: 200,
        content_type: "application/json".into(),
        body: View::Whole(body.to_vec()),
        state: Vec::new(),
    }
}

fn prepare(task: Task, body: Value) -> Result<Prepared, TaskError> {
    Builtin::of(task).prepare(&request("application/json", body.to_string().as_bytes()))
}

fn json(edit: &Edit) -> Value {
    match edit {
        Edit::Replace(body) => serde_json::from_slice(body).unwrap(),
        other => panic!("expected a new body, found {other:?}"),
    }
}

fn metric(metrics: &[(String, f64)], name: &str) -> Option<f64> {
    let found = metrics.iter().find(|(metric, _)| metric == name)?;
    Some(found.1)
}
