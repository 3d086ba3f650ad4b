//! The durable path as operators see it: levels, queues by name, purge, and a second submit of an ended job.
//!
//! Not what clients may do, which is in `service`. No account is asked for its permission here.

use std::path::PathBuf;
use std::sync::Arc;

use infergate_core::api::replicate::VersionName;
use infergate_core::job::{DeployableKey, DeployableState, EndReason, JobId, JobKind, WorkerId};
use infergate_core::{AccountId, Refusal};

use super::attempts::JobAttempt;
use super::catalog::CatalogModel;
use super::queue_history::QueueSnapshot;
use super::request::{StoredRequest, stream_token};
use super::service::{Jobs, unavailable};
use super::store::{JobStore, StoreStats, StoredJob};
use super::submit_request::SubmitRequest;
use crate::telemetry::duty_metrics::DutyCounts;
use crate::telemetry::job_metrics::{JobLevels, JobQueueLevels};
use crate::upstream::ModelRuntime;

/// Space of the store's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSpace {
    /// Bytes of the file and its log.
    pub file_bytes: u64,
    /// Bytes that are free on its disk; none where it cannot be read.
    pub free_bytes: Option<u64>,
}

/// Reason for which a job is not submitted again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequeueError {
    /// No such job is kept.
    #[error("no such job is kept")]
    Unknown,
    /// The job has not ended.
    #[error("the job has not ended")]
    Live,
    /// The stored request cannot be read.
    #[error("the stored request of the job cannot be read")]
    Damaged,
    /// The input is in a file that is not there any more.
    #[error("the input of the job is in a file that is not there any more")]
    InputGone,
    /// The account is not configured any more.
    #[error("the account of the job is not configured any more")]
    NoAccount,
    /// The model takes no jobs any more.
    #[error("the model of the job is not configured any more, or takes no jobs")]
    NoModel,
    /// The deployment is not there any more.
    #[error("the deployment of the job is not there any more")]
    NoDeployment,
    /// The submit was refused.
    #[error("the submit was refused: {}", .0.row().message)]
    Refused(Refusal),
}

impl Jobs {
    /// Returns counts that are about a second old. Waits for nothing.
    pub fn recent_stats(&self) -> Arc<StoreStats> {
        self.store.levels()
    }

    /// Returns levels for metrics, about a second old. Waits for nothing.
    pub fn levels(&self) -> JobLevels {
        let stats = self.store.levels();
        let problem = self.store.problem();
        let queue = |state: &DeployableState| {
            let server = self.server_of(&state.key)?;
            Some(JobQueueLevels {
                model: server.spec.id.clone(),
                deployable: state.key.as_str().into(),
                queued: queued_by_class(state),
                running: state.running.into(),
                oldest_ms: stats.oldest_of(&state.key),
            })
        };
        JobLevels {
            queues: stats.deployables.iter().filter_map(queue).collect(),
            is_up: problem.is_none(),
            is_accepting: self.refusal_reason().is_none(),
            memory_ratio: stats.live_bytes as f64
                / (self.choices().jobs.embedded.max_mib << 20) as f64,
            files: self.files.level(),
        }
    }

    /// Returns the reason for which jobs are not accepted: a failure of the store, or that it is full.
    pub fn refusal_reason(&self) -> Option<Arc<str>> {
        if let Some(problem) = self.problem() {
            return Some(problem);
        }
        let max_mib = self.choices().jobs.embedded.max_mib;
        let is_full = self.store.levels().live_bytes >= max_mib << 20;
        is_full.then(|| format!("jobs that have not ended fill its {max_mib} MiB").into())
    }

    /// Returns the counts of the duties of the process.
    pub fn duties(&self) -> Vec<DutyCounts> {
        self.shared.metrics.jobs().duties.counts().to_vec()
    }

    /// Returns the counts of a queue over the last two minutes, about one a second.
    pub fn snapshots(&self, queue: &DeployableKey) -> Vec<QueueSnapshot> {
        self.store.snapshots(queue)
    }

