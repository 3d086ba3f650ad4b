//! Inference event: one request, its result, durations and usage.
//!
//! Neither written nor formatted where it is made: the pipeline fills shared names and numbers, and
//! the writer thread formats a line of JSON. Durations are kept in microseconds and printed as
//! whole milliseconds. The field names of the line are a contract, see `docs/events.md`.

use std::sync::Arc;

use infergate_core::api::ApiDialect;
use infergate_core::trace_context::TraceId;
use infergate_core::{AccountId, ModelId};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// [`InferenceEvent::priced_by`] of the built-in formula.
pub const BUILTIN: &str = "builtin";

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestOutcome {
    /// The whole response was sent, also to a client that closed right after the end mark.
    Completed,
    /// Refused by this gateway; no model server began to work.
    Refused,
    /// The client left before the end.
    CutByClient,
    /// The model server broke off after its response had begun.
    CutByBackend,
    /// The deadline passed.
    CutByDeadline,
    /// No model server answered, or this gateway failed.
    Failed,
}

impl RequestOutcome {
    /// Every outcome, in the order of its metric series.
    pub const ALL: [RequestOutcome; 6] = [
        RequestOutcome::Completed,
        RequestOutcome::Refused,
        RequestOutcome::CutByClient,
        RequestOutcome::CutByBackend,
        RequestOutcome::CutByDeadline,
        RequestOutcome::Failed,
    ];

    /// The outcome's name in events and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            RequestOutcome::Completed => "completed",
            RequestOutcome::Refused => "refused",
            RequestOutcome::CutByClient => "cut-by-client",
            RequestOutcome::CutByBackend => "cut-by-backend",
            RequestOutcome::CutByDeadline => "cut-by-deadline",
            RequestOutcome::Failed => "failed",
        }
    }
}

/// Source of the numbers in `metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsSource {
    /// Reported by the model server.
    Reported,
    /// Counted by this gateway, because the model server reported none.
    Estimated,
    /// Usage is unknown.
    #[default]
    None,
}

/// Tokens a request used, as far as known; what is unknown is left out of the line. Apart from the
/// other metrics, because nearly every request has these and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Prompt tokens.
    pub input_tokens: Option<u64>,
    /// Generated tokens.
    pub output_tokens: Option<u64>,
    /// Prompt tokens the model server had in its cache.
    pub cached_tokens: Option<u64>,
}

/// Marks of a request, as the source's bit field has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventFlags {
    /// The answer was a stream of events.
    pub streamed: bool,
    /// The model is marked as beta. No configuration marks one yet.
    pub beta: bool,
    /// The endpoint stands outside the site.
    pub external_endpoint: bool,
    /// The request waited in this site's queue.
    pub queued_in_site: bool,
    /// Arrived over a Unix socket, which no listener is yet.
    pub unix_socket: bool,
    /// The billing plugin failed, and the built-in formula or an earlier revision priced it.
    pub billing_fallback: bool,
}

/// Reported and estimated value of one metric, of a model whose metrics are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The metric's name.
    pub metric: Arc<str>,
    /// The model server's figure, when it gave one.
    pub reported: Option<f64>,
    /// The gateway's, when it has one.
    pub estimated: Option<f64>,
    /// True when they agree; none when one of them is missing.
    pub matches: Option<bool>,
}

/// A plugin that took part in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PluginUse {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Digest of the code that ran, 64 hex digits.
    pub sha256: Arc<str>,
    /// Digest of the settings it ran with, 64 hex digits.
    pub config: Arc<str>,
    /// Hook that ran.
    pub hook: &'static str,
}

