//! The backend of a model, by its name in the configuration.
//!
//! The protocols themselves are the shell's: a table of descriptors, one for each name. Known here is only
//! the one property that the core and the plugins depend on, the origin of the payload.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the protocol that the endpoints of a model speak.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct BackendName(Arc<str>);

/// Origin of what a model server is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// The backend's protocol: the backend builds the payload and reads the response.
    Protocol,
    /// The model's task: its payload is posted as it is, or in the backend's form.
    Task,
}

impl BackendName {
    /// Any HTTP server, shaped by the task.
    pub const HTTP: &str = "http";
    /// Containers of Cog.
    pub const COG: &str = "cog";
    /// Triton and other servers of the Open Inference Protocol.
    pub const TRITON: &str = "triton";

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the origin of the payload.
    pub fn payload(&self) -> Payload {
        match &*self.0 {
            BackendName::HTTP | BackendName::TRITON | BackendName::COG => Payload::Task,
            _ => Payload::Protocol,
        }
    }
}

impl From<&str> for BackendName {
    fn from(name: &str) -> BackendName {
        BackendName(name.into())
    }
}

impl fmt::Debug for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
