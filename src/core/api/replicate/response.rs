//! Objects of the API: predictions, pages, models, versions.
//!
//! Values come as texts that are ready to be written. Members stand in the order of the documentation.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// URLs of an object.
#[derive(Clone, Debug, Serialize)]
pub struct PredictionUrls {
    /// Shows it.
    pub get: String,
    /// Cancels it.
    pub cancel: String,
    /// Follows its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
}

/// Prediction or training as clients see it. Times are RFC 3339 in UTC with six decimals.
#[derive(Clone, Debug, Serialize)]
pub struct PredictionView<'a> {
    /// Id.
    pub id: &'a str,
    /// Model as `owner/name`.
    pub model: &'a str,
    /// Version of the model.
    pub version: &'a str,
    /// Input as it was sent.
    pub input: Option<&'a RawValue>,
    /// Output so far.
    pub output: Option<&'a RawValue>,
    /// Last lines of the logs.
    pub logs: &'a str,
    /// Sentence for the user.
    pub error: Option<&'a str>,
    /// Status as clients know it.
    pub status: &'a str,
    /// The data is gone and the object alone is left.
    pub data_removed: bool,
    /// Origin.
    pub source: &'static str,
    /// Metrics of the run.
    pub metrics: Map<String, Value>,
    /// Moment of the submit.
    pub created_at: String,
    /// Moment of the first start.
    pub started_at: Option<String>,
    /// Moment of the end.
    pub completed_at: Option<String>,
    /// URLs.
    pub urls: PredictionUrls,
    /// Own deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Deployment as `owner/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<&'a str>,
    /// Receiver of notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<&'a str>,
    /// Events that it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_events_filter: Option<Vec<&'a str>>,
    /// Destination of a training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<&'a str>,
    /// Facts that the API has no member for.
    #[serde(rename = "infergate")]
    pub own: Map<String, Value>,
}

impl PredictionView<'_> {
    /// Returns the object.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Part of a list.
#[derive(Clone, Debug, Default)]
pub struct PageView {
    /// Absolute URL of the part before.
    pub previous: Option<String>,
    /// Absolute URL of the part after.
    pub next: Option<String>,
    /// Objects, written.
    pub results: Vec<Vec<u8>>,
}

impl PageView {
    /// Returns the page.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let url = |url: &Option<String>| json!(url).to_string();
        out.extend_from_slice(b"{\"previous\":");
        out.extend_from_slice(url(&self.previous).as_bytes());
        out.extend_from_slice(b",\"next\":");
        out.extend_from_slice(url(&self.next).as_bytes());
        out.extend_from_slice(b",\"results\":[");
        for (at, object) in self.results.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(object);
        }
        out.extend_from_slice(b"]}");
        out
    }
}

/// Model as the catalogue shows it.
#[derive(Clone, Debug)]
pub struct ModelView<'a> {
    /// Model as `owner/name`.
    pub path: &'a str,
    /// Sentence about it.
    pub description: &'a str,
    /// Moment at which the catalogue was made, RFC 3339.
    pub created_at: String,
    /// Versions, newest first.
    pub versions: Vec<String>,
    /// Schema of the input, JSON.
    pub input_schema: Option<Value>,
    /// Schema of the output, JSON.
    pub output_schema: Option<Value>,
    /// URL of the page of the model.
    pub url: String,
}

impl ModelView<'_> {
    fn version(&self, id: &str) -> Value {
        let object = || json!({ "type": "object", "title": "Input", "properties": {} });
        let input = self.input_schema.clone().unwrap_or_else(object);
        let output = self
            .output_schema
            .clone()
            .unwrap_or_else(|| json!({ "title": "Output" }));
        json!({
            "id": id,
            "created_at": self.created_at,
            "cog_version": "",
            "openapi_schema": {
                "openapi": "3.0.2",
                "info": { "title": self.path, "version": id },
                "paths": {},
                "components": { "schemas": { "Input": input, "Output": output } },
            },
        })
    }

    /// Returns the object.
    pub fn object(&self) -> Value {
        let (owner, name) = self.path.split_once('/').unwrap_or(("", self.path));
        json!({
            "url": self.url,
            "owner": owner,
            "name": name,
            "description": self.description,
            "visibility": "public",
            "github_url": null,
            "paper_url": null,
            "license_url": null,
            "run_count": 0,
            "cover_image_url": null,
            "default_example": null,
            "latest_version": self.versions.first().map(|id| self.version(id)),
        })
    }

    /// Returns a version, where it is one of the model's.
    pub fn version_body(&self, id: &str) -> Option<Vec<u8>> {
        let known = self.versions.iter().any(|known| known == id);
        known.then(|| self.version(id).to_string().into_bytes())
    }
}

/// Returns the schema of an output that is texts in a row: client libraries go through it piece by piece.
pub fn text_output_schema() -> Value {
    json!({
        "title": "Output",
        "type": "array",
        "items": { "type": "string" },
        "x-cog-array-type": "iterator",
        "x-cog-array-display": "concatenate",
    })
}

/// Returns a model.
pub fn model(view: &ModelView<'_>) -> Vec<u8> {
    view.object().to_string().into_bytes()
}

/// Returns a list of models.
pub fn models(views: &[ModelView<'_>]) -> Vec<u8> {
    page(views.iter().map(ModelView::object).collect())
}

/// Returns the versions of a model.
pub fn versions(view: &ModelView<'_>) -> Vec<u8> {
    page(view.versions.iter().map(|id| view.version(id)).collect())
}

fn page(results: Vec<Value>) -> Vec<u8> {
    let page = json!({ "previous": null, "next": null, "results": results });
    page.to_string().into_bytes()
}

/// Returns the account.
pub fn account(id: &str) -> Vec<u8> {
    let account = json!({ "type": "organization", "username": id, "name": id, "github_url": null });
    account.to_string().into_bytes()
}

/// Returns the hardware, as pairs of name and key.
pub fn hardware(list: &[(&str, &str)]) -> Vec<u8> {
    let list = list
        .iter()
        .map(|(name, sku)| json!({ "name": name, "sku": sku }));
    Value::Array(list.collect()).to_string().into_bytes()
}

/// Returns the secret of webhooks.
pub fn webhook_secret(key: &str) -> Vec<u8> {
    json!({ "key": key }).to_string().into_bytes()
}
