//! The sender's look at the outbox beside deliveries under way, with a store that answers when a test lets it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use infergate_core::AccountId;
use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobId, Release,
    StoreTime, SubmitResult, TakeRequest, WorkerId, WriteResult,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, Semaphore};

use super::sender::WebhookSender;
use super::sender_tests::{Bench, accept, listener};
use super::tests::local_choices;
use crate::jobs::deployments::{DeploymentResult, DeploymentWrite};
use crate::jobs::embedded::EmbeddedStore;
use crate::jobs::store::{
    FormerSubmit, IdempotencyKey, JobListing, JobStore, ListedJobs, NewStoredJob, PendingEvent,
    PendingWebhook, RemovedJob, SettlementResult, StoreError, StoreStats, StoredEnd, StoredJob,
    StoredRun, WebhookSettlement,
};

/// Longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(20);
const UNUSED: &str = "a sender does not call it";

/// Store whose reads of jobs take a permit each.
struct SlowStore {
    inner: Arc<EmbeddedStore>,
    reads: Semaphore,
    /// Notified when a read finds no permit.
    stuck: Notify,
}

#[async_trait]
impl JobStore for SlowStore {
    async fn get(&self, job: JobId) -> Result<Option<StoredJob>, StoreError> {
        if self.reads.available_permits() == 0 {
            self.stuck.notify_one();
        }
        self.reads.acquire().await.unwrap().forget();
        self.inner.get(job).await
    }

    async fn new_webhooks(&self, limit: usize) -> Result<Vec<PendingWebhook>, StoreError> {
        self.inner.new_webhooks(limit).await
    }

    async fn webhooks(
        &self,
        is_dead: bool,
        limit: usize,
    ) -> Result<Vec<PendingWebhook>, StoreError> {
        self.inner.webhooks(is_dead, limit).await
    }

    async fn settle_webhook(
        &self,
        id: Arc<str>,
        settlement: WebhookSettlement,
        result: Arc<str>,
    ) -> Result<SettlementResult, StoreError> {
        self.inner.settle_webhook(id, settlement, result).await
    }

    async fn submit(&self, _: NewStoredJob) -> Result<SubmitResult, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn take(&self, _: &WorkerId, _: TakeRequest) -> Result<Vec<StoredRun>, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn finish(&self, _: &WorkerId, _: StoredEnd) -> Result<WriteResult, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn release(&self, _: &WorkerId, _: Release) -> Result<WriteResult, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn cancel(&self, _: JobId, _: CanceledBy) -> Result<CancelResult, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn heartbeat(&self, _: &WorkerId, _: HeldJobs) -> Result<HeartbeatReply, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn retire(&self, _: &WorkerId) -> Result<(), StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn former_submit(
        &self,
        _: &AccountId,
        _: &IdempotencyKey,
        _: StoreTime,
    ) -> Result<Option<FormerSubmit>, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn removed(&self, _: JobId) -> Result<Option<RemovedJob>, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn list(&self, _: JobListing) -> Result<ListedJobs, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn end_queued(&self, _: DeployableKey, _: EndReason) -> Result<usize, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn set_paused(&self, _: DeployableKey, _: bool) -> Result<(), StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn position(&self, _: JobId) -> Result<Option<usize>, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn stats(&self) -> Result<StoreStats, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn pending_events(&self, _: usize) -> Result<Vec<PendingEvent>, StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn acknowledge_events(&self, _: Vec<i64>) -> Result<(), StoreError> {
        unreachable!("{UNUSED}")
    }

    async fn write_deployment(&self, _: DeploymentWrite) -> Result<DeploymentResult, StoreError> {
        unreachable!("{UNUSED}")
    }
}

#[tokio::test]
async fn a_delivery_ends_while_the_jobs_of_others_are_read() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let store = Arc::new(SlowStore {
        inner: Arc::clone(&bench.store),
        // Of the first job: for its place in the order, and for its attempt.
        reads: Semaphore::new(2),
        stuck: Notify::new(),
    });
    let sender = WebhookSender::new(
        Arc::clone(&store) as _,
        Arc::clone(&bench.client),
        Arc::clone(&bench.signals),
        Arc::default(),
        Arc::clone(&bench.metrics),
    );
    let url = format!("http://127.0.0.1:{port}/");
    let script = async {
        bench.end_job(1, &url).await;
        let (mut tcp, _) = accept(&listener).await;
        bench.end_job(2, &url).await;
        store.stuck.notified().await;
        let accepted = b"HTTP/1.1 200 X\r\ncontent-length: 0\r\n\r\n";
        tcp.write_all(accepted).await.unwrap();
        bench.entries(false, |found| found.len() == 1).await;
        store.reads.add_permits(2);
        let (mut tcp, _) = accept(&listener).await;
        tcp.write_all(accepted).await.unwrap();
        bench.entries(false, <[_]>::is_empty).await;
    };
    let script = tokio::time::timeout(PATIENCE, script);
    tokio::select! {
        done = script => done.expect("the first delivery ends beside the look"),
        () = sender.run() => panic!("the sender does not end"),
    }
}
