//! Rendering of an event by serde: the text that the line is held to.

use serde::ser::SerializeMap;

use super::*;

/// The event as one object, without a newline.
pub(super) fn line(event: &InferenceEvent, time: &str) -> String {
    serde_json::to_string(&EventLine::of(event, time)).unwrap()
}

/// The event as it stands in the file: the contract's names in the contract's order.
#[derive(Serialize)]
struct EventLine<'a> {
    time: &'a str,
    request_id: &'a str,
    account_id: Option<&'a str>,
    client_address: Option<String>,
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
    container_id: Option<&'a str>,
    cold_start: bool,
    load_wait_ms: u64,
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
            client_address: event.client_address.map(|address| address.to_string()),
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
            container_id: event.container_id.as_deref(),
            cold_start: event.load_wait_us.is_some(),
            load_wait_ms: event.load_wait_us.unwrap_or(0) / 1000,
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
