//! A trace as OpenTelemetry spans: the steps that `/explain` shows, in the form of OTLP.
//!
//! Not on the path of requests: the exporter renders. A request is a server span; each attempt at a model
//! server and each forward is a client span in it, and a wait in the queue an internal one. Decisions are
//! events of the request's span. Names follow the GenAI and HTTP conventions; what has no name there begins
//! with `infergate.`. No prompt, key or header stands in a span.

use infergate_core::admission::ClassTurn;
use infergate_core::model::unix_socket_of;
use infergate_core::trace_context::{SpanId, TraceId};

use super::cluster::{ForwardStep, ForwardStepEnd};
use super::identity::SpanIdentity;
use super::record::{
    AdmissionStep, AdmissionStepResult, AttemptStep, RequestTrace, TraceStep, TraceSummary,
};
use crate::telemetry::clock::UnixOffset;
use crate::telemetry::otlp::proto::{
    FLAG_HAS_IS_REMOTE, FLAG_IS_REMOTE, KeyValue, STATUS_ERROR, Span, SpanEvent, SpanKind,
    SpanLink, Status,
};
use crate::telemetry::otlp::semconv;
use crate::telemetry::{AttemptResult, RequestOutcome};

/// Renderer of one trace.
struct Renderer<'a> {
    trace: &'a RequestTrace,
    summary: &'a TraceSummary,
    identity: &'a SpanIdentity,
    offset: UnixOffset,
}

impl RequestTrace {
    /// Appends the spans of a finished trace; nothing when the request is not recorded for export.
    pub fn render_spans(&self, offset: UnixOffset, out: &mut Vec<Span>) {
        let (Some(summary), Some(identity)) = (&self.summary, &self.identity) else {
            return;
        };
        let renderer = Renderer {
            trace: self,
            summary,
            identity,
            offset,
        };
        let mut events: Vec<SpanEvent> = renderer.first_byte().into_iter().collect();
        for (ordinal, step) in self.steps.iter().enumerate() {
            let part = renderer.part(ordinal);
            match step {
                TraceStep::Attempt(attempt) => out.push(renderer.attempt(part, attempt, ordinal)),
                TraceStep::Forward(forward) => out.push(renderer.forward(part, forward, ordinal)),
                TraceStep::Admission(admission) => match admission.result {
                    AdmissionStepResult::Queued { .. } => out.push(renderer.wait(part, admission)),
                    _ => events.push(renderer.admission(admission)),
                },
                TraceStep::Routing(routing) => {
                    let policy = routing.policy.as_deref().unwrap_or("builtin");
                    let policy = KeyValue::text("infergate.routing.policy", policy);
                    events.push(renderer.event("infergate.routing", routing.at_us, vec![policy]));
                }
                TraceStep::Permit(permit) => {
                    let attributes = turn_attributes(permit.turn).into();
                    events.push(renderer.event("infergate.permit", permit.at_us, attributes));
                }
                TraceStep::WeightsChange { at_us } => {
                    events.push(renderer.event("infergate.weights_changed", *at_us, Vec::new()));
                }
                TraceStep::Fallback(fallback) => {
                    let attributes = vec![
                        KeyValue::text("infergate.fallback.model", fallback.to.as_str()),
                        KeyValue::text("infergate.fallback.cause", fallback.cause),
                    ];
                    events.push(renderer.event("infergate.fallback", fallback.at_us, attributes));
                }
                TraceStep::PeerSelection(selection) => {
                    let chosen = selection.chosen.as_deref().unwrap_or("none");
                    let chosen = KeyValue::text("infergate.peer.node", chosen);
                    let at_us = selection.at_us;
                    events.push(renderer.event("infergate.peer_selection", at_us, vec![chosen]));
                }
            }
        }
        out.push(renderer.request(events));
    }
}

