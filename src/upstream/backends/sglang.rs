//! SGLang: the OpenAI protocol, a health route of its own, and its load by its page of metrics.
//!
//! The protocol is that of [`openai`](super::openai). Metrics:
//! <https://docs.sglang.ai/references/production_metrics.html>; the page needs `--enable-metrics`, and without
//! it the server is routed to as any other. Adapters are not on it.

use super::descriptor::{AdapterForm, Backend, MetricsPage, Probe, answers_200};
use super::openai::OPENAI;
use super::server_metrics::MetricNames;

/// The row of SGLang.
pub(super) static SGLANG: Backend = Backend {
    name: "sglang",
    about: "SGLang, with its load for routing",
    // In the model's name it looks for an adapter behind a colon alone:
    // <https://docs.sglang.io/advanced_features/lora.html>.
    adapter_form: Some(AdapterForm {
        member: Some("lora_path"),
        ..AdapterForm::MODEL
    }),
    probe: Probe {
        path: "/health",
        is_healthy: answers_200,
        metrics: Some(MetricsPage {
            path: "/metrics",
            read: |page| METRICS.read(page),
        }),
        report: None,
    },
    ..OPENAI
};

static METRICS: MetricNames = MetricNames {
    running: "sglang:num_running_reqs",
    waiting: "sglang:num_queue_reqs",
    kv_cache: &["sglang:token_usage"],
    adapters: None,
};
