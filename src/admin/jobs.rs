//! `/jobs`: durable jobs, their queues and their store, as operators see and change them.
//!
//! Field names are a contract with operators' tools. Values and changes come from [`JobControls`], which `app`
//! implements. Bodies over 4 KiB, stream tokens and secrets of webhooks are not shown.

use std::collections::BTreeMap;

use async_trait::async_trait;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::response::AdminResponse;

const NOT_CONFIGURED: &str =
    "durable jobs are not configured here: `jobs: {}` in the configuration turns them on";
const NO_PATH: &str = "no such path here; `GET /` lists them";

/// Part of the jobs that a list shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// State; none for every state.
    pub state: Option<String>,
    /// Model as configured.
    pub model: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// `next` of the page before.
    pub cursor: Option<String>,
}

/// Reason for which a question about jobs has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobControlError {
    /// No such job or queue.
    #[error("{0}")]
    NotFound(String),
    /// The question is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The job is not in a state for it.
    #[error("{0}")]
    Conflict(String),
    /// The store does not answer.
    #[error("{0}")]
    Unavailable(String),
}

impl JobControlError {
    fn status(&self) -> u16 {
        match self {
            JobControlError::NotFound(_) => 404,
            JobControlError::Wrong(_) => 400,
            JobControlError::Conflict(_) => 409,
            JobControlError::Unavailable(_) => 503,
        }
    }
}

/// Result of a question about jobs.
type JobAnswer<T> = Result<T, JobControlError>;

/// Questions and changes about jobs. Queues go by their key, or by the name of their model.
#[async_trait]
pub trait JobControls: Send + Sync + 'static {
    /// Jobs, newest first.
    async fn list(&self, filter: JobFilter) -> JobAnswer<JobPage>;
    /// Record of a job.
    async fn show(&self, id: &str) -> JobAnswer<JobRecord>;
    /// Ends a job, or asks its run to end.
    async fn cancel(&self, id: &str) -> JobAnswer<Value>;
    /// Submits the request of an ended job again.
    async fn requeue(&self, id: &str) -> JobAnswer<Value>;
    /// Queues.
    async fn queues(&self) -> JobAnswer<Vec<QueueReport>>;
    /// Processes that run jobs.
    async fn workers(&self) -> JobAnswer<Vec<WorkerReport>>;
    /// Stores.
    async fn stores(&self) -> JobAnswer<Vec<StoreReport>>;
    /// Pauses or resumes a queue.
    async fn set_paused(&self, queue: &str, is_paused: bool) -> JobAnswer<Value>;
    /// Ends the queued jobs of a queue.
    async fn purge(&self, queue: &str) -> JobAnswer<Value>;
    /// Webhooks that wait, or that were given up.
    async fn webhooks(&self, is_dead: bool) -> JobAnswer<Vec<WebhookReport>>;
    /// Delivers a webhook again that was given up.
    async fn retry_webhook(&self, id: &str) -> JobAnswer<Value>;
}

/// Webhook that is not delivered.
#[derive(Clone, Debug, Serialize)]
pub struct WebhookReport {
    /// Id of the message.
    pub id: String,
    /// Job whose end it tells.
    pub job: String,
    /// Attempts so far.
    pub attempts: u32,
    /// Given up: no attempt is made any more.
    pub is_dead: bool,
    /// The record of the job is kept, so that it can be sent.
    pub has_job: bool,
    /// Moment of the next attempt, RFC 3339.
    pub due_at: String,
    /// Result of the last attempt.
    pub last_result: String,
}

/// Job in a list.
#[derive(Clone, Debug, Serialize)]
pub struct JobSummary {
    /// Id.
    pub id: String,
    /// `prediction`, `training`, `procedure`, `batch-item`.
    pub kind: &'static str,
    /// `queued`, `running`, `succeeded`, `failed`, `canceled`, `aborted`.
    pub state: &'static str,
    /// Code of the reason of its end; null of a success.
    pub reason: Option<&'static str>,
    /// Model as configured.
    pub model: String,
    /// Account that pays.
    pub account: String,
    /// Key of its queue.
    pub deployable: String,
    /// Class of its first run.
    pub class: &'static str,
    /// Moment of its submit.
    pub created_at: String,
    /// Moment of its first start.
    pub started_at: Option<String>,
    /// Moment of its end.
    pub ended_at: Option<String>,
    /// Takes so far.
    pub attempts: u32,
    /// Process that runs it, or that ran it to its end.
    pub worker: Option<String>,
}

