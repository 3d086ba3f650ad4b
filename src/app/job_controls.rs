//! Durable jobs for the admin listener: its questions put to the durable path, the answers as reports.
//!
//! Not the durable path, and not HTTP.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, DeployableState, FlowCounts, JobClass, JobId,
    JobState, StoreTime,
};
use infergate_core::model::ModelSpec;
use infergate_core::{AccountId, ModelId, Refusal};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::job_transitions::transitions;
use crate::admin::{
    DutyReport, JobAttempts, JobControlError, JobControls, JobFilter, JobPage, JobRecord,
    JobRunReport, JobSummary, JobsState, QueueReport, SnapshotReport, StoreReport, StoreState,
    WebhookReport, WorkerReport,
};
use crate::jobs::{
    JobAttempt, JobListing, JobResult, Jobs, PendingWebhook, QueueSnapshot, RequeueError,
    SettlementResult, StoreStats, StoredJob, StoredRequest, rfc3339_micros,
};
use crate::telemetry::duty_metrics::DutyCounts;

/// Webhooks that are shown: as many dead letters as are kept.
const WEBHOOKS_SHOWN_MAX: usize = 10_000;
/// Jobs of a page.
const PAGE_JOBS: usize = 100;
/// Accounts of a queue that are shown.
const ACCOUNTS_SHOWN_MAX: usize = 20;
/// Bytes of an input or an output that are shown.
const BODY_SHOWN_MAX: usize = 4 * 1024;
/// Name of the one kind of store.
const STORE_KIND: &str = "embedded";

/// The durable path as the admin listener asks it.
struct JobOperator {
    jobs: Arc<Jobs>,
}

impl JobOperator {
    fn unavailable(&self, refusal: Refusal) -> JobControlError {
        let problem = self.jobs.problem();
        let text = problem.map_or_else(|| refusal.row().message.to_owned(), |it| it.to_string());
        JobControlError::Unavailable(text)
    }

    async fn queue(&self, name: &str) -> Result<DeployableKey, JobControlError> {
        let found = self.jobs.find_queue(name).await;
        let found = found.map_err(|refusal| self.unavailable(refusal))?;
        let none = || "no such queue; `GET /jobs/queues` lists them".to_owned();
        found.ok_or_else(|| JobControlError::NotFound(none()))
    }

    async fn stats(&self) -> Result<StoreStats, JobControlError> {
        let stats = self.jobs.stats().await;
        stats.map_err(|refusal| self.unavailable(refusal))
    }
}

/// Returns what the admin listener asks about jobs; none where they are not configured.
pub fn operator(jobs: Option<&Arc<Jobs>>) -> Option<Arc<dyn JobControls>> {
    let jobs = Arc::clone(jobs?);
    Some(Arc::new(JobOperator { jobs }))
}

/// Returns the part of `/state` about jobs. Waits for nothing.
pub fn state(jobs: &Jobs) -> JobsState {
    let stats = jobs.recent_stats();
    let sum = |count: fn(&DeployableState) -> u32| -> u64 {
        let counts = stats.deployables.iter().map(count);
        counts.map(u64::from).sum()
    };
    let problem = jobs.refusal_reason();
    JobsState {
        accepting: problem.is_none() && !jobs.is_draining(),
        problem: problem.map(|problem| problem.to_string()),
        live: stats.live as u64,
        queued: sum(|state| state.queued),
        running: sum(|state| state.running),
        store: StoreState {
            kind: STORE_KIND,
            path: jobs.store_path().display().to_string(),
        },
        draining: jobs.is_draining(),
        duties: jobs.duties().into_iter().map(duty).collect(),
    }
}

fn duty(counts: DutyCounts) -> DutyReport {
    let last = counts.last_success_secs;
    DutyReport {
        name: counts.duty.name(),
        runs: counts.runs,
        items: counts.items,
        last_success_at: last.map(|secs| rfc3339_micros(StoreTime((secs * 1e3) as u64))),
    }
}

fn no_job() -> JobControlError {
    JobControlError::NotFound(
        "no such job is kept; `GET /jobs` lists those that are, and ended ones go after `jobs.keep_secs`"
            .to_owned(),
    )
}

fn job_id(text: &str) -> Result<JobId, JobControlError> {
    let id = text.parse::<JobId>();
    id.map_err(|error| JobControlError::NotFound(error.to_string()))
}

