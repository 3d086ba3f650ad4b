//! The list of models.
//!
//! Access is decided elsewhere: the caller hands in the models that an account may use.

use serde::Serialize;
use serde_json::{Value, json};

use crate::model::ModelSpec;

#[derive(Serialize)]
struct OpenAiModel<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'a str,
}

fn model_object(model: &ModelSpec, created_unix_secs: u64) -> OpenAiModel<'_> {
    let id = model.id.as_str();
    let owner = id.rsplit_once('/').map_or("infergate", |(owner, _)| owner);
    OpenAiModel {
        id,
        object: "model",
        created: created_unix_secs,
        owned_by: owner,
    }
}

/// `GET /v1/models`.
///
/// `others` is the list of the Replicate API, which has the same path: both stand in one object.
pub fn models<'a>(
    models: impl Iterator<Item = &'a ModelSpec>,
    created_unix_secs: u64,
    others: Option<Vec<Value>>,
) -> Vec<u8> {
    let data: Vec<_> = models
        .map(|model| model_object(model, created_unix_secs))
        .collect();
    let mut list = json!({ "object": "list", "data": data });
    if let Some(results) = others {
        list["previous"] = Value::Null;
        list["next"] = Value::Null;
        list["results"] = results.into();
    }
    serde_json::to_vec(&list).unwrap_or_default()
}

/// `GET /v1/models/{id}`.
pub fn model(model: &ModelSpec, created_unix_secs: u64) -> Vec<u8> {
    serde_json::to_vec(&model_object(model, created_unix_secs)).unwrap_or_default()
}