/// Page of a list.
#[derive(Clone, Debug, Serialize)]
pub struct JobPage {
    /// Jobs, newest first.
    pub jobs: Vec<JobSummary>,
    /// `cursor` of the next page; null on the last one.
    pub next: Option<String>,
}

/// Attempts of a job.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JobAttempts {
    /// Takes so far.
    pub taken: u32,
    /// Attempts that count against the limit.
    pub counted: u32,
    /// Releases because no server took the job.
    pub refused: u32,
    /// Attempts that may be lost.
    pub max: u32,
}

/// Moment at which a job came into a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobTransition {
    /// Moment.
    pub at: String,
    /// State from then on.
    pub state: &'static str,
    /// Number of the attempt that began; null otherwise.
    pub attempt: Option<u32>,
    /// Reason of an end, or of coming back into the queue.
    pub reason: Option<&'static str>,
}

/// Attempt of a job in this process.
#[derive(Clone, Debug, Serialize)]
pub struct JobRunReport {
    /// Number.
    pub attempt: u32,
    /// Moment at which it began.
    pub began_at: String,
    /// Moment at which its result was known.
    pub ended_at: Option<String>,
    /// Endpoint that worked on it last.
    pub endpoint: String,
    /// State or reason of the end, or why it is queued again; null while it goes on.
    pub result: Option<&'static str>,
    /// Trace of its request.
    pub trace_id: Option<String>,
}

/// Job as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct JobRecord {
    /// Its line in the list.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// Status that its user sees.
    pub status: &'static str,
    /// Attempts.
    pub attempt_counts: JobAttempts,
    /// Moment of its latest take.
    pub taken_at: Option<String>,
    /// Moment before which it is not taken again.
    pub due_at: Option<String>,
    /// Moment of a cancel that its run was asked for.
    pub cancel_requested_at: Option<String>,
    /// Its own deadline.
    pub deadline: Option<String>,
    /// End of its lifetime.
    pub lifetime_until: String,
    /// Moment until which it must have been started.
    pub start_until: String,
    /// Limit of one run, milliseconds.
    pub run_timeout_ms: u64,
    /// Share of its account relative to others.
    pub weight: u32,
    /// Bytes that it counts in the store.
    pub bytes: u64,
    /// API of the submit.
    pub api: Option<String>,
    /// Version of the model.
    pub version: Option<String>,
    /// Job whose request it repeats.
    pub retry_of: Option<String>,
    /// Scheme and host of the receiver of its webhooks: the rest may be a secret.
    pub webhook: Option<String>,
    /// Bytes of the input.
    pub input_bytes: u64,
    /// Input; null over 4 KiB.
    pub input: Value,
    /// Bytes of the output, 0 without one.
    pub output_bytes: u64,
    /// Output; null over 4 KiB.
    pub output: Value,
    /// Sentence for the user; null of a success.
    pub error: Option<String>,
    /// Metrics of the run.
    pub metrics: Map<String, Value>,
    /// Charge.
    pub neurons: Option<f64>,
    /// Endpoint of the last attempt.
    pub upstream: Option<String>,
    /// Trace of the submit; without one that of the latest run.
    pub trace_id: Option<String>,
    /// States with their moments. Attempts in other processes lack where nothing is kept of them.
    pub transitions: Vec<JobTransition>,
    /// Attempts in this process, the latest 16.
    pub runs: Vec<JobRunReport>,
}

/// Counts by class of jobs.
pub type ClassCounts = BTreeMap<&'static str, u64>;

