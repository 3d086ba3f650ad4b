//! Handle of the embedded store: calls become commands and queries of its threads.
//!
//! Decides nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use infergate_core::AccountId;
use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobId, Release,
    StoreTime, SubmitResult, TakeRequest, WorkerId, WriteResult,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::command::{CALL_TIMEOUT, StoreCommand};
use super::owner::StoreOwner;
use super::predecessor::{CONNECTIONS_MAX, PredecessorServer};
use super::reader::{Query, StoreReader};
use super::shared::{EmbeddedSettings, OwnerShared, Reply};
use crate::jobs::deployments::{DeploymentDirectory, DeploymentResult, DeploymentWrite};
use crate::jobs::queue_history::QueueSnapshot;
use crate::jobs::signals::JobSignals;
use crate::jobs::store::{
    EndRenderer, FormerSubmit, IdempotencyKey, JobListing, JobStore, ListedJobs, NewStoredJob,
    PendingEvent, PendingWebhook, RemovedJob, SettlementResult, StoreError, StoreStats, StoredEnd,
    StoredJob, StoredRun, WebhookSettlement,
};
use crate::jobs::store_clock::StoreClock;
use crate::telemetry::job_metrics::{JobMetrics, StoreCall};

/// Calls that may wait for one of the threads.
const WAITING_MAX: usize = 4096;
/// Name of the file in its folder.
const FILE: &str = "jobs.sqlite";

/// Handle of the embedded store.
pub struct EmbeddedStore {
    shared: Arc<OwnerShared>,
    commands: SyncSender<StoreCommand>,
    queries: SyncSender<Query>,
}

impl EmbeddedStore {
    /// Opens the store in `folder`, which is made where there is none. A store that cannot be opened is tried again
    /// each second; until then every call fails with the reason.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn open(
        folder: &Path,
        clock: StoreClock,
        settings: Arc<EmbeddedSettings>,
        signals: Arc<JobSignals>,
        renderer: Arc<dyn EndRenderer>,
        metrics: Arc<JobMetrics>,
    ) -> std::io::Result<EmbeddedStore> {
        let shared = Arc::new(OwnerShared {
            path: folder.join(FILE),
            clock,
            settings,
            signals,
            renderer,
            problem: Mutex::new(Some("it is being opened".into())),
            is_handed_over: AtomicBool::new(false),
            predecessors: Mutex::default(),
            predecessor_connections: AtomicU64::new(0),
            metrics,
            levels: Mutex::default(),
            histories: Mutex::default(),
            deployments: Arc::default(),
        });
        let (commands, waiting) = mpsc::sync_channel(WAITING_MAX);
        let (opened, is_open) = mpsc::sync_channel(1);
        let (predecessor, connections) = mpsc::sync_channel(CONNECTIONS_MAX);
        let owner = StoreOwner::new(Arc::clone(&shared), waiting, predecessor);
        thread::Builder::new()
            .name("jobs".into())
            .spawn(move || owner.run(&opened))?;
        // The first attempt to open it is over when this returns, so that a good start has no refusals.
        if let Ok(true) = is_open.recv() {
            let server = PredecessorServer {
                folder: folder.to_owned(),
                connections,
                commands: commands.clone(),
            };
            thread::Builder::new()
                .name("jobs-former".into())
                .spawn(move || server.run())?;
        }
        let (queries, waiting) = mpsc::sync_channel(WAITING_MAX);
        let reader = StoreReader::new(Arc::clone(&shared), waiting);
        thread::Builder::new()
            .name("jobs-read".into())
            .spawn(move || reader.run())?;
        Ok(EmbeddedStore {
            shared,
            commands,
            queries,
        })
    }

    /// Returns the reason for which nothing is stored; none while all is well.
    pub fn problem(&self) -> Option<Arc<str>> {
        self.shared.problem.lock().clone()
    }

    /// Returns counts that are about a second old. Waits for nothing.
    pub fn levels(&self) -> Arc<StoreStats> {
        Arc::clone(&self.shared.levels.lock())
    }

    /// Returns the counts of a queue over the last two minutes, about one a second. Waits for nothing.
    pub fn snapshots(&self, queue: &DeployableKey) -> Vec<QueueSnapshot> {
        self.shared.histories.lock().of(queue)
    }

    /// Returns the directory in which the deployments that are kept are shown.
    pub fn deployments(&self) -> Arc<DeploymentDirectory> {
        Arc::clone(&self.shared.deployments)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.shared.path.clone()
    }

    /// Counts a call that has ended, and returns its answer.
    fn measured<T>(
        &self,
        verb: &'static str,
        began_us: u64,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now_us = self.shared.clock.micros();
        self.shared.metrics.record_call(StoreCall {
            verb,
            secs: now_us.saturating_sub(began_us) as f64 / 1e6,
            error: answer.as_ref().err().map(StoreError::name),
        });
        answer
    }

    async fn call<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> StoreCommand,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (command, began_us) = (command(Reply(reply)), self.shared.clock.micros());
        let (verb, limit) = (command.verb(), command.time_limit());
        let sent = self.commands.try_send(command).map_err(as_error);
        self.measured(verb, began_us, wait(sent, answer, limit).await)
    }

    async fn read<T>(&self, query: impl FnOnce(Reply<T>) -> Query) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (query, began_us) = (query(Reply(reply)), self.shared.clock.micros());
        let verb = query.verb();
        let sent = self.queries.try_send(query).map_err(as_error);
        let answer = wait(sent, answer, Some(CALL_TIMEOUT)).await;
        self.measured(verb, began_us, answer)
    }
}