fn read_listing(filter: JobFilter) -> Result<JobListing, JobControlError> {
    let wrong = |text: String| JobControlError::Wrong(text);
    let state = filter.state.map(|name| {
        let found = JobState::ALL.into_iter().find(|state| state.name() == name);
        let names = JobState::ALL.map(JobState::name).join(", ");
        found.ok_or_else(|| wrong(format!("`state` is one of {names}")))
    });
    let before = filter.cursor.map(|cursor| cursor.parse::<i64>());
    let before = before.transpose();
    Ok(JobListing {
        account: filter.account.as_deref().map(AccountId::from),
        kind: None,
        state: state.transpose()?,
        model: filter.model.as_deref().map(ModelId::from),
        before: before.map_err(|_| wrong("`cursor` is `next` of another page".to_owned()))?,
        limit: PAGE_JOBS,
    })
}

#[async_trait]
impl JobControls for JobOperator {
    async fn list(&self, filter: JobFilter) -> Result<JobPage, JobControlError> {
        let found = self.jobs.list(read_listing(filter)?).await;
        let found = found.map_err(|refusal| self.unavailable(refusal))?;
        Ok(JobPage {
            next: found.next().map(|place| place.to_string()),
            jobs: found.jobs.iter().map(summary).collect(),
        })
    }

    async fn show(&self, id: &str) -> Result<JobRecord, JobControlError> {
        let found = self.jobs.get(job_id(id)?).await;
        let found = found.map_err(|refusal| self.unavailable(refusal))?;
        let job = found.ok_or_else(no_job)?;
        let attempts = self.jobs.attempts(&job.definition.id);
        Ok(record(&job, &attempts))
    }

    async fn cancel(&self, id: &str) -> Result<Value, JobControlError> {
        let canceled = self.jobs.cancel(job_id(id)?, CanceledBy::Operator).await;
        let canceled = canceled.map_err(|refusal| self.unavailable(refusal))?;
        let (result, state) = match canceled {
            CancelResult::Ended(state) => ("ended", state),
            CancelResult::Requested(_) => ("requested", JobState::Running),
            CancelResult::AlreadyEnded(state) => ("already_ended", state),
            CancelResult::Unknown => return Err(no_job()),
        };
        tracing::warn!(job = id, result, "canceled by an operator");
        Ok(json!({ "id": id, "result": result, "state": state.name() }))
    }

    async fn requeue(&self, id: &str) -> Result<Value, JobControlError> {
        let job = self
            .jobs
            .requeue(job_id(id)?)
            .await
            .map_err(|error| match error {
                RequeueError::Unknown => no_job(),
                RequeueError::Refused(refusal) => self.unavailable(refusal),
                other => JobControlError::Conflict(other.to_string()),
            })?;
        let new = job.definition.id;
        tracing::warn!(job = id, %new, "submitted again by an operator");
        Ok(json!({ "id": new.as_str(), "retry_of": id, "state": job.state.name() }))
    }

    async fn queues(&self) -> Result<Vec<QueueReport>, JobControlError> {
        let stats = self.stats().await?;
        let server = |key: &DeployableKey| {
            let found = self.jobs.server_of(key);
            QueueOwner {
                spec: found.map(|model| Arc::clone(&model.spec)),
                snapshots: self.jobs.snapshots(key),
                deployment: self.jobs.deployment_of(key),
            }
        };
        let models = self.jobs.models();
        let keys: BTreeSet<_> = models.iter().map(|model| &model.queue).collect();
        let is_used = |key: &DeployableKey| stats.deployables.iter().any(|it| it.key == *key);
        let unused = keys.into_iter().filter(|key| !is_used(key));
        let unused: Vec<_> = unused.map(|key| unused_queue(key, server(key))).collect();
        let used = stats.deployables.iter();
        let used = used.map(|state| queue_report(&stats, state, server(&state.key)));
        let mut reports: Vec<_> = used.chain(unused).collect();
        reports.sort_by(|a, b| (&a.model, &a.deployable).cmp(&(&b.model, &b.deployable)));
        Ok(reports)
    }

