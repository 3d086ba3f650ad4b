//! Reports of a server about work that goes on after its responses, as configured.
//!
//! Not the reports themselves, which `api::loopback` reads.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reports of an endpoint about work that goes on after its responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoopbackSpec {
    /// Path below the base URL whose answer is a stream of server-sent events: `InferenceSuccess`, `InferenceError`,
    /// `WebsocketFinished` and `GpuFree`.
    pub path: Arc<str>,
    /// Seconds for which a permit is held after its response while no report comes, 1 to 86,400.
    #[serde(default = "LoopbackSpec::default_lease_secs")]
    #[schemars(range(min = 1, max = 86_400))]
    pub lease_secs: u64,
}

impl LoopbackSpec {
    fn default_lease_secs() -> u64 {
        300
    }
}
