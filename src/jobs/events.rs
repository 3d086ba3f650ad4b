//! Events of ended jobs: their lines, and their way from the outbox to the event file.
//!
//! Not the price, which is the pipeline's. A line is in the outbox from the commit of the end until it is on the
//! disk, so a kill may repeat it: readers drop repeats by `event_id`.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::api::ApiDialect;
use infergate_core::api::dialects::DIALECTS;
use infergate_core::job::{EndReason, JobDefinition, JobOutcome, JobProgress, JobState, StoreTime};

use super::ends;
use super::request::{JobResult, StoredRequest};
use super::signals::JobSignals;
use super::store::{EndRecord, EndRenderer, JobStore};
use super::store_clock::rfc3339_micros;
use crate::state::Shared;
use crate::telemetry::clock::rfc3339;
use crate::telemetry::event::{EventFlags, JobFacts};
use crate::telemetry::event_sink::StoreResult;
use crate::telemetry::{Clock, InferenceEvent, MetricsSource, TokenUsage};

/// Lines that are written at once.
const LINES_MAX: usize = 256;
/// Pause after lines could not be written, and between two looks without a hint.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Moments of a job's end, by the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct EndTimes {
    /// End.
    pub ended: StoreTime,
    /// First take, where there was one.
    pub started: Option<StoreTime>,
    /// Take of the last run.
    pub taken: Option<StoreTime>,
}

/// Sets what the event of a job has besides that of a live request.
pub fn complete_event(
    event: &mut InferenceEvent,
    definition: &JobDefinition,
    progress: &JobProgress,
    (state, reason): (JobState, Option<EndReason>),
    times: EndTimes,
    api: &str,
) {
    let span_us = |from: StoreTime, to: StoreTime| to.since(from).0.saturating_mul(1000);
    let waited_until = times.started.unwrap_or(times.ended);
    event.request_id = format!("{}:{}", definition.id, progress.epoch).into();
    let dialects = DIALECTS.iter().map(|dialect| dialect.id());
    if let Some(dialect) = dialects.into_iter().find(|dialect| dialect.name() == api) {
        event.dialect = dialect;
    }
    // A job that ended before its model was looked up is that model's all the same.
    event
        .model_id
        .get_or_insert_with(|| definition.model.clone());
    event.status = 0;
    event.outcome = ends::outcome(state, reason);
    event.reason = reason.map(EndReason::code);
    event.queuing_time_us = span_us(definition.created, waited_until);
    event.request_time_us = span_us(definition.created, times.ended);
    event.inference_time_us = times.taken.map_or(0, |taken| span_us(taken, times.ended));
    event.queued = true;
    // Unbilled ends carry a zero, so that sums need no special case.
    event.neurons = Some(event.neurons.unwrap_or(0.0));
    event.job = Some(Box::new(JobFacts {
        job_id: definition.id.as_str().into(),
        job_kind: definition.kind.name(),
        job_status: state.name(),
        epoch: progress.epoch,
        attempts_counted: progress.attempts.counted,
        class: definition.class.name(),
        deployable: definition.deployable.as_str().into(),
        created_at: rfc3339_micros(definition.created),
    }));
}

/// Returns the line of an event that ends now.
pub fn line(event: &InferenceEvent, clock: Clock) -> Vec<u8> {
    let mut line = Vec::new();
    event.write_line(&rfc3339(clock.wall()), &mut line);
    line
}

/// Place and name of this node, for events of jobs that no worker ended.
#[derive(Clone, Debug)]
pub struct EventPlace {
    /// `node.id`.
    pub node: Arc<str>,
    /// `node.site`.
    pub site: Arc<str>,
}

/// Renderer of ends that no worker writes.
pub struct UnrunEnds {
    /// Node of the events.
    pub place: EventPlace,
    /// Clock.
    pub clock: Clock,
}

impl EndRenderer for UnrunEnds {
    fn render(&self, outcome: &JobOutcome, payload: &[u8]) -> EndRecord {
        let text = outcome.reason.map_or("", EndReason::text);
        let mut event = self.empty_event(outcome);
        let times = EndTimes {
            ended: outcome.ended,
            started: outcome.progress.started,
            taken: outcome.progress.taken,
        };
        let end = (outcome.state, outcome.reason);
        let api = StoredRequest::read(payload)
            .map(|request| request.api)
            .unwrap_or_default();
        complete_event(
            &mut event,
            &outcome.definition,
            &outcome.progress,
            end,
            times,
            &api,
        );
        EndRecord {
            result: JobResult::failed(text).to_bytes().into(),
            event: line(&event, self.clock).into(),
        }
    }
}

impl UnrunEnds {
    fn empty_event(&self, outcome: &JobOutcome) -> InferenceEvent {
        let EventPlace { node, site } = &self.place;
        InferenceEvent {
            ended_us: self.clock.micros(),
            request_id: "".into(),
            account_id: Some(outcome.definition.account.clone()),
            client_address: None,
            client_id: None,
            client_request_id: None,
            model_id: Some(outcome.definition.model.clone()),
            asked_model_id: None,
            dialect: ApiDialect::WorkersAi,
            node: Arc::clone(node),
            site: Arc::clone(site),
            status: 0,
            error_code: None,
            reason: None,
            outcome: ends::outcome(outcome.state, outcome.reason),
            queued: true,
            request_time_us: 0,
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
            path: Arc::from([Arc::from(format!("{site}/{node}"))]),
            local_queue_size: 0,
            source_site: Arc::clone(site),
            container_id: None,
            load_wait_us: None,
            flags: EventFlags::default(),
            request_source: "job",
            plugins: Vec::new(),
            trace_id: None,
            job: None,
        }
    }
}

/// Carries events from the outbox of a store to the event file, until its future is dropped.
pub async fn deliver(shared: Arc<Shared>, store: Arc<dyn JobStore>, wake: Arc<JobSignals>) {
    loop {
        let woken = wake.events.notified();
        match deliver_some(&shared, &*store).await {
            Ok(LINES_MAX..) => continue,
            Ok(_) => woken.await,
            Err(()) => tokio::time::sleep(RETRY_AFTER).await,
        }
    }
}

/// Delivers the oldest events. Returns how many there were.
pub async fn deliver_some(shared: &Shared, store: &dyn JobStore) -> Result<usize, ()> {
    let pending = store.pending_events(LINES_MAX).await.map_err(|_| ())?;
    let mut places = Vec::with_capacity(pending.len());
    let mut stored = Vec::with_capacity(pending.len());
    for event in pending {
        places.push(event.place);
        stored.push(shared.sink.write_line_durable(event.line));
    }
    for result in stored {
        match result.await {
            Ok(StoreResult::OnDisk | StoreResult::NoFile) => {}
            // Nothing is forgotten: all of them are written again, and readers drop the repeats.
            Ok(StoreResult::Lost) | Err(_) => return Err(()),
        }
    }
    let count = places.len();
    if count > 0 {
        store.acknowledge_events(places).await.map_err(|_| ())?;
    }
    Ok(count)
}