/// Waits for the answer of a call that was sent.
async fn wait<T>(
    sent: Result<(), StoreError>,
    answer: oneshot::Receiver<Result<T, StoreError>>,
    limit: Option<Duration>,
) -> Result<T, StoreError> {
    sent?;
    let answered = match limit {
        Some(limit) => tokio::time::timeout(limit, answer).await,
        None => Ok(answer.await),
    };
    match answered {
        Ok(Ok(answer)) => answer,
        // The write failed before its turn in the transaction, or the thread has ended.
        Ok(Err(_)) => Err(StoreError::Unavailable("nothing was written".into())),
        Err(_) => Err(StoreError::Timeout),
    }
}

fn as_error<T>(error: TrySendError<T>) -> StoreError {
    match error {
        TrySendError::Full(_) => StoreError::Overloaded,
        TrySendError::Disconnected(_) => StoreError::Unavailable("its thread has ended".into()),
    }
}

#[async_trait]
impl JobStore for EmbeddedStore {
    async fn submit(&self, job: NewStoredJob) -> Result<SubmitResult, StoreError> {
        self.call(|reply| StoreCommand::Submit(Box::new(job), reply))
            .await
    }

    async fn take(
        &self,
        worker: &WorkerId,
        request: TakeRequest,
    ) -> Result<Vec<StoredRun>, StoreError> {
        let worker = worker.clone();
        self.call(|reply| StoreCommand::Take(worker, request, reply))
            .await
    }

    async fn finish(&self, worker: &WorkerId, end: StoredEnd) -> Result<WriteResult, StoreError> {
        let worker = worker.clone();
        self.call(|reply| StoreCommand::Finish(worker, Box::new(end), reply))
            .await
    }

    async fn release(
        &self,
        worker: &WorkerId,
        release: Release,
    ) -> Result<WriteResult, StoreError> {
        let worker = worker.clone();
        self.call(|reply| StoreCommand::Release(worker, release, reply))
            .await
    }

    async fn cancel(&self, job: JobId, by: CanceledBy) -> Result<CancelResult, StoreError> {
        self.call(|reply| StoreCommand::Cancel(job, by, reply))
            .await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerId,
        held: HeldJobs,
    ) -> Result<HeartbeatReply, StoreError> {
        let worker = worker.clone();
        self.call(|reply| StoreCommand::Heartbeat(worker, held, reply))
            .await
    }

    async fn retire(&self, worker: &WorkerId) -> Result<(), StoreError> {
        let worker = worker.clone();
        self.call(|reply| StoreCommand::Retire(worker, reply)).await
    }

    async fn get(&self, job: JobId) -> Result<Option<StoredJob>, StoreError> {
        self.read(|reply| Query::Job(job, reply)).await
    }

    async fn former_submit(
        &self,
        account: &AccountId,
        key: &IdempotencyKey,
        now: StoreTime,
    ) -> Result<Option<FormerSubmit>, StoreError> {
        let (account, key) = (account.clone(), key.clone());
        self.read(|reply| Query::Former(account, key, now, reply))
            .await
    }

    async fn removed(&self, job: JobId) -> Result<Option<RemovedJob>, StoreError> {
        self.read(|reply| Query::Removed(job, reply)).await
    }

    async fn list(&self, listing: JobListing) -> Result<ListedJobs, StoreError> {
        self.read(|reply| Query::List(listing, reply)).await
    }

    async fn end_queued(
        &self,
        deployable: DeployableKey,
        reason: EndReason,
    ) -> Result<usize, StoreError> {
        self.call(|reply| StoreCommand::EndQueued(deployable, reason, reply))
            .await
    }

    async fn set_paused(
        &self,
        deployable: DeployableKey,
        is_paused: bool,
    ) -> Result<(), StoreError> {
        self.call(|reply| StoreCommand::SetPaused(deployable, is_paused, reply))
            .await
    }

    async fn position(&self, job: JobId) -> Result<Option<usize>, StoreError> {
        self.call(|reply| StoreCommand::Position(job, reply)).await
    }

    async fn stats(&self) -> Result<StoreStats, StoreError> {
        self.call(StoreCommand::Stats).await
    }

    async fn pending_events(&self, limit: usize) -> Result<Vec<PendingEvent>, StoreError> {
        self.read(|reply| Query::Events(limit, reply)).await
    }

    async fn acknowledge_events(&self, places: Vec<i64>) -> Result<(), StoreError> {
        self.call(|reply| StoreCommand::AcknowledgeEvents(places, reply))
            .await
    }

    async fn new_webhooks(&self, limit: usize) -> Result<Vec<PendingWebhook>, StoreError> {
        self.read(|reply| Query::NewWebhooks(limit, reply)).await
    }

    async fn webhooks(
        &self,
        is_dead: bool,
        limit: usize,
    ) -> Result<Vec<PendingWebhook>, StoreError> {
        self.read(|reply| Query::Webhooks(is_dead, limit, reply))
            .await
    }

    async fn settle_webhook(
        &self,
        id: Arc<str>,
        settlement: WebhookSettlement,
        result: Arc<str>,
    ) -> Result<SettlementResult, StoreError> {
        self.call(|reply| StoreCommand::SettleWebhook(id, settlement, result, reply))
            .await
    }

    async fn write_deployment(
        &self,
        write: DeploymentWrite,
    ) -> Result<DeploymentResult, StoreError> {
        self.call(|reply| StoreCommand::WriteDeployment(Box::new(write), reply))
            .await
    }
}
