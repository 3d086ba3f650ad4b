//! Submits that repeat another by its idempotency key.
//!
//! A repeat starts no job: it is answered with the first one, or with what its key knows of it. Models may have gone and
//! quotas be used up meanwhile: nothing else of it is judged.

use std::time::Duration;

use infergate_core::job::{
    DeployableKey, JobClass, JobDefinition, JobId, JobKind, JobLimits, own_deadline,
};
use infergate_core::model::FairBy;
use infergate_core::{AccountId, Millis, ModelId, Refusal};

use super::request::StoredRequest;
use super::service::{Jobs, unavailable};
use super::store::{IdempotencyKey, JobStore, RemovedJob, StoredJob};

/// Longest look at the job that a key belongs to: with the wait for the submit, about a second at most.
const READ_TIMEOUT: Duration = Duration::from_millis(900);

/// Returns the refusal of a key that was used for another request.
pub(super) fn key_mismatch() -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: String::new(),
        message: "the Idempotency-Key was used for another request".to_owned(),
    }
}

/// Job that a key was used for.
pub enum RepeatedSubmit {
    /// Record that is still there.
    Kept(Box<StoredJob>),
    /// Knowledge of its key, where the record is gone.
    Removed(JobId, RemovedJob),
}

/// Create that repeats another whose record is gone.
pub struct RepeatedCreate<'a> {
    /// Account.
    pub account: &'a AccountId,
    /// Kind.
    pub kind: JobKind,
    /// `Cancel-After`.
    pub cancel_after: Option<Millis>,
    /// `x-infergate-timeout-ms`.
    pub timeout: Option<Millis>,
    /// Request.
    pub request: StoredRequest,
}

impl RepeatedCreate<'_> {
    /// Returns the first job, as far as its key and the repeat know it: for shows alone, no queue gets it.
    pub fn removed(self, id: JobId, kept: &RemovedJob) -> StoredJob {
        let definition = JobDefinition {
            id,
            kind: self.kind,
            deployable: DeployableKey::from(""),
            account: self.account.clone(),
            model: ModelId::from(""),
            flow: "".into(),
            class: JobClass::Normal,
            weight: 1,
            fair_by: FairBy::default(),
            created: kept.created,
            limits: JobLimits {
                deadline: own_deadline(kept.created, self.cancel_after, self.timeout),
                lifetime: kept.ended,
                run_timeout_ms: 0,
            },
            start_until: kept.ended,
            attempts_max: 1,
            cancel_grace_ms: 0,
            bytes: 0,
            has_webhook: false,
        };
        let job = StoredJob::queued(&definition, self.request.to_payload().into());
        job.removed(id, kept)
    }
}

impl Jobs {
    /// Finds the job that a key was used for. Looked for before anything else of a create
    /// is judged: a repeat is answered alike when the model, the quota or a file has gone meanwhile.
    ///
    /// # Errors
    /// The key was used for another request, or the store cannot be read.
    pub async fn repeated(
        &self,
        account: &AccountId,
        key: &IdempotencyKey,
    ) -> Result<Option<RepeatedSubmit>, Refusal> {
        let looked_up = async {
            let former = self.store.former_submit(account, key, self.now()).await;
            match former.map_err(|error| unavailable(&error))? {
                None => Ok(None),
                Some(former) if !former.is_same => Err(key_mismatch()),
                Some(former) => self.former(former.job).await,
            }
        };
        let looked_up = tokio::time::timeout(READ_TIMEOUT, looked_up).await;
        looked_up.unwrap_or(Err(Refusal::JobsUnavailable))
    }

    async fn former(&self, id: JobId) -> Result<Option<RepeatedSubmit>, Refusal> {
        if let Some(job) = self.get(id).await? {
            let job = Box::new(self.with_input(job).await);
            return Ok(Some(RepeatedSubmit::Kept(job)));
        }
        let removed = self.store.removed(id).await;
        let removed = removed.map_err(|error| unavailable(&error))?;
        Ok(removed.map(|removed| RepeatedSubmit::Removed(id, removed)))
    }

    /// Returns the job that a key belongs to. Where its record is gone, the key tells how it ended.
    pub(super) async fn former_job(
        &self,
        id: JobId,
        repeated: StoredJob,
    ) -> Result<StoredJob, Refusal> {
        let found = tokio::time::timeout(READ_TIMEOUT, self.former(id)).await;
        match found.unwrap_or(Err(Refusal::JobsUnavailable))? {
            Some(RepeatedSubmit::Kept(job)) => Ok(*job),
            Some(RepeatedSubmit::Removed(id, removed)) => Ok(repeated.removed(id, &removed)),
            None => Err(Refusal::JobsUnavailable),
        }
    }
}