/// Record of one request, from the end of its head to its last byte.
#[derive(Clone, Debug)]
pub struct InferenceEvent {
    /// End of the request, microseconds on the process's [`Clock`](super::Clock).
    pub ended_us: u64,
    /// The id the client got as `x-request-id`.
    pub request_id: Arc<str>,
    /// Account of the key; none when no key was accepted.
    pub account_id: Option<AccountId>,
    /// The end user named by `x_client_id`.
    pub client_id: Option<Arc<str>>,
    /// The client's own name for the request, from `x-client-request-id`.
    pub client_request_id: Option<Arc<str>>,
    /// Model that served the request, or was tried last; none when unknown. The price follows this
    /// model.
    pub model_id: Option<ModelId>,
    /// Model named by the client, when a fallback model took its place.
    pub asked_model_id: Option<ModelId>,
    /// The dialect it was asked in.
    pub dialect: ApiDialect,
    /// `node.id` of the configuration.
    pub node: Arc<str>,
    /// `node.site` of the configuration.
    pub site: Arc<str>,
    /// The HTTP status sent, 0 when none.
    pub status: u16,
    /// Our code, also for a model server's own 4xx or 5xx passed on.
    pub error_code: Option<u32>,
    /// Reason for the refusal, from the refusal table: also a metric label, so never made at run
    /// time.
    pub reason: Option<&'static str>,
    /// Outcome of the request.
    pub outcome: RequestOutcome,
    /// The request waited for a permit.
    pub queued: bool,
    /// From the end of its head to the last byte out.
    pub request_time_us: u64,
    /// Waiting for a permit.
    pub queuing_time_us: u64,
    /// With the permit held.
    pub inference_time_us: u64,
    /// From the end of its head to the first byte of the response's body, none when there was none.
    pub time_to_first_token_us: Option<u64>,
    /// Usage in tokens.
    pub metrics: TokenUsage,
    /// Other usage by metric name; the line shows it beside the tokens. A name of [`TokenUsage`]
    /// does not belong here.
    pub extra_metrics: Vec<(Arc<str>, f64)>,
    /// Source of the usage.
    pub metrics_source: MetricsSource,
    /// Reported against estimated, of models with `metrics_trust: compare`; empty for the others.
    pub comparison: Vec<Comparison>,
    /// Its price, none until priced.
    pub neurons: Option<f64>,
    /// Source of the price: a plugin's name, or [`BUILTIN`]. None until priced.
    pub priced_by: Option<Arc<str>>,
    /// Model servers tried.
    pub attempts: u32,
    /// URL of the endpoint that answered, or was tried last.
    pub upstream: Option<Arc<str>>,
    /// Sites and nodes visited, `site/node`, in order.
    pub path: Arc<[Arc<str>]>,
    /// Requests already waiting for the model when this one came.
    pub local_queue_size: u32,
    /// The site it entered by.
    pub source_site: Arc<str>,
    /// Marks.
    pub flags: EventFlags,
    /// Kind of caller: `rest` for the HTTP dialects, `job` for jobs.
    pub request_source: &'static str,
    /// Plugins that took part.
    pub plugins: Vec<PluginUse>,
    /// Its distributed trace, where tracing is configured and it has one.
    pub trace_id: Option<TraceId>,
}

impl InferenceEvent {
    /// Appends the event to `out` as one line of JSON, newline included. `time` is `ended_us` on
    /// the wall, in RFC 3339.
    pub fn write_line(&self, time: &str, out: &mut Vec<u8>) {
        let begin = out.len();
        match serde_json::to_writer(&mut *out, &EventLine::of(self, time)) {
            Ok(()) => out.push(b'\n'),
            // Not reached by any value of the type; half a line must not stand in the file.
            Err(_) => out.truncate(begin),
        }
    }
}

/// The event as it stands in the file: the contract's names in the contract's order.
#[derive(Serialize)]
struct EventLine<'a> {
    time: &'a str,
    request_id: &'a str,
    account_id: Option<&'a str>,
    client_id: Option<&'a str>,
    client_request_id: Option<&'a str>,
    model_id: Option<&'a str>,
    asked_model_id: Option<&'a str>,
    face: &'static str,
    node: &'a str,
    site: &'a str,
    status: u16,
    error_code: Option<String>,
    reason: Option<&'static str>,
    outcome: &'static str,
    streamed: bool,
    queued: bool,
    request_time_ms: u64,
    queuing_time_ms: u64,
    inference_time_ms: u64,
    time_to_first_token_ms: Option<u64>,
    metrics: MetricsObject<'a>,
    metrics_source: MetricsSource,
    comparison: Option<ComparisonObject<'a>>,
    neurons: Option<f64>,
    priced_by: Option<&'a str>,
    attempts: u32,
    upstream: Option<&'a str>,
    path: &'a [Arc<str>],
    local_queue_size: u32,
    source_site: &'a str,
    /// No endpoint names its container yet.
    container_id: Option<&'a str>,
    flags: EventFlags,
    request_source: &'static str,
    plugins: &'a [PluginUse],
    trace_id: Option<String>,
}

