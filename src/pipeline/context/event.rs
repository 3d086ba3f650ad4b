//! End of a request: price, settlement, event, metrics and trace, each built from the context here and once.
//!
//! Needs no connection: the caller of a job takes the event, and other origins hand it to the sink. A request
//! that is dropped anywhere ends here as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::pipeline::billing::OwedCharge;
use crate::pipeline::context::RequestContext;
use crate::pipeline::origin::{EventOwner, Origin};
use crate::telemetry::event::EventFlags;
use crate::telemetry::otlp::GenAiSample;
use crate::telemetry::{InferenceEvent, RequestOutcome};
use crate::trace::{QuotaHold, RequestTimes, TraceSummary};

/// The most a response waits for its event to be on the disk: longer than a busy disk takes, and a
/// hanging one must not keep permits for ever.
const EVENT_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

impl RequestContext {
    /// Ends the request and returns its event, with what its account owes once that is written, for a caller that owns
    /// it. None of other origins.
    pub fn take_event(&mut self) -> Option<(InferenceEvent, Option<OwedCharge>)> {
        if self.can.event_owner != EventOwner::Caller {
            return None;
        }
        let event = self.end()?;
        let mut owed = self.billing.take_owed();
        owed.iter_mut().for_each(OwedCharge::announce);
        Some((event, owed))
    }

    /// Ends the request and stores its event, so that the response's last byte may wait for the disk. The
    /// context lives on: its tokens are still to be settled.
    pub async fn persist_event(&mut self) {
        if self.can.event_owner == EventOwner::Caller {
            return;
        }
        if let Some(event) = self.complete() {
            let stored = self.shared.sink.write_durable(event);
            // Whether stored, lost or late: the sink counts, and the client gets its answer.
            let _ = timeout(EVENT_WRITE_TIMEOUT, stored).await;
        }
    }

    /// Discards the trace and the event: the bytes were not a valid request.
    pub fn discard(&mut self) {
        self.is_ended = true;
    }

    /// Ends the request and counts it; returns its event where this node writes it.
    fn complete(&mut self) -> Option<InferenceEvent> {
        let event = self.end()?;
        // Before its event, so that a reader of the event finds the day's account as it is.
        self.billing
            .take_owed()
            .into_iter()
            .for_each(OwedCharge::settle);
        if !self.owns_event() {
            return None;
        }
        let metrics = &self.shared.metrics;
        let model = self.model.as_ref();
        let metrics = model.map_or(metrics.no_model(), |model| &model.metrics);
        metrics.record_request(&event);
        self.record_gen_ai(&event);
        // Strangers are counted: they must not be able to write into the file of what is billed.
        event.account_id.is_some().then_some(event)
    }

    /// Ends the request, once: its time, its price, its reservation, its event, and its trace.
    fn end(&mut self) -> Option<InferenceEvent> {
        if std::mem::replace(&mut self.is_ended, true) {
            return None;
        }
        self.trace.times.end(self.shared.clock.recent_micros());
        self.price();
        self.billing.close(self.model.as_deref());
        let event = self.build_event();
        let (quota, operation) = (self.billing.quota(), self.operation_name());
        self.trace
            .finish(|times| summary(&event, times, quota, operation));
        Some(event)
    }

    /// The event, with the durations of the trace.
    fn build_event(&mut self) -> InferenceEvent {
        let here = &self.snapshot;
        let times = &self.trace.times;
        let facts = std::mem::take(&mut self.facts);
        let bill = self.billing.take_bill();
        let source_site = facts.source_site;
        InferenceEvent {
            ended_us: times.end_us(),
            request_id: Arc::clone(&self.request_id),
            account_id: self.account.take(),
            client_address: facts.client.ip,
            client_id: facts.client_id,
            client_request_id: facts.client_request_id,
            model_id: self.model.as_ref().map(|model| model.spec.id.clone()),
            asked_model_id: self.replaced_model.clone(),
            dialect: self.dialect,
            node: Arc::clone(&here.node),
            site: Arc::clone(&here.site),
            status: self.status,
            error_code: facts.error_code,
            reason: facts.reason,
            outcome: self.outcome,
            queued: times.has_queued(),
            request_time_us: times.elapsed_us(times.end_us()),
            queuing_time_us: times.queued_us(),
            inference_time_us: times.inference_us(times.end_us()),
            time_to_first_token_us: times.first_byte_us(),
            metrics: bill.tokens,
            extra_metrics: bill.extra_metrics,
            metrics_source: bill.source,
            comparison: bill.comparison,
            neurons: bill.neurons,
            priced_by: bill.priced_by,
            attempts: self.attempts,
            upstream: facts.endpoint,
            path: facts.path.unwrap_or_else(|| Arc::clone(&here.path)),
            local_queue_size: facts.queue_length,
            source_site: source_site.unwrap_or_else(|| Arc::clone(&here.site)),
            container_id: facts.instance,
            load_wait_us: times.load_wait_us(),
            flags: EventFlags {
                streamed: self.is_streaming,
                beta: self
                    .model
                    .as_ref()
                    .is_some_and(|model| model.spec.catalog.beta),
                external_endpoint: facts.is_external,
                queued_in_site: times.has_queued_here(),
                billing_fallback: bill.fell_back,
                unix_socket: facts.client.over_unix_socket,
            },
            request_source: match self.origin {
                Origin::Job(_) => "job",
                Origin::Client | Origin::Peer => "rest",
            },
            plugins: facts.plugins,
            trace_id: facts.trace_id,
            job: None,
        }
    }

    /// Counts the finished request in the GenAI metrics, where there is a collector for them.
    fn record_gen_ai(&self, event: &InferenceEvent) {
        let (Some(_), Some(model)) = (&self.snapshot.tracing, &event.model_id) else {
            return;
        };
        let is_success = event.outcome == RequestOutcome::Completed && event.status < 400;
        let error = event.reason.unwrap_or_else(|| event.outcome.name());
        self.shared.gen_ai.record(&GenAiSample {
            operation: self.operation_name(),
            requested_model: event.asked_model_id.as_ref().unwrap_or(model).clone(),
            model: model.clone(),
            error: (!is_success).then_some(error),
            duration_us: event.request_time_us,
            first_token_us: event
                .time_to_first_token_us
                .filter(|_| event.flags.streamed),
            input_tokens: event.metrics.input_tokens,
            output_tokens: event.metrics.output_tokens,
        });
    }
}

/// The end of the trace: what the event shows, with the times of this node alone.
fn summary(
    event: &InferenceEvent,
    times: &RequestTimes,
    quota: Option<QuotaHold>,
    operation: &'static str,
) -> TraceSummary {
    TraceSummary {
        at_us: times.end_us(),
        request_id: Arc::clone(&event.request_id),
        client_address: event.client_address,
        account: event.account_id.clone(),
        model: event.model_id.clone(),
        asked_model: event.asked_model_id.clone(),
        dialect: event.dialect,
        outcome: event.outcome,
        status: event.status,
        code: event.error_code,
        streamed: event.flags.streamed,
        queued_us: times.queued_here_us(),
        load_wait_us: event.load_wait_us,
        first_byte_us: times.first_byte_here_us(),
        neurons: event.neurons,
        quota,
        plugins: event.plugins.clone(),
        operation,
        usage: event.metrics,
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        let event = self.complete();
        // Before the event, so that a reader of the event finds the trace.
        if let Some(trace) = self.trace.take() {
            if trace.identity.is_some() {
                self.shared.exports.push(trace.clone());
            }
            self.shared.traces.keep(trace);
        }
        if let Some(event) = event {
            self.shared.sink.write(event);
        }
    }
}