impl Renderer<'_> {
    /// The request at this node.
    fn request(&self, events: Vec<SpanEvent>) -> Span {
        let summary = self.summary;
        let mut attributes = vec![
            KeyValue::text(semconv::OPERATION, summary.operation),
            KeyValue::text(semconv::PROVIDER, semconv::PROVIDER_NAME),
            KeyValue::text("infergate.request_id", &*summary.request_id),
            KeyValue::text("infergate.api", summary.dialect.name()),
            KeyValue::text("infergate.outcome", summary.outcome.name()),
        ];
        if let Some(requested) = self.requested_model() {
            attributes.push(KeyValue::text(semconv::REQUEST_MODEL, requested));
        }
        let has_answered = (200..400).contains(&summary.status);
        if let Some(model) = summary.model.as_ref().filter(|_| has_answered) {
            attributes.push(KeyValue::text(semconv::RESPONSE_MODEL, model.as_str()));
        }
        if let Some(account) = &summary.account {
            attributes.push(KeyValue::text("infergate.account", account.as_str()));
        }
        for (key, number) in [
            (
                semconv::HTTP_STATUS,
                Some(u64::from(summary.status)).filter(|status| *status != 0),
            ),
            (semconv::INPUT_TOKENS, summary.usage.input_tokens),
            (semconv::OUTPUT_TOKENS, summary.usage.output_tokens),
        ] {
            attributes.extend(number.map(|number| KeyValue::number(key, number)));
        }
        if let Some(refusal) = self.trace.refusal {
            attributes.push(KeyValue::text("infergate.refusal", refusal.reason));
        }
        let kind = SpanKind::Server;
        let times = (self.trace.begin_us, summary.at_us);
        let span = Span {
            span_id: self.identity.context.span_id.to_bytes().into(),
            parent_span_id: self
                .identity
                .parent
                .map_or(Vec::new(), |id| id.to_bytes().into()),
            flags: match self.identity.parent {
                Some(_) => 1 | FLAG_HAS_IS_REMOTE | FLAG_IS_REMOTE,
                None => 1 | FLAG_HAS_IS_REMOTE,
            },
            events,
            dropped_events_count: self.trace.steps_left_out,
            links: self.identity.link.iter().map(span_link).collect(),
            ..self.span(kind, self.named(self.requested_model()), times, attributes)
        };
        with_error(span, self.error())
    }

    /// Span of an attempt at a model server.
    fn attempt(&self, part: Span, attempt: &AttemptStep, ordinal: usize) -> Span {
        let trace = &attempt.trace;
        let mut attributes = vec![
            KeyValue::text(semconv::OPERATION, self.summary.operation),
            KeyValue::text(semconv::PROVIDER, semconv::PROVIDER_NAME),
            KeyValue::text(semconv::REQUEST_MODEL, &*attempt.model),
        ];
        let (host, port) = host_and_port(&attempt.url);
        attributes.push(KeyValue::text(semconv::SERVER_ADDRESS, host));
        attributes.extend(port.map(|port| KeyValue::number(semconv::SERVER_PORT, port)));
        let result = trace.result.map_or("cut-off", |result| result.name());
        attributes.push(KeyValue::text("infergate.attempt.result", result));
        let status = Some(u64::from(trace.status)).filter(|status| *status != 0);
        attributes.extend(status.map(|status| KeyValue::number(semconv::HTTP_STATUS, status)));
        let marks = &trace.marks;
        let moments = [
            ("connected", marks.connected_us),
            ("sent", marks.sent_us),
            ("response_head", trace.head_us),
        ];
        let moments = moments.into_iter().filter(|(_, at_us)| *at_us != 0);
        let end_us = match trace.failed_us {
            0 => self.end_of(ordinal),
            failed_us => failed_us,
        };
        let times = (attempt.begin_us, end_us);
        let events = moments.map(|(name, at_us)| self.event_within(name, at_us, times));
        let error = match (trace.result, trace.status) {
            (Some(AttemptResult::Answered), 0..500) => None,
            (_, status @ 400..) => Some(status.to_string()),
            _ => Some(result.to_owned()),
        };
        let name = self.named(Some(&attempt.model));
        let span = Span {
            events: events.collect(),
            ..self.span(SpanKind::Client, name, times, attributes)
        };
        with_error(of_part(span, part), error)
    }

    /// Span of a forward to another node.
    fn forward(&self, part: Span, forward: &ForwardStep, ordinal: usize) -> Span {
        let attributes = vec![
            KeyValue::text("infergate.peer.node", &*forward.node),
            KeyValue::text("infergate.peer.site", &*forward.site),
        ];
        let (end_us, error) = match forward.ended {
            None => (self.end_of(ordinal), Some("cut-off")),
            Some((_, ForwardStepEnd::Answered(_))) => (self.end_of(ordinal), None),
            // A node without capacity is no failure.
            Some((
                at_us,
                ForwardStepEnd::Rejected { result, .. } | ForwardStepEnd::Ended(result),
            )) => (at_us, Some(result.name())),
        };
        let times = (forward.begin_us, end_us);
        let name = format!("forward {}", forward.node);
        let span = self.span(SpanKind::Client, name, times, attributes);
        with_error(of_part(span, part), error.map(str::to_owned))
    }

    /// A wait for a permit.
    fn wait(&self, part: Span, admission: &AdmissionStep) -> Span {
        let AdmissionStepResult::Queued {
            position,
            ended,
            turn,
            ..
        } = admission.result
        else {
            return part;
        };
        let (end_us, how) = ended.unwrap_or((self.summary.at_us, "cut-off"));
        let mut attributes = vec![
            KeyValue::number("infergate.queue.position", position as u64),
            KeyValue::text("infergate.queue.ended", how),
        ];
        if let Some(turn) = turn {
            attributes.extend(turn_attributes(turn));
        }
        let times = (admission.snapshot.at_us, end_us);
        let name = "queue".to_owned();
        of_part(self.span(SpanKind::Internal, name, times, attributes), part)
    }

    fn admission(&self, admission: &AdmissionStep) -> SpanEvent {
        let result = match admission.result {
            AdmissionStepResult::Full { cause, .. } => cause,
            _ => "leased",
        };
        let result = KeyValue::text("infergate.admission.result", result);
        self.event(
            "infergate.admission",
            admission.snapshot.at_us,
            vec![result],
        )
    }

    fn first_byte(&self) -> Option<SpanEvent> {
        let at_us = self.trace.begin_us + self.summary.first_byte_us?;
        Some(self.event("infergate.first_byte", at_us, Vec::new()))
    }

    /// Ids and flags of the part of this number.
    fn part(&self, ordinal: usize) -> Span {
        let own = self.identity.context.span_id;
        Span {
            span_id: own.child(ordinal as u64).to_bytes().into(),
            parent_span_id: own.to_bytes().into(),
            flags: 1 | FLAG_HAS_IS_REMOTE,
            ..Span::default()
        }
    }

    /// A span of this trace without ids.
    fn span(
        &self,
        kind: SpanKind,
        name: String,
        (begin_us, end_us): (u64, u64),
        attributes: Vec<KeyValue>,
    ) -> Span {
        let begin_us = self.within(begin_us);
        Span {
            trace_id: self.identity.context.trace_id.to_bytes().into(),
            trace_state: self
                .identity
                .state
                .as_deref()
                .unwrap_or_default()
                .to_owned(),
            name,
            kind: kind as i32,
            start_time_unix_nano: self.offset.unix_nano(begin_us),
            end_time_unix_nano: self.offset.unix_nano(self.within(end_us).max(begin_us)),
            attributes,
            ..Span::default()
        }
    }

    fn event(&self, name: &str, at_us: u64, attributes: Vec<KeyValue>) -> SpanEvent {
        SpanEvent {
            time_unix_nano: self.offset.unix_nano(self.within(at_us)),
            name: name.to_owned(),
            attributes,
        }
    }

    /// An event of a part with these times.
    fn event_within(&self, name: &str, at_us: u64, (begin_us, end_us): (u64, u64)) -> SpanEvent {
        let at_us = at_us.clamp(begin_us, end_us.max(begin_us));
        self.event(name, at_us, Vec::new())
    }

    /// The moment, moved into the request: some are known to a millisecond only.
    fn within(&self, at_us: u64) -> u64 {
        at_us.clamp(
            self.trace.begin_us,
            self.summary.at_us.max(self.trace.begin_us),
        )
    }

    /// End of a part whose response was passed on: it lasts until the next attempt or the request's end.
    fn end_of(&self, ordinal: usize) -> u64 {
        let further = self.trace.steps.iter().skip(ordinal + 1);
        let mut begins = further.filter_map(|step| match step {
            TraceStep::Attempt(attempt) => Some(attempt.begin_us),
            TraceStep::Forward(forward) => Some(forward.begin_us),
            _ => None,
        });
        begins.next().unwrap_or(self.summary.at_us)
    }

    /// `{operation} {model}`, the name that the conventions want.
    fn named(&self, model: Option<&str>) -> String {
        match model {
            Some(model) => format!("{} {model}", self.summary.operation),
            None => self.summary.operation.to_owned(),
        }
    }

    /// The model that the client named.
    fn requested_model(&self) -> Option<&str> {
        let summary = self.summary;
        let model = summary.asked_model.as_ref().or(summary.model.as_ref());
        let by_id = model.map(|model| model.as_str());
        self.trace.requested_model.as_deref().or(by_id)
    }

    /// Class of the failure, if it is one of a server: a 4xx is the client's (HTTP conventions).
    fn error(&self) -> Option<String> {
        let summary = self.summary;
        match (summary.outcome, summary.status) {
            (RequestOutcome::Completed, 0..400)
            | (RequestOutcome::Completed | RequestOutcome::Refused, 400..500) => None,
            (RequestOutcome::Completed, status) => Some(status.to_string()),
            (outcome, _) => Some(match self.trace.refusal {
                Some(refusal) => refusal.reason.to_owned(),
                None => outcome.name().to_owned(),
            }),
        }
    }
}

