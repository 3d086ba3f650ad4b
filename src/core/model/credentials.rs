//! Configuration of an endpoint beside its URL: its key and the form of it, and its health checks.
//!
//! Shapes of the configuration only; requests are written by the shell.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A text that must not reach logs: its debug print keeps it to itself.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Returns the text, for the code that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Form in which an endpoint's `api_key` is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AuthForm {
    /// As `Authorization: Bearer KEY`.
    #[default]
    Bearer,
    /// As `api-key: KEY`, which Azure's servers take.
    ApiKey,
    /// As the value of the header `auth_name`.
    Header,
    /// As the query parameter `auth_name`.
    Query,
}

impl AuthForm {
    /// Returns whether `auth_name` names the place of the key.
    pub const fn has_name(self) -> bool {
        matches!(self, AuthForm::Header | AuthForm::Query)
    }
}

/// Health checks of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthCheckSpec {
    /// Path below the base URL that answers 2xx while the server is well; the backend's own when
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Arc<str>>,
    /// Seconds between two checks of an endpoint that is healthy; one that is not is checked every half
    /// second.
    #[schemars(range(min = 1, max = 3600))]
    pub interval_secs: u64,
}

impl Default for HealthCheckSpec {
    fn default() -> HealthCheckSpec {
        HealthCheckSpec {
            path: None,
            interval_secs: 5,
        }
    }
}
