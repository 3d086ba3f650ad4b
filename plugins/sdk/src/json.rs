//! Bodies as JSON: read once, looked up by pointer, written back.
//!
//! No validation: the gateway has checked the body against the input schema before a hook sees it.

use serde_json::Value;

use crate::{Edit, Field, TaskError, View};

pub use serde_json::{Map, json};

/// A whole body as JSON; any other body is a client error.
pub fn body(view: &View) -> Result<Value, TaskError> {
    let View::Whole(bytes) = view else {
        return Err(TaskError::Broken("asked for the whole body".into()));
    };
    serde_json::from_slice(bytes)
        .map_err(|_| TaskError::rejected("invalid_json", "the body is not JSON", None))
}

/// The field of a view at this pointer, as JSON.
pub fn field(view: &View, pointer: &str) -> Option<Value> {
    match view {
        View::Whole(bytes) => {
            let whole: Value = serde_json::from_slice(bytes).ok()?;
            whole.pointer(pointer).cloned()
        }
        View::Fields(fields) => {
            let field = fields.iter().find(|field| field.pointer == pointer)?;
            serde_json::from_str(&field.json).ok()
        }
    }
}

/// An edit that puts this JSON in the body's place.
pub fn replace(value: &Value) -> Edit {
    Edit::Replace(bytes(value))
}

/// JSON as it goes over the wire.
pub fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value's keys are strings")
}

/// A field to be set.
pub fn set(pointer: &str, value: &Value) -> Field {
    Field {
        pointer: pointer.into(),
        json: value.to_string(),
    }
}