    async fn workers(&self) -> Result<Vec<WorkerReport>, JobControlError> {
        let stats = self.stats().await?;
        let (here, choices) = (self.jobs.worker(), self.jobs.choices());
        // The one store is this process's alone, and so is each worker in it.
        let found = stats.workers.iter().find(|(worker, _)| worker == here);
        let config = &choices.jobs.worker;
        Ok(vec![WorkerReport {
            id: here.as_str().to_owned(),
            running: found.map_or(0, |(_, running)| *running as u64),
            here: true,
            enabled: config.enabled,
            concurrency_max: config.concurrency_max as u64,
            draining: self.jobs.is_draining(),
        }])
    }

    async fn stores(&self) -> Result<Vec<StoreReport>, JobControlError> {
        let jobs = Arc::clone(&self.jobs);
        let space = tokio::task::spawn_blocking(move || jobs.store_space()).await;
        let space = space.unwrap_or_default();
        let (stats, problem) = (self.jobs.recent_stats(), self.jobs.refusal_reason());
        Ok(vec![StoreReport {
            kind: STORE_KIND,
            path: self.jobs.store_path().display().to_string(),
            accepting: problem.is_none() && !self.jobs.is_draining(),
            problem: problem.map(|problem| problem.to_string()),
            live: stats.live as u64,
            live_bytes: stats.live_bytes,
            live_bytes_max: self.jobs.choices().jobs.embedded.max_mib << 20,
            file_bytes: space.file_bytes,
            free_disk_bytes: space.free_bytes,
        }])
    }

    async fn set_paused(&self, queue: &str, is_paused: bool) -> Result<Value, JobControlError> {
        let key = self.queue(queue).await?;
        let written = self.jobs.set_paused(&key, is_paused).await;
        written.map_err(|refusal| self.unavailable(refusal))?;
        Ok(json!({ "deployable": key.as_str(), "paused": is_paused }))
    }

    async fn purge(&self, queue: &str) -> Result<Value, JobControlError> {
        let key = self.queue(queue).await?;
        let purged = self.jobs.purge(&key).await;
        let canceled = purged.map_err(|refusal| self.unavailable(refusal))?;
        Ok(json!({ "deployable": key.as_str(), "canceled": canceled }))
    }

    async fn webhooks(&self, is_dead: bool) -> Result<Vec<WebhookReport>, JobControlError> {
        let found = self.jobs.webhooks(is_dead, WEBHOOKS_SHOWN_MAX).await;
        let found = found.map_err(|refusal| self.unavailable(refusal))?;
        Ok(found.iter().map(webhook).collect())
    }

    async fn retry_webhook(&self, id: &str) -> Result<Value, JobControlError> {
        let retried = self.jobs.retry_webhook(id).await;
        match retried.map_err(|refusal| self.unavailable(refusal))? {
            SettlementResult::Done => Ok(json!({ "id": id, "retried": true })),
            SettlementResult::NoJob => {
                let gone = "the record of the job is not kept any more: nothing is left to send";
                Err(JobControlError::Conflict(gone.to_owned()))
            }
            SettlementResult::NoEntry => {
                let none = "no such webhook was given up; `GET /jobs/webhooks?dead` lists them";
                Err(JobControlError::NotFound(none.to_owned()))
            }
        }
    }
}

fn webhook(pending: &PendingWebhook) -> WebhookReport {
    WebhookReport {
        id: pending.id.to_string(),
        job: pending.job.as_str().to_owned(),
        attempts: pending.attempts,
        is_dead: pending.is_dead,
        has_job: pending.has_job,
        due_at: rfc3339_micros(pending.due),
        last_result: pending.last_result.to_string(),
    }
}

fn summary(job: &StoredJob) -> JobSummary {
    let (definition, progress) = (&job.definition, &job.progress);
    let owner = progress.owner.as_ref();
    JobSummary {
        id: definition.id.as_str().to_owned(),
        kind: definition.kind.name(),
        state: job.state.name(),
        reason: job.reason.map(|reason| reason.code()),
        model: definition.model.as_str().to_owned(),
        account: definition.account.as_str().to_owned(),
        deployable: definition.deployable.as_str().to_owned(),
        class: definition.class.name(),
        created_at: rfc3339_micros(definition.created),
        started_at: progress.started.map(rfc3339_micros),
        ended_at: job.ended.map(rfc3339_micros),
        attempts: progress.epoch,
        worker: owner.map(|owner| owner.worker.as_str().to_owned()),
    }
}