    /// Returns the attempts of a job in this process, as far as they are known.
    pub fn attempts(&self, job: &JobId) -> Vec<JobAttempt> {
        self.attempts.of(job)
    }

    /// Returns the worker of this process.
    pub fn worker(&self) -> &WorkerId {
        &self.worker
    }

    /// Returns the models that take jobs, in the order of the configuration.
    pub fn models(&self) -> Vec<Arc<CatalogModel>> {
        self.catalog.models(&self.shared)
    }

    /// Returns the model whose permits serve a queue.
    pub fn server_of(&self, queue: &DeployableKey) -> Option<Arc<ModelRuntime>> {
        self.catalog.of_queue(&self.shared, queue)
    }

    /// Returns the deployment that a queue is for; none of a model's own queue.
    pub fn deployment_of(&self, queue: &DeployableKey) -> Option<Arc<str>> {
        let found = self.catalog.deployments.of_queue(queue)?;
        Some(Arc::clone(&found.spec.id))
    }

    /// Returns the queue of this key, or of the model or deployment of this name; none where neither is known.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn find_queue(&self, name: &str) -> Result<Option<DeployableKey>, Refusal> {
        if let Some((model, _)) = self.catalog.find(&self.shared, VersionName::Model(name)) {
            return Ok(Some(model.queue.clone()));
        }
        if let Some(deployment) = self.catalog.deployments.of_name(name) {
            return Ok(Some(deployment.queue.clone()));
        }
        let is_meant = |key: &&DeployableKey| key.as_str() == name;
        let models = self.models();
        if let Some(key) = models.iter().map(|model| &model.queue).find(is_meant) {
            return Ok(Some(key.clone()));
        }
        // A model may have left the configuration before its jobs ended.
        let stats = self.stats().await?;
        let keys = stats.deployables.iter().map(|state| &state.key);
        Ok(keys.into_iter().find(is_meant).cloned())
    }

    /// Pauses or resumes a queue, also for later processes.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn set_paused(&self, queue: &DeployableKey, is_paused: bool) -> Result<(), Refusal> {
        let written = self.store.set_paused(queue.clone(), is_paused).await;
        written.map_err(|error| unavailable(&error))?;
        let queue = queue.as_str();
        tracing::warn!(
            queue,
            is_paused,
            "a queue was paused or resumed by an operator"
        );
        Ok(())
    }

    /// Ends the queued jobs of a queue. Returns how many; those that came meanwhile may stay.
    ///
    /// # Errors
    /// The store cannot be written; some may have ended.
    pub async fn purge(&self, queue: &DeployableKey) -> Result<usize, Refusal> {
        let stats = self.stats().await?;
        let state = stats.deployables.iter().find(|state| state.key == *queue);
        let queued = state.map_or(0, |state| state.queued as usize);
        let mut ended = 0;
        while ended < queued {
            let reason = EndReason::CanceledByOperator;
            let some = self.store.end_queued(queue.clone(), reason).await;
            match some.map_err(|error| unavailable(&error))? {
                0 => break,
                some => ended += some,
            }
        }
        tracing::warn!(queue = queue.as_str(), ended, "purged by an operator");
        Ok(ended)
    }

    /// Submits the stored request of an ended job again, as a job that names it.
    ///
    /// # Errors
    /// The reason; nothing is stored then.
    pub async fn requeue(&self, id: JobId) -> Result<StoredJob, RequeueError> {
        if self.is_draining() {
            return Err(RequeueError::Refused(Refusal::Draining));
        }
        let found = self.get(id).await.map_err(RequeueError::Refused)?;
        let ended = found.ok_or(RequeueError::Unknown)?;
        if !ended.state.is_terminal() {
            return Err(RequeueError::Live);
        }
        let mut request = StoredRequest::read(&ended.payload).map_err(|_| RequeueError::Damaged)?;
        // The new job has a file of its own: that of the former one goes with its record.
        let restored = self.restore_shown(&ended, &mut request, u64::MAX).await;
        restored.map_err(|refusal| match refusal {
            Refusal::Rejected { .. } => RequeueError::InputGone,
            other => RequeueError::Refused(other),
        })?;
        request.retry_of = Some(id);
        if request.stream_token.is_some() {
            // A token is of one job alone: who follows the former one has not got this one.
            let token = stream_token().map_err(|_| RequeueError::Refused(Refusal::JobsUnavailable));
            request.stream_token = Some(token?);
        }
        let definition = &ended.definition;
        let accounts = Arc::clone(&self.shared.snapshot.load().accounts);
        let is_known = accounts.known(&definition.account).is_some()
            || definition.account.as_str() == AccountId::ANONYMOUS;
        if !is_known {
            return Err(RequeueError::NoAccount);
        }
        // A training is its trainer's job, and a request of the model that is trained.
        let name = match definition.kind {
            JobKind::Training => &*request.shown_model,
            _ => definition.model.as_str(),
        };
        let model = self.catalog.find(&self.shared, VersionName::Model(name));
        let (model, _) = model.ok_or(RequeueError::NoModel)?;
        let deployments = &self.catalog.deployments;
        let deployment = match &request.deployment {
            None => None,
            Some(name) => {
                let found = deployments.of_name(name);
                Some(found.ok_or(RequeueError::NoDeployment)?)
            }
        };
        let deadline = definition.limits.deadline;
        let submit = SubmitRequest {
            account: &accounts.by_id(&definition.account).spec,
            model: &model,
            deployment: deployment.as_deref(),
            kind: definition.kind,
            class: definition.class,
            cancel_after: deadline.map(|deadline| deadline.since(definition.created)),
            timeout: None,
            request,
            key: None,
        };
        self.submit(submit).await.map_err(RequeueError::Refused)
    }

    /// Returns the path of the store's file.
    pub fn store_path(&self) -> PathBuf {
        self.store.path()
    }

    /// Returns the space that the store has and uses. Asks the file system, which may block.
    pub fn store_space(&self) -> StoreSpace {
        let path = self.store.path();
        let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        let mut log = path.clone().into_os_string();
        log.push("-wal");
        let disk = path.parent().map(rustix::fs::statvfs);
        let disk = disk.and_then(Result::ok);
        StoreSpace {
            file_bytes: size(path) + size(log.into()),
            free_bytes: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
        }
    }
}