impl<'a> EventLine<'a> {
    fn of(event: &'a InferenceEvent, time: &'a str) -> EventLine<'a> {
        EventLine {
            time,
            request_id: &event.request_id,
            account_id: event.account_id.as_ref().map(AccountId::as_str),
            client_id: event.client_id.as_deref(),
            client_request_id: event.client_request_id.as_deref(),
            model_id: event.model_id.as_ref().map(ModelId::as_str),
            asked_model_id: event.asked_model_id.as_ref().map(ModelId::as_str),
            face: event.dialect.name(),
            node: &event.node,
            site: &event.site,
            status: event.status,
            error_code: event.error_code.map(|code| code.to_string()),
            reason: event.reason,
            outcome: event.outcome.name(),
            streamed: event.flags.streamed,
            queued: event.queued,
            request_time_ms: event.request_time_us / 1000,
            queuing_time_ms: event.queuing_time_us / 1000,
            inference_time_ms: event.inference_time_us / 1000,
            time_to_first_token_ms: event.time_to_first_token_us.map(|us| us / 1000),
            metrics: MetricsObject {
                tokens: event.metrics,
                extra: &event.extra_metrics,
            },
            metrics_source: event.metrics_source,
            comparison: (!event.comparison.is_empty())
                .then_some(ComparisonObject(&event.comparison)),
            neurons: event.neurons,
            priced_by: event.priced_by.as_deref(),
            attempts: event.attempts,
            upstream: event.upstream.as_deref(),
            path: &event.path,
            local_queue_size: event.local_queue_size,
            source_site: &event.source_site,
            container_id: None,
            flags: event.flags,
            request_source: event.request_source,
            plugins: &event.plugins,
            trace_id: event.trace_id.map(|id| id.to_string()),
        }
    }
}

/// The line's `metrics`: tokens, then all else.
struct MetricsObject<'a> {
    tokens: TokenUsage,
    extra: &'a [(Arc<str>, f64)],
}

impl Serialize for MetricsObject<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let tokens = [
            ("input_tokens", self.tokens.input_tokens),
            ("output_tokens", self.tokens.output_tokens),
            ("cached_tokens", self.tokens.cached_tokens),
        ];
        let mut map = to.serialize_map(None)?;
        for (name, count) in tokens {
            if let Some(count) = count {
                map.serialize_entry(name, &count)?;
            }
        }
        for (name, value) in self.extra {
            // Two members of one name are a line that readers disagree about.
            if !tokens.iter().any(|(known, _)| *known == &**name) {
                map.serialize_entry(&**name, &Quantity(*value))?;
            }
        }
        map.end()
    }
}

/// The line's `comparison`: `{ metric: { reported, estimated, match } }`.
struct ComparisonObject<'a>(&'a [Comparison]);

impl Serialize for ComparisonObject<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Sides {
            reported: Option<Quantity>,
            estimated: Option<Quantity>,
            r#match: Option<bool>,
        }
        to.collect_map(self.0.iter().map(|one| {
            let sides = Sides {
                reported: one.reported.map(Quantity),
                estimated: one.estimated.map(Quantity),
                r#match: one.matches,
            };
            (&*one.metric, sides)
        }))
    }
}

/// A number that is whole is written as one: `20`, not `20.0`.
struct Quantity(f64);

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        /// 2^53: beyond it a float does not hold every whole number.
        const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
        match self.0.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(&self.0) {
            true => to.serialize_u64(self.0 as u64),
            false => to.serialize_f64(self.0),
        }
    }
}

