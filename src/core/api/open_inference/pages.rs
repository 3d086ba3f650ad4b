//! Pages about models: what a server shows of one, as the client may see it, and the gateway's own.
//!
//! Access is decided elsewhere: the caller hands in what an account may see. Pages are the server's, of bounded size.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cost::metric_of;

/// A model in the index.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ListedModel<'a> {
    name: &'a str,
    state: &'static str,
    reason: &'static str,
}

impl<'a> ListedModel<'a> {
    /// A model that is ready, or has no healthy server.
    pub fn new(name: &'a str, is_ready: bool) -> ListedModel<'a> {
        let (state, reason) = match is_ready {
            true => ("READY", ""),
            false => ("UNAVAILABLE", "no server of this model is healthy"),
        };
        ListedModel {
            name,
            state,
            reason,
        }
    }
}

/// `POST /v2/repository/index`: the models of an account.
pub fn index(models: &[ListedModel<'_>]) -> Vec<u8> {
    serde_json::to_vec(models).unwrap_or_default()
}

/// Returns whether the body of an index request asks for models that are ready alone.
pub fn wants_ready_only(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct IndexRequest {
        #[serde(default)]
        ready: bool,
    }
    let wanted: Result<IndexRequest, _> = serde_json::from_slice(body);
    wanted.is_ok_and(|wanted| wanted.ready)
}

/// `GET /v2`: the gateway as a server of the protocol.
pub fn server_page(version: &str) -> Vec<u8> {
    let page = json!({
        "name": "infergate",
        "version": version,
        "extensions": ["binary_tensor_data", "model_configuration", "model_repository", "statistics"],
    });
    serde_json::to_vec(&page).unwrap_or_default()
}

/// A server's page of a model under the name that the client used, without outputs that report costs. None where the
/// server's is no page.
pub fn client_page(page: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut page: Value = serde_json::from_slice(page).ok()?;
    rename(page.as_object_mut()?, name);
    for key in ["outputs", "output"] {
        if let Some(Value::Array(outputs)) = page.get_mut(key) {
            outputs.retain(|output| {
                let name = output["name"].as_str();
                name.is_none_or(|name| metric_of(name).is_none())
            });
        }
    }
    if let Some(Value::Array(counts)) = page.get_mut("model_stats") {
        let counts = counts.iter_mut().filter_map(Value::as_object_mut);
        counts.for_each(|counts| rename(counts, name));
    }
    serde_json::to_vec(&page).ok()
}

fn rename(object: &mut serde_json::Map<String, Value>, name: &str) {
    if let Some(own) = object.get_mut("name") {
        *own = name.into();
    }
}