impl StoreStats {
    /// Age of the oldest queued job of a queue, milliseconds; 0 where none is queued.
    pub fn oldest_of(&self, queue: &DeployableKey) -> u64 {
        let found = self.oldest_ms.iter().find(|(key, _)| key == queue);
        found.map_or(0, |(_, age)| *age)
    }
}

/// Returns the queued jobs by class. Released ones that are not due run again, so they count there.
fn queued_by_class(state: &DeployableState) -> [u64; 4] {
    let mut queued = state.ready.map(|count| count as u64);
    let scheduled: u64 = queued.iter().sum();
    // The first class is that of released jobs.
    queued[0] += u64::from(state.queued).saturating_sub(scheduled);
    queued
}

#[cfg(test)]
mod tests {
    use infergate_core::Millis;
    use infergate_core::job::JobClass;

    use super::*;

    #[test]
    fn jobs_that_are_not_due_are_queued_to_run_again() {
        let state = DeployableState {
            key: DeployableKey::from("vp-a"),
            ready: [1, 0, 3, 0],
            queued: 6,
            running: 0,
            accepted: 0,
            finished: 0,
            last_submit: None,
            expected_hold: Millis(1),
            is_paused: false,
        };
        assert_eq!(JobClass::ALL[0], JobClass::Again);
        assert_eq!(queued_by_class(&state), [3, 0, 3, 0]);
    }
}
