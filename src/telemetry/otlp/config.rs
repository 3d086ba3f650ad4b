//! `tracing` of the configuration: which requests are recorded, and where spans and histograms are sent.
//!
//! Values and their bounds only; the address is checked with the other addresses of the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::model::Secret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Distributed traces of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// Collector of spans and histograms; left out, none are made, and `traceparent` passes unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<OtlpConfig>,
    /// `service.name` of all spans and histograms.
    #[schemars(length(min = 1, max = 128))]
    pub service_name: Arc<str>,
    /// Share of the requests without a trace of their own that are recorded.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sampling_ratio: f64,
    /// A request that comes with a valid `traceparent` is recorded exactly if its sender records it; if
    /// false, the ratio decides on it too.
    pub parent_based: bool,
}

impl Default for TracingConfig {
    fn default() -> TracingConfig {
        TracingConfig {
            otlp: None,
            service_name: "infergate".into(),
            sampling_ratio: 1.0,
            parent_based: true,
        }
    }
}

/// Export by OTLP: HTTP with protobuf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtlpConfig {
    /// Base URL, `http://host:port[/prefix]` or `https://…`; `/v1/traces` and `/v1/metrics` are
    /// appended.
    pub endpoint: Arc<str>,
    /// Headers of every export, for example a collector's key. Values are kept secret as keys are, and may
    /// come from the environment.
    #[serde(default, skip_serializing)]
    pub headers: BTreeMap<Arc<str>, Secret>,
    /// Longest time of one export.
    #[serde(default = "OtlpConfig::default_timeout_ms")]
    #[schemars(range(min = 100, max = 60000))]
    pub timeout_ms: u64,
    /// Longest time that a recorded request waits for others to be sent with it.
    #[serde(default = "OtlpConfig::default_batch_delay_ms")]
    #[schemars(range(min = 10, max = 60000))]
    pub batch_delay_ms: u64,
    /// Time between two exports of the histograms; 0 for none.
    #[serde(default = "OtlpConfig::default_metrics_interval_secs")]
    #[schemars(range(max = 3600))]
    pub metrics_interval_secs: u64,
}

impl OtlpConfig {
    fn default_timeout_ms() -> u64 {
        10_000
    }

    fn default_batch_delay_ms() -> u64 {
        1_000
    }

    fn default_metrics_interval_secs() -> u64 {
        60
    }
}
