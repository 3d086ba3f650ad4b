//! Submits that repeat another by its idempotency key.
//!
//! A repeat starts no job: it is answered with the first one, or with what its key knows of it.

use std::time::Duration;

use infergate_core::job::JobId;
use infergate_core::{AccountId, Refusal};

use super::service::{Jobs, unavailable};
use super::store::{IdempotencyKey, JobStore, StoredJob};

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

impl Jobs {
    /// Finds the job that a key was used for, while its record is there. Looked for before anything else of a create
    /// is judged: a repeat is answered alike when the model, the quota or a file has gone meanwhile.
    ///
    /// # Errors
    /// The key was used for another request, or the store cannot be read.
    pub async fn repeated(
        &self,
        account: &AccountId,
        key: &IdempotencyKey,
    ) -> Result<Option<StoredJob>, Refusal> {
        let looked_up = async {
            let former = self.store.former_submit(account, key, self.now()).await;
            match former.map_err(|error| unavailable(&error))? {
                None => Ok(None),
                Some(former) if !former.is_same => Err(key_mismatch()),
                Some(former) => match self.get(former.job).await? {
                    Some(job) => Ok(Some(self.with_input(job).await)),
                    None => Ok(None),
                },
            }
        };
        let looked_up = tokio::time::timeout(READ_TIMEOUT, looked_up).await;
        looked_up.unwrap_or(Err(Refusal::JobsUnavailable))
    }

    /// Returns the job that a key belongs to. Where its record is gone, the key tells how it ended.
    pub(super) async fn former_job(
        &self,
        id: JobId,
        repeated: StoredJob,
    ) -> Result<StoredJob, Refusal> {
        let found = async {
            if let Some(job) = self.get(id).await? {
                return Ok(self.with_input(job).await);
            }
            let removed = self.store.removed(id).await;
            let removed = removed.map_err(|error| unavailable(&error))?;
            let removed = removed.ok_or(Refusal::JobsUnavailable)?;
            Ok(repeated.removed(id, &removed))
        };
        let found = tokio::time::timeout(READ_TIMEOUT, found).await;
        found.unwrap_or(Err(Refusal::JobsUnavailable))
    }
}