/// Counts of a queue at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotReport {
    /// Moment.
    pub at: String,
    /// Queued jobs.
    pub queued: u32,
    /// Running jobs.
    pub running: u32,
    /// Jobs ended since the store was opened.
    pub finished: u64,
}

/// Queue of a deployable: what an operator and an autoscaler read.
#[derive(Clone, Debug, Serialize)]
pub struct QueueReport {
    /// Its key.
    pub deployable: String,
    /// Its model; null where that is not configured any more.
    pub model: Option<String>,
    /// Its deployment as `owner/name`; null of a model's own queue.
    pub deployment: Option<String>,
    /// Queued jobs, those that are not due included.
    pub queued: u64,
    /// Queued jobs that may be taken now, by class.
    pub ready: ClassCounts,
    /// Queued jobs of the accounts with most of them, twenty at most.
    pub accounts: Map<String, Value>,
    /// Running jobs.
    pub running: u64,
    /// Age of the oldest queued job, milliseconds.
    pub oldest_ms: u64,
    /// Expected permit time of a job, milliseconds.
    pub expected_hold_ms: u64,
    /// Expected permit time of all queued jobs, seconds: divided by permits it is the time to an empty queue.
    pub expected_work_secs: f64,
    /// Permits of the model's endpoints.
    pub permits: u64,
    /// Jobs accepted since the store was opened.
    pub accepted: u64,
    /// Jobs ended since then.
    pub finished: u64,
    /// No job is taken.
    pub paused: bool,
    /// Moment of the latest create, also of one that found no room; null where none is known.
    pub last_request_at: Option<String>,
    /// Counts of the last two minutes, about one a second; none where nothing was in the queue for so long.
    pub snapshots: Vec<SnapshotReport>,
}

/// Process that runs jobs.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerReport {
    /// Its name, with a part that changes with each start.
    pub id: String,
    /// Running jobs.
    pub running: u64,
    /// True of the process of this listener.
    pub here: bool,
    /// The process takes jobs: `jobs.worker.enabled`.
    pub enabled: bool,
    /// Jobs that it runs at once.
    pub concurrency_max: u64,
    /// The process ends, and takes no further job.
    pub draining: bool,
}

/// Store of jobs.
#[derive(Clone, Debug, Serialize)]
pub struct StoreReport {
    /// `embedded`.
    pub kind: &'static str,
    /// Its file.
    pub path: String,
    /// Further jobs are accepted.
    pub accepting: bool,
    /// Reason why not; null while they are.
    pub problem: Option<String>,
    /// Jobs that have not ended.
    pub live: u64,
    /// Bytes of those, inputs included.
    pub live_bytes: u64,
    /// Most of those bytes.
    pub live_bytes_max: u64,
    /// Bytes of the file and its log.
    pub file_bytes: u64,
    /// Free bytes of its disk; null where they cannot be read.
    pub free_disk_bytes: Option<u64>,
}

/// Durable jobs in `/state`. Counts are about a second old.
#[derive(Clone, Debug, Serialize)]
pub struct JobsState {
    /// Further jobs are accepted.
    pub accepting: bool,
    /// Reason why not; null while they are.
    pub problem: Option<String>,
    /// Jobs that have not ended.
    pub live: u64,
    /// Waiting jobs.
    pub queued: u64,
    /// Running jobs.
    pub running: u64,
    /// Store.
    pub store: StoreState,
    /// The process ends, and takes no further job.
    pub draining: bool,
    /// Duties of the process.
    pub duties: Vec<DutyReport>,
}

/// Duty of the process.
#[derive(Clone, Debug, Serialize)]
pub struct DutyReport {
    /// Name in metrics.
    pub name: &'static str,
    /// Runs that succeeded.
    pub runs: u64,
    /// Jobs or files that it changed.
    pub items: u64,
    /// Moment of the last run that succeeded; null before there was one.
    pub last_success_at: Option<String>,
}

/// Place of the jobs in `/state`.
#[derive(Clone, Debug, Serialize)]
pub struct StoreState {
    /// `embedded`.
    pub kind: &'static str,
    /// Its file.
    pub path: String,
}