fn record(job: &StoredJob, attempts: &[JobAttempt]) -> JobRecord {
    let (definition, progress) = (&job.definition, &job.progress);
    let request = StoredRequest::read(&job.payload).ok();
    let result = job.result.as_deref().map(JobResult::read);
    let is_over = job.state.is_terminal();
    let end = job.ended.map(|at| (at, job.state, job.reason));
    let request_text = |text: fn(&StoredRequest) -> &str| {
        let request = request.as_ref();
        request.map(|request| text(request).to_owned())
    };
    let (mut input_bytes, input) = body(request.as_ref().map(|request| &*request.input));
    if let Some(file) = request.as_ref().and_then(|request| request.input_file) {
        input_bytes = file.bytes;
    }
    let output = result.as_ref().and_then(|result| result.output.as_deref());
    let (output_bytes, output) = body(output);
    let at = |at: Option<StoreTime>| at.map(rfc3339_micros);
    let retry_of = request.as_ref().and_then(|request| request.retry_of);
    let webhook = request
        .as_ref()
        .and_then(|request| request.webhook.as_deref());
    JobRecord {
        summary: summary(job),
        status: job.state.public_status(progress.started.is_some()),
        attempt_counts: JobAttempts {
            taken: progress.epoch,
            counted: progress.attempts.counted,
            refused: progress.attempts.refused,
            max: definition.attempts_max,
        },
        taken_at: at(progress.taken),
        due_at: at(progress.due),
        cancel_requested_at: at(progress.cancel.map(|cancel| cancel.at)),
        deadline: at(definition.limits.deadline),
        lifetime_until: rfc3339_micros(definition.limits.lifetime),
        start_until: rfc3339_micros(definition.start_until),
        run_timeout_ms: definition.limits.run_timeout_ms,
        weight: definition.weight,
        bytes: definition.bytes,
        api: request_text(|request| &request.api),
        version: request_text(|request| &request.version),
        retry_of: retry_of.map(|id| id.as_str().to_owned()),
        webhook: webhook.map(origin),
        input_bytes,
        input,
        output_bytes,
        output,
        error: result.as_ref().and_then(|result| result.error.clone()),
        neurons: result
            .as_ref()
            .filter(|_| is_over)
            .map(|result| result.neurons),
        upstream: result
            .as_ref()
            .and_then(|result| result.upstream.as_deref().map(str::to_owned)),
        metrics: result.map(|result| result.metrics).unwrap_or_default(),
        trace_id: trace_id(request.as_ref(), attempts),
        transitions: transitions(definition.created, progress, end, attempts),
        runs: attempts.iter().map(attempt).collect(),
    }
}

fn attempt(attempt: &JobAttempt) -> JobRunReport {
    JobRunReport {
        attempt: attempt.epoch,
        began_at: rfc3339_micros(attempt.began),
        ended_at: attempt.ended.map(rfc3339_micros),
        endpoint: attempt.endpoint.to_string(),
        result: attempt.result,
        trace_id: attempt.trace.map(|trace| trace.to_string()),
    }
}

fn trace_id(request: Option<&StoredRequest>, attempts: &[JobAttempt]) -> Option<String> {
    let sent = request.and_then(|request| request.traceparent.as_deref());
    // The second part: https://www.w3.org/TR/trace-context/#traceparent-header
    let sent = sent.and_then(|parent| parent.split('-').nth(1));
    let own = attempts.iter().rev().find_map(|attempt| attempt.trace);
    sent.map(str::to_owned)
        .or_else(|| own.map(|trace| trace.to_string()))
}

/// Returns the length of a body, and the body where it is short.
fn body(raw: Option<&RawValue>) -> (u64, Value) {
    let text = raw.map_or("", RawValue::get);
    let is_short = text.len() <= BODY_SHOWN_MAX;
    let value = is_short.then(|| serde_json::from_str(text).ok()).flatten();
    (text.len() as u64, value.unwrap_or_default())
}

/// Returns scheme and host of a URL: its path, its query and its user may be secrets.
fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

/// Model whose permits serve a queue, the deployment that the queue is for, and its counts lately.
struct QueueOwner {
    spec: Option<Arc<ModelSpec>>,
    snapshots: Vec<QueueSnapshot>,
    deployment: Option<Arc<str>>,
}

