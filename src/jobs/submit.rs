//! Submit of a job: its large values into files, its place in a queue, and an answer that is known.
//!
//! Checks of the request are the API's; rules of the queue are the store's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::job::{
    JobDefinition, JobId, JobKind, JobLimits, NewJob, QueueLimits, SubmitResult, own_deadline,
};
use infergate_core::{Millis, Refusal};
use tokio::time::{Instant, sleep, timeout_at};

use super::catalog::JobPlace;
use super::file_values::{InputFileRules, JobFiles};
use super::former_submit::key_mismatch;
use super::service::{Jobs, unavailable};
use super::store::{JobStore, NewStoredJob, StoreError, StoredJob};
use super::submit_request::SubmitRequest;
use crate::files::FileId;

/// Time in which a submit whose outcome is not known is tried again, and the pause before that.
const SUBMIT_KNOWN_WITHIN: Duration = Duration::from_secs(1);
const SUBMIT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Bytes of a job in the store besides its request.
const OVERHEAD_BYTES: u64 = 400;

/// Job that a submit leads to.
enum SubmittedJob {
    /// Stored by this submit.
    New(Box<StoredJob>),
    /// Stored before, by the same key, with what this one would be.
    Former(JobId, Box<StoredJob>),
}

impl Jobs {
    /// Stores a job. Returns it as it is in the store, which is another one where its key was used before.
    ///
    /// Waits for the store at most a second. Files of a submit whose future is dropped stay until their end.
    ///
    /// # Errors
    /// The refusal for the client; nothing is stored then, unless it is [`Refusal::JobOutcomeUnknown`].
    pub async fn submit(&self, mut request: SubmitRequest<'_>) -> Result<StoredJob, Refusal> {
        let mut kept = Vec::new();
        let submitted = match self.store_values(&mut request, &mut kept).await {
            Ok(()) => self.submit_small(request).await,
            Err(refusal) => Err(refusal),
        };
        let may_be_new = match &submitted {
            Ok(submitted) => matches!(submitted, SubmittedJob::New(_)),
            Err(refusal) => *refusal == Refusal::JobOutcomeUnknown,
        };
        if !may_be_new {
            for id in kept {
                // A file that stays has an end of its own.
                let _ = self.files.remove(id).await;
            }
        }
        match submitted? {
            SubmittedJob::New(job) => Ok(self.with_input(*job).await),
            SubmittedJob::Former(id, repeated) => self.former_job(id, *repeated).await,
        }
    }

    /// Puts large values of the input into files, and what is still too large itself. Files last as long as the job may.
    async fn store_values(
        &self,
        request: &mut SubmitRequest<'_>,
        kept: &mut Vec<FileId>,
    ) -> Result<(), Refusal> {
        let choices = self.choices.load();
        let place = request
            .model
            .place(request.kind)
            .ok_or(Refusal::NoSuchModel)?;
        let own = JobFiles {
            files: &self.files,
            account: &request.account.id,
            callbacks: choices.callbacks_url.as_deref(),
            rules: &InputFileRules::of(&self.shared, &place.model.spec.id),
            base_url: &Arc::clone(&request.request.base_url),
        };
        let lifetime = request.rules().max_run_lifetime_secs;
        let secs = choices.jobs.retention_secs.max(lifetime) + choices.jobs.keep_secs;
        let input = own.store_values(&request.request.input, secs, kept).await?;
        if let Some(input) = input {
            request.request.input = input;
        }
        let most = choices.jobs.payload_bytes_max();
        own.store_input(&mut request.request, most, secs, kept)
            .await
    }

    /// Submits a job until its outcome is known, again under its own id, which is stored once at most.
    async fn submit_known(&self, job: NewStoredJob) -> Result<SubmitResult, Refusal> {
        let own = job.job.definition.id;
        let until = Instant::now() + SUBMIT_KNOWN_WITHIN;
        let mut is_unknown = false;
        loop {
            let submitting = self.store.submit(job.clone());
            let submitted = timeout_at(until, submitting).await;
            match submitted.unwrap_or(Err(StoreError::Timeout)) {
                // An attempt before has stored it.
                Ok(SubmitResult::Exists(_)) if is_unknown => return Ok(SubmitResult::Created),
                Ok(SubmitResult::Duplicate(first)) if is_unknown && first == own => {
                    return Ok(SubmitResult::Created);
                }
                Ok(submitted) => return Ok(submitted),
                Err(StoreError::Timeout) => is_unknown = true,
                // What came of the attempt before is still to be told.
                Err(_) if is_unknown => {}
                Err(error) => return Err(unavailable(&error)),
            }
            if Instant::now() + SUBMIT_AGAIN_AFTER >= until {
                return Err(Refusal::JobOutcomeUnknown);
            }
            sleep(SUBMIT_AGAIN_AFTER).await;
        }
    }

