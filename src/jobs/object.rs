//! Object of a job as clients of the Replicate API and receivers of webhooks see it.
//!
//! Made of what is stored each time it is shown: nothing of it is kept.

use infergate_core::api::replicate::{JobCollection, PredictionUrls, PredictionView};
use infergate_core::job::{JobKind, JobState};
use serde_json::{Map, Value};

use super::config::{AbortedStatus, JobChoices};
use super::request::{JobResult, StoredRequest};
use super::store::StoredJob;
use super::store_clock::rfc3339_micros;

/// Status that takes the place of the true one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownStatus {
    /// As it is.
    Present,
    /// The job has not ended: client libraries take `processing` without an output for an end.
    Starting,
}

/// Writes the object of a job, as the API and its webhooks show it.
pub fn replicate_object(choices: &JobChoices, job: &StoredJob, shown: ShownStatus) -> Vec<u8> {
    let Ok(request) = StoredRequest::read(&job.payload) else {
        return b"{}".to_vec();
    };
    let result = job.result.as_deref().map(JobResult::read);
    let result = result.as_ref();
    let status = match shown {
        ShownStatus::Starting if !job.state.is_terminal() => "starting",
        _ => shown_status(job, choices),
    };
    let definition = &job.definition;
    let mut metrics = result
        .map(|result| result.metrics.clone())
        .unwrap_or_default();
    if choices.replicate.show_neurons
        && let Some(result) = result
    {
        metrics.insert("neurons".to_owned(), result.neurons.into());
    }
    let id = definition.id.as_str();
    let segment = collection_of(definition.kind).segment();
    let url = format!("{}/v1/{segment}/{id}", request.base_url);
    let token = request.stream_token.as_deref();
    let token = token.filter(|_| !job.is_data_removed);
    let stream = token.map(|token| format!("{}/v1/streams/{id}?token={token}", request.base_url));
    let events = request.webhook_events.as_ref();
    let view = PredictionView {
        id,
        model: &request.shown_model,
        version: &request.version,
        input: Some(&*request.input)
            .filter(|_| !job.is_data_removed && request.input_file.is_none()),
        output: result.and_then(|result| result.output.as_deref()),
        logs: result.map_or("", |result| &result.logs),
        error: result.and_then(|result| result.error.as_deref()),
        status,
        data_removed: job.is_data_removed,
        source: "api",
        metrics,
        created_at: rfc3339_micros(definition.created),
        started_at: job.progress.started.map(rfc3339_micros),
        completed_at: job.ended.map(rfc3339_micros),
        urls: PredictionUrls {
            cancel: format!("{url}/cancel"),
            get: url,
            stream,
        },
        deadline: definition.limits.deadline.map(rfc3339_micros),
        deployment: request.deployment.as_deref(),
        webhook: request.webhook.as_deref(),
        webhook_events_filter: events.map(|events| events.iter().map(|event| &**event).collect()),
        destination: request.destination.as_deref(),
        own: own_facts(job, &request),
    };
    view.to_bytes()
}

/// Facts that the API has no member for.
fn own_facts(job: &StoredJob, request: &StoredRequest) -> Map<String, Value> {
    let mut facts = Map::new();
    if let Some(file) = request.input_file.filter(|_| !job.is_data_removed) {
        let note = format!("left out: {} bytes, kept as a file", file.bytes);
        facts.insert("input".to_owned(), note.into());
    }
    let status = job.state.public_status(job.progress.started.is_some());
    facts.insert("status".to_owned(), status.into());
    let reason = job.reason.map(|reason| reason.code());
    facts.insert("reason".to_owned(), reason.into());
    facts.insert("attempts".to_owned(), job.progress.epoch.into());
    facts
}

/// Returns the state that the API of a client shows, by the choices of the configuration.
fn shown_status(job: &StoredJob, choices: &JobChoices) -> &'static str {
    match (job.state, choices.replicate.aborted_as) {
        (JobState::Aborted, AbortedStatus::Canceled) => JobState::Canceled.name(),
        (state, _) => state.public_status(job.progress.started.is_some()),
    }
}

fn collection_of(kind: JobKind) -> JobCollection {
    match kind {
        JobKind::Training => JobCollection::Trainings,
        _ => JobCollection::Predictions,
    }
}