/// Question of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobRoute {
    List,
    Queues,
    Workers,
    Stores,
    Webhooks,
    RetryWebhook(String),
    Show(String),
    Cancel(String),
    Requeue(String),
    Pause(String),
    Resume(String),
    Purge(String),
}

impl JobRoute {
    fn read(path: &str) -> Option<JobRoute> {
        let rest = path.strip_prefix("/jobs")?;
        match rest {
            "" | "/" => return Some(JobRoute::List),
            "/queues" => return Some(JobRoute::Queues),
            "/workers" => return Some(JobRoute::Workers),
            "/stores" => return Some(JobRoute::Stores),
            "/webhooks" => return Some(JobRoute::Webhooks),
            _ => {}
        }
        if let Some(rest) = rest.strip_prefix("/webhooks/") {
            let id = rest.strip_suffix("/retry")?;
            return Some(JobRoute::RetryWebhook(decoded(id)));
        }
        if let Some(rest) = rest.strip_prefix("/queues/") {
            // Names of models have slashes.
            let (name, verb) = rest.rsplit_once('/')?;
            let name = Some(decoded(name)).filter(|name| !name.is_empty())?;
            return match verb {
                "pause" => Some(JobRoute::Pause(name)),
                "resume" => Some(JobRoute::Resume(name)),
                "purge" => Some(JobRoute::Purge(name)),
                _ => None,
            };
        }
        let rest = rest.strip_prefix('/')?;
        match rest.split_once('/') {
            None => Some(JobRoute::Show(rest.to_owned())),
            Some((id, "cancel")) => Some(JobRoute::Cancel(id.to_owned())),
            Some((id, "requeue")) => Some(JobRoute::Requeue(id.to_owned())),
            Some(_) => None,
        }
    }

    fn method(&self) -> &'static str {
        match self {
            JobRoute::List
            | JobRoute::Queues
            | JobRoute::Workers
            | JobRoute::Stores
            | JobRoute::Webhooks
            | JobRoute::Show(_) => "GET",
            JobRoute::Cancel(_)
            | JobRoute::Requeue(_)
            | JobRoute::Pause(_)
            | JobRoute::Resume(_)
            | JobRoute::Purge(_)
            | JobRoute::RetryWebhook(_) => "POST",
        }
    }
}

/// Returns whether a path is about jobs.
pub(super) fn is_job_path(path: &str) -> bool {
    path == "/jobs" || path.starts_with("/jobs/")
}

/// Answers a request about jobs.
pub(super) async fn respond(
    jobs: Option<&dyn JobControls>,
    method: &str,
    path: &str,
    query: &str,
) -> AdminResponse {
    let Some(jobs) = jobs else {
        return AdminResponse::error(404, NOT_CONFIGURED);
    };
    let Some(route) = JobRoute::read(path) else {
        return AdminResponse::error(404, NO_PATH);
    };
    let takes = route.method();
    if takes != method {
        let message = format!("{path} takes {takes} only");
        return AdminResponse {
            allow: Some(takes),
            ..AdminResponse::error(405, &message)
        };
    }
    match route {
        JobRoute::List => match read_filter(query) {
            Ok(filter) => shown(jobs.list(filter).await),
            Err(error) => shown::<()>(Err(error)),
        },
        JobRoute::Queues => shown(jobs.queues().await.map(|found| json!({ "queues": found }))),
        JobRoute::Workers => shown(
            jobs.workers()
                .await
                .map(|found| json!({ "workers": found })),
        ),
        JobRoute::Stores => shown(jobs.stores().await.map(|found| json!({ "stores": found }))),
        JobRoute::Webhooks => {
            let is_dead = query
                .split('&')
                .any(|pair| pair == "dead" || pair == "dead=true");
            let found = jobs.webhooks(is_dead).await;
            shown(found.map(|found| json!({ "webhooks": found })))
        }
        JobRoute::RetryWebhook(id) => shown(jobs.retry_webhook(&id).await),
        JobRoute::Show(id) => shown(jobs.show(&id).await),
        JobRoute::Cancel(id) => shown(jobs.cancel(&id).await),
        JobRoute::Requeue(id) => shown(jobs.requeue(&id).await),
        JobRoute::Pause(queue) => shown(jobs.set_paused(&queue, true).await),
        JobRoute::Resume(queue) => shown(jobs.set_paused(&queue, false).await),
        JobRoute::Purge(queue) => shown(jobs.purge(&queue).await),
    }
}