    /// Stores a job whose large values are in files.
    async fn submit_small(&self, request: SubmitRequest<'_>) -> Result<SubmittedJob, Refusal> {
        let payload = Bytes::from(request.request.to_payload());
        if payload.len() > self.choices.load().jobs.payload_bytes_max() {
            return Err(Refusal::BodyTooLarge);
        }
        let place = request.model.place(request.kind);
        let place = place.ok_or(Refusal::NoSuchModel)?;
        if self.shared.cluster.has_joined() && !place.server.spec.has_own_servers() {
            return Err(served_elsewhere());
        }
        let model = place.model.spec.id.clone();
        let job = self.definition(&request, place, payload.len());
        let new = StoredJob::queued(&job.definition, payload.clone());
        let stored = NewStoredJob {
            job,
            payload,
            key: request.key,
        };
        let submitted = self.submit_known(stored).await?;
        Ok(match submitted {
            SubmitResult::Created => {
                let (kind, api) = (request.kind.name(), &request.request.api);
                let metrics = self.shared.metrics.jobs();
                metrics.record_submitted(&model, kind, api);
                SubmittedJob::New(Box::new(new))
            }
            SubmitResult::Exists(_) => SubmittedJob::New(Box::new(new)),
            SubmitResult::Duplicate(first) => SubmittedJob::Former(first, Box::new(new)),
            SubmitResult::KeyMismatch => return Err(key_mismatch()),
            SubmitResult::QueueFull { retry_after } => {
                return Err(Refusal::QueueFull { retry_after });
            }
            SubmitResult::StoreFull => return Err(Refusal::JobsUnavailable),
        })
    }

    fn definition(
        &self,
        request: &SubmitRequest<'_>,
        place: JobPlace<'_>,
        payload_bytes: usize,
    ) -> NewJob {
        // Times are those of the model that the client named, bounds those of the queue.
        let rules = request.rules();
        let queue = &place.server.spec.jobs;
        let choices = self.choices.load();
        let created = self.clock.now();
        let run_timeout = match request.kind {
            JobKind::Training => rules.train_timeout(),
            _ => rules.predict_timeout(),
        };
        let attempts_max = match request.kind.has_one_attempt() {
            true => 1,
            false => rules.attempts_max,
        };
        let definition = JobDefinition {
            id: JobId::new(None, created, fastrand::u128(..)),
            kind: request.kind,
            deployable: match request.deployment {
                Some(deployment) => deployment.queue.clone(),
                None => place.queue,
            },
            account: request.account.id.clone(),
            model: place.model.spec.id.clone(),
            flow: "".into(),
            class: request.class,
            weight: request.account.weight,
            fair_by: queue.fair_by,
            created,
            limits: JobLimits {
                deadline: own_deadline(created, request.cancel_after, request.timeout),
                lifetime: created + Millis::from_secs(rules.max_run_lifetime_secs),
                run_timeout_ms: run_timeout.0,
            },
            start_until: created + Millis::from_secs(choices.jobs.retention_secs),
            attempts_max,
            cancel_grace_ms: rules.cancel_grace_secs * 1000,
            bytes: payload_bytes as u64 + OVERHEAD_BYTES,
            has_webhook: request.request.wants_completed(),
        };
        NewJob {
            definition,
            flows: place.flows,
            limits: QueueLimits {
                queue_max: queue.queue_max,
                queue_max_per_account: queue.queue_max_per_account,
                bytes_max: choices.jobs.embedded.max_mib << 20,
            },
        }
    }
}

/// Jobs stay at the node that has stored them, and nothing there would ever take this one.
fn served_elsewhere() -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: String::new(),
        message: "this node has no server of the model: create its jobs at a node that has one"
            .to_owned(),
    }
}