fn span_link((trace, span): &(TraceId, SpanId)) -> SpanLink {
    SpanLink {
        trace_id: trace.to_bytes().into(),
        span_id: span.to_bytes().into(),
        flags: FLAG_HAS_IS_REMOTE | FLAG_IS_REMOTE,
    }
}

/// Class that got a permit, and why.
fn turn_attributes(turn: ClassTurn) -> [KeyValue; 2] {
    [
        KeyValue::text("infergate.queue.class", turn.class.name()),
        KeyValue::text("infergate.queue.turn", turn.choice.name()),
    ]
}

/// The span with the ids of a part.
fn of_part(span: Span, part: Span) -> Span {
    Span {
        span_id: part.span_id,
        parent_span_id: part.parent_span_id,
        flags: part.flags,
        ..span
    }
}

fn with_error(span: Span, error: Option<String>) -> Span {
    let mut span = span;
    if let Some(error) = error {
        span.attributes
            .push(KeyValue::text(semconv::ERROR_TYPE, error));
        span.status = Some(Status {
            message: String::new(),
            code: STATUS_ERROR,
        });
    }
    span
}

/// Host and port of an endpoint's URL, or the path of its socket, without anything else that may stand in it.
fn host_and_port(url: &str) -> (&str, Option<u64>) {
    if let Some((path, _)) = unix_socket_of(url) {
        return (path, None);
    }
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    match authority.rsplit_once(':') {
        Some((host, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (host, port.parse().ok())
        }
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port_alone() {
        for (url, host, port) in [
            ("http://127.0.0.1:9001", "127.0.0.1", Some(9001)),
            ("https://user:secret@h/v1?key=x", "h", None),
            ("http://[::1]:80/a:1", "[::1]", Some(80)),
            ("unix:/run/m.sock:/v1", "/run/m.sock", None),
        ] {
            assert_eq!(host_and_port(url), (host, port), "{url}");
        }
    }
}