fn shown<T: Serialize>(answered: JobAnswer<T>) -> AdminResponse {
    match answered {
        Ok(body) => AdminResponse::json(200, &body),
        Err(error) => AdminResponse::error(error.status(), &error.to_string()),
    }
}

/// Reads the members of a query; a member that is not known is refused, for it would show too much.
fn read_filter(query: &str) -> JobAnswer<JobFilter> {
    let mut filter = JobFilter::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "state" => &mut filter.state,
            "model" => &mut filter.model,
            "account" => &mut filter.account,
            "cursor" => &mut filter.cursor,
            _ => {
                let text =
                    format!("`{name}` is not known: `state`, `model`, `account` and `cursor` are");
                return Err(JobControlError::Wrong(text));
            }
        };
        *place = Some(decoded(value)).filter(|value| !value.is_empty());
    }
    Ok(filter)
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_question_and_names_of_models_have_slashes() {
        let id = "a".repeat(26);
        for (path, expected) in [
            ("/jobs", Some(JobRoute::List)),
            ("/jobs/", Some(JobRoute::List)),
            ("/jobs/queues", Some(JobRoute::Queues)),
            ("/jobs/workers", Some(JobRoute::Workers)),
            ("/jobs/stores", Some(JobRoute::Stores)),
            (&format!("/jobs/{id}"), Some(JobRoute::Show(id.clone()))),
            (
                &format!("/jobs/{id}/cancel"),
                Some(JobRoute::Cancel(id.clone())),
            ),
            (
                &format!("/jobs/{id}/requeue"),
                Some(JobRoute::Requeue(id.clone())),
            ),
            (&format!("/jobs/{id}/other"), None),
            (
                "/jobs/queues/@cf/a/b/pause",
                Some(JobRoute::Pause("@cf/a/b".into())),
            ),
            (
                "/jobs/queues/a%20b/resume",
                Some(JobRoute::Resume("a b".into())),
            ),
            (
                "/jobs/queues/vp-1/purge",
                Some(JobRoute::Purge("vp-1".into())),
            ),
            ("/jobs/queues//purge", None),
            ("/jobs/queues/a/drop", None),
            ("/jobs/queues/a", None),
            ("/jobs/webhooks", Some(JobRoute::Webhooks)),
            (
                "/jobs/webhooks/a-completed/retry",
                Some(JobRoute::RetryWebhook("a-completed".into())),
            ),
            ("/jobs/webhooks/a", None),
        ] {
            assert_eq!(JobRoute::read(path), expected, "{path}");
        }
        assert!(is_job_path("/jobs") && is_job_path("/jobs/x"));
        assert!(!is_job_path("/jobsx"));
    }

    #[test]
    fn a_query_is_decoded_and_an_unknown_member_refused() {
        let filter = read_filter("state=failed&model=a%2Fb&account=&cursor=7").unwrap();
        let expected = JobFilter {
            state: Some("failed".into()),
            model: Some("a/b".into()),
            account: None,
            cursor: Some("7".into()),
        };
        assert_eq!(filter, expected);
        assert_eq!(read_filter(""), Ok(JobFilter::default()));
        assert!(read_filter("stat=failed").is_err());
    }

    #[tokio::test]
    async fn without_jobs_every_path_of_theirs_says_so() {
        for path in ["/jobs", "/jobs/queues", "/jobs/x"] {
            let response = respond(None, "GET", path, "").await;
            assert_eq!(response.status, 404);
            let text = String::from_utf8(response.body).unwrap();
            assert!(text.contains("jobs: {}"), "{text}");
        }
    }
}
