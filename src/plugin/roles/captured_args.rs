//! Arguments of the hooks in the spelling of fixtures, for calls that are captured.
//!
//! Not on the request path: only a captured call is spelled out. Names are WIT's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use infergate_core::billing::{BillingOutcome, MetricSource, UsageReport};
use infergate_core::model::{Tariff, Trust};
use infergate_core::routing::{Candidate, Health, Hints};
use infergate_core::task::StreamEvent;
use serde_json::{Value, json};

use crate::plugin::roles::traits::{BodyView, FinishInput, PrepareInput};

/// Bytes of a list of attributes, and of other small things.
pub const SMALL: usize = 1024;

fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "base64": BASE64.encode(bytes) }),
    }
}

fn view(seen: BodyView<'_>) -> Value {
    match seen {
        BodyView::Whole(body) => json!({ "whole": bytes(body) }),
        BodyView::Fields(fields) => {
            let field = |field: &infergate_core::task::BodyField| json!({ "pointer": field.pointer, "json": field.json });
            json!({ "fields": fields.iter().map(field).collect::<Vec<_>>() })
        }
    }
}

pub fn prepare(input: &PrepareInput<'_>) -> Value {
    let attribute = |(name, value): &(String, String)| json!({ "name": name, "value": value });
    json!({ "request": {
        "model": input.model,
        "content-type": input.content_type,
        "body": view(input.body),
        "attributes": input.attributes.iter().map(attribute).collect::<Vec<_>>(),
    } })
}

pub fn finish(answered: &FinishInput<'_>) -> Value {
    json!({ "response": {
        "status": answered.status,
        "content-type": answered.content_type,
        "body": view(answered.body),
        "state": bytes(answered.state),
    } })
}

pub fn push(state: &[u8], events: &[StreamEvent]) -> Value {
    let event = |event: &StreamEvent| json!({ "name": event.name, "data": bytes(&event.data) });
    json!({ "state": bytes(state), "events": events.iter().map(event).collect::<Vec<_>>() })
}

pub fn close(state: &[u8], cut: bool) -> Value {
    json!({ "state": bytes(state), "cut": cut })
}

pub fn price(tariff: &Tariff, report: &UsageReport<'_>) -> Value {
    let coefficients = tariff.coefficients.iter();
    let coefficients =
        coefficients.map(|(metric, neurons)| json!({ "metric": &**metric, "neurons": neurons }));
    let criteria = tariff.criteria.iter();
    let criteria = criteria.map(|(name, value)| json!([&**name, &**value]));
    let metrics = report.metrics.iter().map(|metric| {
        let source = match metric.source {
            MetricSource::Reported => "model-reported",
            MetricSource::Estimated => "host-estimated",
            MetricSource::Derived | MetricSource::Answered => "plugin-derived",
        };
        json!({ "name": &*metric.name, "value": metric.value, "source": source })
    });
    json!({
        "tariff": {
            "cost-per-infer": tariff.cost_per_infer,
            "coefficients": coefficients.collect::<Vec<_>>(),
            "criteria": criteria.collect::<Vec<_>>(),
        },
        "usage": {
            "model": report.model,
            "trust": match report.trust {
                Trust::Trust => "trust",
                Trust::Estimate => "estimate",
                Trust::Compare => "compare",
            },
            "outcome": match report.ending {
                BillingOutcome::Completed => "completed",
                BillingOutcome::CutByClient => "cut-by-client",
                BillingOutcome::CutByBackend => "cut-by-backend",
                BillingOutcome::CutByDeadline => "cut-by-deadline",
                BillingOutcome::Failed => "failed",
            },
            "streamed": report.streamed,
            "metrics": metrics.collect::<Vec<_>>(),
            "queue-ms": report.queue_ms,
            "infer-ms": report.infer_ms,
        },
    })
}

pub fn estimate(input: &[u8], output: &[u8]) -> Value {
    json!({ "input": bytes(input), "output": bytes(output), "state": bytes(&[]) })
}

pub fn rank(hints: &Hints, candidates: &[Candidate]) -> Value {
    json!({
        "hints": {
            "model": hints.model,
            "source-site": hints.source_site,
            "body-bytes": hints.body_bytes,
            "attempt": hints.attempt,
            "streaming": hints.streaming,
            "priority": hints.priority,
            "deadline-ms": hints.deadline_ms,
            "lora": hints.lora,
            "forced-site": hints.forced_site,
            "seed": hints.seed,
        },
        "candidates": candidates.iter().map(candidate).collect::<Vec<_>>(),
    })
}

fn candidate(one: &Candidate) -> Value {
    json!({
        "id": one.id,
        "site": one.site,
        "node": one.node,
        "health": match one.health {
            Health::Healthy => "healthy",
            Health::Degraded => "degraded",
            Health::Ejected => "ejected",
            Health::Draining => "draining",
            Health::Down => "down",
        },
        "permits-free": one.permits_free,
        "permits-total": one.permits_total,
        "queue-len": one.queue_len,
        "rtt-us": one.rtt_us,
        "ttft-us": one.ttft_us,
        "latency-us": one.latency_us,
        "error-ppm": one.error_ppm,
        "lora-affinity": one.lora_affinity,
        "prefix-affinity": one.prefix_affinity,
        "tier": one.tier,
        "ooc": one.ooc,
    })
}