/// An event for tests: a request that was refused before anything was known about it.
#[cfg(test)]
pub(crate) fn sample_event(request_id: &str) -> InferenceEvent {
    InferenceEvent {
        ended_us: 0,
        request_id: request_id.into(),
        account_id: None,
        client_id: None,
        client_request_id: None,
        model_id: None,
        asked_model_id: None,
        dialect: ApiDialect::OpenAi,
        node: "a1".into(),
        site: "fra".into(),
        status: 401,
        error_code: Some(10000),
        reason: Some("invalid_api_key"),
        outcome: RequestOutcome::Refused,
        queued: false,
        request_time_us: 900,
        queuing_time_us: 0,
        inference_time_us: 0,
        time_to_first_token_us: None,
        metrics: TokenUsage::default(),
        extra_metrics: Vec::new(),
        metrics_source: MetricsSource::None,
        comparison: Vec::new(),
        neurons: None,
        priced_by: None,
        attempts: 0,
        upstream: None,
        path: Arc::from([Arc::from("fra/a1")]),
        local_queue_size: 0,
        source_site: "fra".into(),
        flags: EventFlags::default(),
        request_source: "rest",
        plugins: Vec::new(),
        trace_id: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn line(event: &InferenceEvent) -> Value {
        let mut out = Vec::new();
        event.write_line("2026-11-20T10:00:00.000Z", &mut out);
        assert_eq!(out.pop(), Some(b'\n'));
        assert!(!out.contains(&b'\n'));
        serde_json::from_slice(&out).unwrap()
    }

    /// The names of docs/events.md in the order of the line: consumers may read columns.
    const FIELDS: &[&str] = &[
        "time",
        "request_id",
        "account_id",
        "client_id",
        "client_request_id",
        "model_id",
        "asked_model_id",
        "face",
        "node",
        "site",
        "status",
        "error_code",
        "reason",
        "outcome",
        "streamed",
        "queued",
        "request_time_ms",
        "queuing_time_ms",
        "inference_time_ms",
        "time_to_first_token_ms",
        "metrics",
        "metrics_source",
        "comparison",
        "neurons",
        "priced_by",
        "attempts",
        "upstream",
        "path",
        "local_queue_size",
        "source_site",
        "container_id",
        "flags",
        "request_source",
        "plugins",
        "trace_id",
    ];

    /// The marks in `flags`, in their order.
    const FLAGS: &[&str] = &[
        "streamed",
        "beta",
        "external_endpoint",
        "queued_in_site",
        "unix_socket",
        "billing_fallback",
    ];

    /// Asserts that the members of the object begin with `names`, in this order.
    fn assert_order(names: &[&str], object: &str) {
        let mut rest = object;
        for name in names {
            let member = format!("\"{name}\":");
            rest = rest.split_once(&member).map(|(_, rest)| rest).expect(name);
        }
    }

    #[test]
    fn a_line_has_every_field_of_the_contract_in_its_order() {
        let mut out = Vec::new();
        sample_event("r1").write_line("2026-11-20T10:00:00.000Z", &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_order(FIELDS, &text);
        let line = line(&sample_event("r1"));
        assert_eq!(line.as_object().unwrap().len(), FIELDS.len());
        assert_order(FLAGS, text.split_once("\"flags\":").unwrap().1);
        assert_eq!(line["flags"].as_object().unwrap().len(), FLAGS.len());
        let page = include_str!("../../docs/events.md");
        for name in FIELDS.iter().chain(FLAGS) {
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/events.md lacks {name}"
            );
        }
        for unknown in ["container_id", "client_id", "neurons", "trace_id"] {
            assert_eq!(line[unknown], Value::Null, "{unknown}");
        }
        for unknown in ["beta", "unix_socket"] {
            assert_eq!(line["flags"][unknown], false, "{unknown}");
        }
        assert_eq!(line["request_source"], "rest");
    }

    #[test]
    fn what_is_not_known_is_null_and_the_metrics_object_is_empty() {
        let line = line(&sample_event("r1"));
        for null in [
            "account_id",
            "client_id",
            "client_request_id",
            "model_id",
            "asked_model_id",
            "time_to_first_token_ms",
            "neurons",
            "priced_by",
            "comparison",
        ] {
            assert_eq!(line[null], Value::Null, "{null}");
        }
        assert_eq!(line["metrics"], json!({}));
        assert_eq!(line["metrics_source"], "none");
        assert_eq!(line["error_code"], "10000");
        assert_eq!(line["request_time_ms"], 0);
        assert_eq!(line["path"], json!(["fra/a1"]));
        assert_eq!(line["plugins"], json!([]));
    }

    #[test]
    fn a_streamed_answer_carries_its_times_in_ms_and_its_tokens() {
        let event = InferenceEvent {
            account_id: Some("acme".into()),
            client_id: Some("end\nuser \"7\"".into()),
            model_id: Some("@cf/meta/llama".into()),
            dialect: ApiDialect::WorkersAi,
            status: 200,
            error_code: None,
            reason: None,
            outcome: RequestOutcome::CutByClient,
            queued: true,
            request_time_us: 1_234_567,
            queuing_time_us: 1_999,
            time_to_first_token_us: Some(85_400),
            metrics: TokenUsage {
                input_tokens: Some(7),
                output_tokens: Some(0),
                cached_tokens: None,
            },
            metrics_source: MetricsSource::Reported,
            flags: EventFlags {
                streamed: true,
                queued_in_site: true,
                ..EventFlags::default()
            },
            ..sample_event("r2")
        };
        let line = line(&event);
        assert_eq!(line["face"], "workers-ai");
        assert_eq!(line["outcome"], "cut-by-client");
        assert_eq!(line["client_id"], "end\nuser \"7\"");
        assert_eq!(line["streamed"], true);
        assert_eq!(line["request_time_ms"], 1234);
        assert_eq!(line["queuing_time_ms"], 1);
        assert_eq!(line["time_to_first_token_ms"], 85);
        assert_eq!(
            line["metrics"],
            json!({ "input_tokens": 7, "output_tokens": 0 })
        );
        assert_eq!(line["flags"]["queued_in_site"], true);
        assert_eq!(line["error_code"], Value::Null);
    }

    #[test]
    fn a_priced_answer_carries_every_metric_beside_its_tokens() {
        let compared = |metric: &str, reported, estimated, matches| Comparison {
            metric: metric.into(),
            reported,
            estimated,
            matches,
        };
        let event = InferenceEvent {
            metrics: TokenUsage {
                input_tokens: Some(7),
                ..TokenUsage::default()
            },
            extra_metrics: vec![
                ("image_steps".into(), 20.0),
                ("audio_seconds".into(), 1.5),
                ("input_tokens".into(), 9.0),
            ],
            comparison: vec![
                compared("output_tokens", Some(20.0), Some(20.0), Some(true)),
                compared("image_steps", Some(20.0), None, None),
            ],
            neurons: Some(0.075),
            priced_by: Some("tiered".into()),
            flags: EventFlags {
                billing_fallback: true,
                ..EventFlags::default()
            },
            ..sample_event("r3")
        };
        let line = line(&event);
        let metrics = r#"{"input_tokens":7,"image_steps":20,"audio_seconds":1.5}"#;
        assert_eq!(line["metrics"].to_string(), metrics);
        assert_eq!(
            line["comparison"],
            json!({
                "output_tokens": { "reported": 20, "estimated": 20, "match": true },
                "image_steps": { "reported": 20, "estimated": null, "match": null },
            })
        );
        assert_eq!(
            (&line["neurons"], &line["priced_by"]),
            (&json!(0.075), &json!("tiered"))
        );
        assert_eq!(line["flags"]["billing_fallback"], true);
    }

    #[test]
    fn an_outcome_has_one_name_everywhere() {
        for outcome in RequestOutcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
        }
    }
}