fn unused_queue(key: &DeployableKey, owner: QueueOwner) -> QueueReport {
    let state = DeployableState {
        key: key.clone(),
        ready: [0; JobClass::ALL.len()],
        queued: 0,
        running: 0,
        accepted: 0,
        finished: 0,
        last_submit: None,
        expected_hold: infergate_core::job::HoldEstimator::default().expected(),
        is_paused: false,
    };
    queue_report(&StoreStats::default(), &state, owner)
}

fn queue_report(stats: &StoreStats, state: &DeployableState, owner: QueueOwner) -> QueueReport {
    let QueueOwner {
        spec,
        deployment,
        snapshots,
    } = owner;
    let ready = JobClass::ALL.into_iter().zip(state.ready);
    let counts = stats.by_account.iter().find(|(key, _)| *key == state.key);
    let hold_ms = state.expected_hold.0;
    QueueReport {
        deployable: state.key.as_str().to_owned(),
        model: spec.as_ref().map(|spec| spec.id.as_str().to_owned()),
        deployment: deployment.map(|name| name.as_ref().to_owned()),
        queued: state.queued.into(),
        ready: ready.map(|(class, n)| (class.name(), n as u64)).collect(),
        accounts: counts.map_or_else(Map::new, |(_, counts)| largest(counts)),
        running: state.running.into(),
        oldest_ms: stats.oldest_of(&state.key),
        expected_hold_ms: hold_ms,
        expected_work_secs: f64::from(state.queued) * hold_ms as f64 / 1e3,
        permits: spec.map_or(0, |spec| spec.permits()),
        accepted: state.accepted,
        finished: state.finished,
        paused: state.is_paused,
        last_request_at: state.last_submit.map(rfc3339_micros),
        snapshots: snapshots.iter().map(snapshot).collect(),
    }
}

fn snapshot(snapshot: &QueueSnapshot) -> SnapshotReport {
    SnapshotReport {
        at: rfc3339_micros(snapshot.at),
        queued: snapshot.queued,
        running: snapshot.running,
        finished: snapshot.finished,
    }
}

/// Returns the accounts with most queued jobs, the largest first.
fn largest(counts: &FlowCounts) -> Map<String, Value> {
    let mut counts: Vec<_> = counts.0.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(ACCOUNTS_SHOWN_MAX);
    let named = counts.into_iter();
    named
        .map(|(account, count)| (account.as_str().to_owned(), (*count).into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_shown_without_what_may_be_secret_in_it() {
        for (url, expected) in [
            (
                "https://hooks.example/T0/secret?x=1",
                "https://hooks.example",
            ),
            (
                "https://user:pass@h.example:8443/a",
                "https://h.example:8443",
            ),
            ("https://h.example?token=x", "https://h.example"),
        ] {
            assert_eq!(origin(url), expected);
        }
    }

    #[test]
    fn long_bodies_are_counted_and_left_out() {
        let raw = |text: String| RawValue::from_string(text).unwrap();
        let short = raw(r#"{"a":1}"#.to_owned());
        assert_eq!(body(Some(&short)), (7, json!({ "a": 1 })));
        let long = raw(format!("\"{}\"", "x".repeat(BODY_SHOWN_MAX)));
        assert_eq!(body(Some(&long)), (4098, Value::Null));
        assert_eq!(body(None), (0, Value::Null));
    }

    #[test]
    fn a_filter_is_a_listing_or_a_sentence() {
        let filter = JobFilter {
            state: Some("failed".into()),
            model: Some("a/b".into()),
            account: None,
            cursor: Some("12".into()),
        };
        let listing = read_listing(filter).unwrap();
        assert_eq!(listing.state, Some(JobState::Failed));
        assert_eq!((listing.before, listing.limit), (Some(12), PAGE_JOBS));
        for (state, cursor) in [(Some("done"), None), (None, Some("x"))] {
            let filter = JobFilter {
                state: state.map(str::to_owned),
                cursor: cursor.map(str::to_owned),
                ..JobFilter::default()
            };
            assert!(matches!(
                read_listing(filter),
                Err(JobControlError::Wrong(_))
            ));
        }
    }

    #[test]
    fn the_accounts_with_most_jobs_are_shown() {
        let many = (0..30).map(|n| (AccountId::from(&*format!("a{n:02}")), n));
        let shown = largest(&FlowCounts(many.collect()));
        assert_eq!(shown.len(), ACCOUNTS_SHOWN_MAX);
        assert_eq!(shown.iter().next().unwrap().0, "a29");
    }
}
