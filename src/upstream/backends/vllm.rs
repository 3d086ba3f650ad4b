//! vLLM: the OpenAI protocol, a health route of its own, and its load by its page of metrics.
//!
//! The protocol is that of [`openai`](super::openai). Metrics:
//! <https://docs.vllm.ai/en/latest/usage/metrics/>; the page needs no flag.

use super::descriptor::{Backend, MetricsPage, Probe, answers_200};
use super::openai::OPENAI;
use super::server_metrics::MetricNames;

/// The row of vLLM.
pub(super) static VLLM: Backend = Backend {
    name: "vllm",
    about: "vLLM, with its load and LoRA adapters for routing",
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
    running: "vllm:num_requests_running",
    waiting: "vllm:num_requests_waiting",
    // The second before vLLM 0.9.2, and deprecated beside the first after that.
    kv_cache: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
    adapters: Some("vllm:lora_requests_info"),
};
