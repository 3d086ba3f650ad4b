//! `timeouts`: how long a request, a silence, a connection and a drain may last.
//!
//! Not the timers themselves. A day bounds every span in seconds: longer is a typing mistake.

use infergate_core::deadline::DeadlineRule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Spans of time, each with its unit in the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// No model's `timeout_secs` counts as shorter, seconds.
    #[schemars(range(max = 86400))]
    pub model_floor_secs: u64,
    /// No request takes longer, seconds: queue, backend and the whole stream.
    #[schemars(range(min = 1, max = 86400))]
    pub ceiling_secs: u64,
    /// Opening a connection to an endpoint, milliseconds.
    #[schemars(range(min = 1, max = 60000))]
    pub connect_ms: u64,
    /// Silence of a backend in the middle of its answer, seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub stream_idle_secs: u64,
    /// Silence of a client between two pieces of its request body, seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub request_body_idle_secs: u64,
    /// An idle client connection is kept open this long, seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub keepalive_secs: u64,
    /// After SIGTERM: readiness already fails, requests are still accepted, seconds.
    #[schemars(range(max = 86400))]
    pub drain_delay_secs: u64,
    /// After the delay: what runs may finish, seconds; then the process exits.
    #[schemars(range(max = 86400))]
    pub drain_timeout_secs: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            model_floor_secs: 30,
            ceiling_secs: 240,
            connect_ms: 2000,
            stream_idle_secs: 60,
            request_body_idle_secs: 30,
            keepalive_secs: 60,
            drain_delay_secs: 0,
            drain_timeout_secs: 60,
        }
    }
}

impl Timeouts {
    /// Returns the rule that deadlines are computed by.
    pub fn deadline_rule(&self) -> DeadlineRule {
        DeadlineRule {
            profile_secs: None,
            model_floor_secs: self.model_floor_secs,
            ceiling_secs: self.ceiling_secs,
        }
    }
}
