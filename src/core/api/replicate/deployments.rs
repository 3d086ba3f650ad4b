//! Deployments: bodies of creates and changes, and the objects that are shown.
//!
//! Names are not looked up here. Shapes: <https://replicate.com/docs/reference/http#deployments.create>.

use serde_json::{Map, Value, json};

use super::request::model_path;
use crate::Refusal;
use crate::model::INSTANCES_MAX;

/// Longest name of a deployment, bytes.
const NAME_BYTES_MAX: usize = 64;

/// Members of a body; those that are absent are as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentRequest {
    /// Name below the account.
    pub name: Option<String>,
    /// Model as `owner/name`, or by its id.
    pub model: Option<String>,
    /// Version of the model, or `latest`.
    pub version: Option<String>,
    /// Hardware by its key.
    pub hardware: Option<String>,
    /// Least instances.
    pub min_instances: Option<u32>,
    /// Most instances.
    pub max_instances: Option<u32>,
}

fn invalid(pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: pointer.to_owned(),
        message: message.into(),
    }
}

impl DeploymentRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 for a body that is no JSON object, 422 for a member that is mistyped or unknown.
    pub fn read(body: &[u8]) -> Result<DeploymentRequest, Refusal> {
        let members: Map<String, Value> =
            serde_json::from_slice(body).map_err(|_| Refusal::BadRequest {
                pointer: String::new(),
                message: "the body must be a JSON object".to_owned(),
            })?;
        let mut read = DeploymentRequest::default();
        for (key, value) in members {
            let pointer = format!("/{key}");
            // Client libraries send what was not chosen as null.
            if value.is_null() {
                continue;
            }
            match key.as_str() {
                "name" => read.name = Some(text(&pointer, value)?),
                "model" => read.model = Some(text(&pointer, value)?),
                "version" => read.version = Some(text(&pointer, value)?),
                "hardware" => read.hardware = Some(text(&pointer, value)?),
                "min_instances" => read.min_instances = Some(instances(&pointer, &value)?),
                "max_instances" => read.max_instances = Some(instances(&pointer, &value)?),
                _ => return Err(invalid(&pointer, "is not a member of a deployment")),
            }
        }
        Ok(read)
    }

    /// Returns the name of a deployment that is made by an account.
    ///
    /// # Errors
    /// 422: none, or one that cannot stand in a path.
    pub fn full_name(&self, account: &str) -> Result<String, Refusal> {
        let name = self.name.as_deref();
        let name = name.ok_or_else(|| invalid("/name", "is required"))?;
        let full = format!("{account}/{name}");
        let is_fit = name.len() <= NAME_BYTES_MAX && model_path(&full);
        is_fit.then_some(full).ok_or_else(|| {
            let rule = "has letters, digits, `-`, `.` and `_`, at most 64; the account's id too";
            invalid("/name", rule)
        })
    }
}

fn text(pointer: &str, value: Value) -> Result<String, Refusal> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(invalid(pointer, "must be a string")),
    }
}

fn instances(pointer: &str, value: &Value) -> Result<u32, Refusal> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| *number <= INSTANCES_MAX);
    number.ok_or_else(|| {
        invalid(
            pointer,
            format!("must be a number from 0 to {INSTANCES_MAX}"),
        )
    })
}

/// Deployment as clients see it.
#[derive(Clone, Debug)]
pub struct DeploymentView<'a> {
    /// Name as `owner/name`.
    pub name: &'a str,
    /// Number of the release.
    pub release: u32,
    /// Model as `owner/name`.
    pub model: &'a str,
    /// Version of the model.
    pub version: &'a str,
    /// Moment of the release, RFC 3339.
    pub created_at: String,
    /// Account that has made it; its owner where the configuration has it.
    pub created_by: &'a str,
    /// Hardware by its key.
    pub hardware: &'a str,
    /// Least instances.
    pub min_instances: u32,
    /// Most instances.
    pub max_instances: u32,
}

impl DeploymentView<'_> {
    /// Returns the object.
    pub fn object(&self) -> Value {
        let (owner, name) = self.name.split_once('/').unwrap_or(("", self.name));
        json!({
            "owner": owner,
            "name": name,
            "current_release": {
                "number": self.release,
                "model": self.model,
                "version": self.version,
                "created_at": self.created_at,
                "created_by": {
                    "type": "organization",
                    "username": self.created_by,
                    "name": self.created_by,
                    "github_url": "",
                    "avatar_url": "",
                },
                "configuration": {
                    "hardware": self.hardware,
                    "min_instances": self.min_instances,
                    "max_instances": self.max_instances,
                },
            },
        })
    }
}

/// Returns a deployment.
pub fn deployment(view: &DeploymentView<'_>) -> Vec<u8> {
    view.object().to_string().into_bytes()
}

/// Returns a list of deployments.
pub fn deployments(results: Vec<Value>) -> Vec<u8> {
    let page = json!({ "previous": null, "next": null, "results": results });
    page.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_and_what_is_none_is_named() {
        let body = br#"{"name":"x","version":null,"min_instances":0,"max_instances":5}"#;
        let read = DeploymentRequest::read(body).unwrap();
        assert_eq!(read.full_name("acme").unwrap(), "acme/x");
        assert_eq!((read.min_instances, read.max_instances), (Some(0), Some(5)));
        assert_eq!(read.version, None);
        for (body, place) in [
            (r#"{"name":7}"#, "/name"),
            (r#"{"min_instances":-1}"#, "/min_instances"),
            (r#"{"max_instances":1001}"#, "/max_instances"),
            (r#"{"replicas":1}"#, "/replicas"),
        ] {
            let refused = DeploymentRequest::read(body.as_bytes()).unwrap_err();
            assert!(
                matches!(&refused, Refusal::Rejected { status: 422, pointer, .. } if pointer == place),
                "{refused:?}"
            );
        }
        assert!(DeploymentRequest::read(b"[]").is_err());
    }

    #[test]
    fn a_name_that_cannot_stand_in_a_path_is_refused() {
        for name in ["a/b", "", "a b", &"x".repeat(65)] {
            let request = DeploymentRequest {
                name: Some(name.to_owned()),
                ..DeploymentRequest::default()
            };
            assert!(request.full_name("acme").is_err(), "{name:?}");
        }
        assert!(DeploymentRequest::default().full_name("acme").is_err());
    }
}
