//! The durable path as its callers see it: submit, read, list, cancel, wait.
//!
//! Not an API: objects and their URLs are the callers'. A single one lives as long as the process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use infergate_core::job::{
    CancelResult, CanceledBy, EndReason, JobId, JobState, StoreTime, WorkerId,
};
use infergate_core::{AccountId, Refusal};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::attempts::AttemptLog;
use super::catalog::JobCatalog;
use super::config::{JobChoices, JobsConfig};
use super::embedded::{EmbeddedSettings, EmbeddedStore};
use super::events::{self, EventPlace, UnrunEnds};
use super::live::LiveOutputs;
use super::moderation::Moderator;
use super::request::JobResult;
use super::run::RunContext;
use super::signals::{JobSignals, JobWatch, StopCause};
use super::store::{
    JobListing, JobStore, ListedJobs, PendingWebhook, SettlementResult, StoreError, StoreStats,
    StoredJob, WebhookSettlement,
};
use super::store_clock::StoreClock;
use super::webhook::{SystemResolver, WebhookClient, WebhookClocks, WebhookSender};
use super::worker::{Worker, WorkerSettings, worker_id};
use crate::files::Files;
use crate::state::Shared;
use crate::telemetry::duty_metrics::JobDuty;

/// Folder of the embedded store in `state_dir`.
const FOLDER: &str = "jobs";
/// Look at a job that is waited for, in case a hint was lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Look at queues that no model serves any more, in case their jobs came after a reload.
const UNSERVED_EVERY: Duration = Duration::from_secs(60);
/// The durable path of a process.
pub struct Jobs {
    pub(super) shared: Arc<Shared>,
    pub(super) store: Arc<EmbeddedStore>,
    signals: Arc<JobSignals>,
    pub(super) clock: StoreClock,
    /// Models that accept jobs.
    pub catalog: Arc<JobCatalog>,
    pub(super) choices: ArcSwap<JobChoices>,
    store_settings: Arc<EmbeddedSettings>,
    worker_settings: Arc<WorkerSettings>,
    pub(super) worker: WorkerId,
    live: Arc<LiveOutputs>,
    pub(super) attempts: Arc<AttemptLog>,
    /// Files of accounts.
    pub files: Arc<Files>,
    /// Notified when another configuration is in force.
    reloaded: Notify,
    webhooks: Arc<WebhookClient>,
    /// A dead letter is to be tried again.
    is_webhook_revived: Arc<AtomicBool>,
    /// Listeners of the configuration that the process was started with: they are bound until it ends.
    bound: Vec<SocketAddr>,
}

impl Jobs {
    /// Opens the store of `state_dir`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn open(
        shared: &Arc<Shared>,
        choices: JobChoices,
        state_dir: &Path,
        (place, files): (EventPlace, Arc<Files>),
    ) -> std::io::Result<Arc<Jobs>> {
        let clock = StoreClock::start(shared.clock);
        let worker = worker_id(&place.node);
        let signals = Arc::new(JobSignals::default());
        let store_settings = Arc::new(EmbeddedSettings::default());
        let worker_settings = Arc::new(WorkerSettings::default());
        set(&choices.jobs, &store_settings, &worker_settings);
        let renderer = UnrunEnds {
            place,
            clock: shared.clock,
        };
        let folder = state_dir.join(FOLDER);
        let store = EmbeddedStore::open(
            &folder,
            clock,
            Arc::clone(&store_settings),
            Arc::clone(&signals),
            Arc::new(renderer),
            Arc::clone(shared.metrics.jobs()),
        )?;
        let catalog = Arc::new(JobCatalog::new(store.deployments()));
        catalog.deployments.set_configured(&choices.deployments);
        let resolver = Box::new(SystemResolver);
        let wall = shared.clock;
        let clocks = WebhookClocks {
            store: Arc::new(move || clock.now()),
            unix_secs: Arc::new(move || wall.unix_secs()),
        };
        let metrics = Arc::clone(shared.metrics.jobs());
        let webhooks =
            WebhookClient::new(&folder, choices.clone(), resolver, None, clocks, metrics);
        let bound = choices.listeners.clone();
        Ok(Arc::new(Jobs {
            bound,
            shared: Arc::clone(shared),
            store: Arc::new(store),
            signals,
            clock,
            catalog,
            choices: ArcSwap::from_pointee(choices),
            store_settings,
            worker_settings,
            worker,
            live: Arc::default(),
            attempts: Arc::default(),
            files,
            reloaded: Notify::new(),
            webhooks: Arc::new(webhooks),
            is_webhook_revived: Arc::default(),
        }))
    }

    /// Applies another configuration.
    pub fn configure(&self, mut choices: JobChoices) {
        // Listeners are bound once.
        choices
            .callbacks_url
            .clone_from(&self.choices.load().callbacks_url);
        choices.keep_listeners(&self.bound);
        set(&choices.jobs, &self.store_settings, &self.worker_settings);
        self.webhooks.configure(&choices);
        self.files.configure(choices.files.clone());
        let deployments = &self.catalog.deployments;
        deployments.set_configured(&choices.deployments);
        self.choices.store(Arc::new(choices));
        // Queues may have got a model, or lost it.
        self.signals.work.notify_one();
        self.reloaded.notify_one();
    }

    /// Returns the choices of the configuration.
    pub fn choices(&self) -> Arc<JobChoices> {
        self.choices.load_full()
    }

    /// Returns the reason for which no job is accepted; none while all is well.
    pub fn problem(&self) -> Option<Arc<str>> {
        self.store.problem()
    }

    /// Runs jobs until `draining` is true, and what is running until its time to end is over.
    pub async fn work(self: Arc<Self>, draining: watch::Receiver<bool>) {
        let context = RunContext {
            shared: Arc::clone(&self.shared),
            store: Arc::clone(&self.store) as _,
            signals: Arc::clone(&self.signals),
            worker: self.worker.clone(),
            clock: self.clock,
            live: Arc::clone(&self.live),
            attempts: Arc::clone(&self.attempts),
            webhooks: Arc::clone(&self.webhooks),
            files: Arc::clone(&self.files),
            kept: Arc::default(),
            moderator: Moderator::default(),
        };
        let catalog = Arc::clone(&self.catalog);
        let settings = Arc::clone(&self.worker_settings);
        let worker = Arc::new(Worker::new(Arc::new(context), catalog, settings));
        let limit = || self.choices().jobs.worker.drain_timeout();
        worker.run(draining, limit).await;
    }

    /// Carries events of ended jobs to the event file, until its future is dropped.
    pub async fn deliver_events(self: Arc<Self>) {
        let store = Arc::clone(&self.store) as _;
        events::deliver(Arc::clone(&self.shared), store, Arc::clone(&self.signals)).await;
    }

    /// Ends queued jobs that no model serves any more, until its future is dropped: at the start, after each reload, and
    /// each minute. A job may be queued again, or come, after the reload that removed its model.
    pub async fn end_unserved(self: Arc<Self>) {
        loop {
            let reloaded = self.reloaded.notified();
            match self.end_unserved_once().await {
                Ok(0) => _ = tokio::time::timeout(UNSERVED_EVERY, reloaded).await,
                // More may be left.
                Ok(_) => {}
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Looks for queues that nothing serves any more.
    pub(super) fn look_for_unserved(&self) {
        self.reloaded.notify_one();
    }

    /// Hints of this process.
    pub(super) fn signals(&self) -> &JobSignals {
        &self.signals
    }

    /// Outputs as they come.
    pub(super) fn outputs(&self) -> &LiveOutputs {
        &self.live
    }

    /// Moment by the store's clock.
    pub(super) fn now(&self) -> StoreTime {
        self.clock.now()
    }

    async fn end_unserved_once(&self) -> Result<usize, StoreError> {
        let mut ended = 0;
        for queue in self.store.stats().await?.deployables {
            if queue.queued == 0 || self.catalog.of_queue(&self.shared, &queue.key).is_some() {
                continue;
            }
            let count = self
                .store
                .end_queued(queue.key.clone(), EndReason::ModelRemoved)
                .await?;
            let queue = queue.key.as_str();
            tracing::warn!(
                queue,
                count,
                "queued jobs of a model that is not served any more have failed"
            );
            ended += count;
        }
        let duties = &self.shared.metrics.jobs().duties;
        duties.record_run(JobDuty::Unserved, ended, self.now().0);
        Ok(ended)
    }

    /// Delivers webhooks of ended jobs, until its future is dropped.
    pub async fn deliver_webhooks(self: Arc<Self>) {
        let sender = WebhookSender::new(
            Arc::clone(&self.store) as _,
            Arc::clone(&self.webhooks),
            Arc::clone(&self.signals),
            Arc::clone(&self.is_webhook_revived),
            Arc::clone(self.shared.metrics.jobs()),
        );
        sender.run().await;
    }

    /// Checks the URL of a receiver by what can be judged without resolving its name.
    ///
    /// # Errors
    /// The refusal for the client.
    pub fn check_webhook(&self, url: &str) -> Result<(), Refusal> {
        let parsed = self.webhooks.parse(url);
        parsed.map(|_| ()).map_err(|error| Refusal::Rejected {
            status: 422,
            pointer: "/webhook".to_owned(),
            message: error.to_string(),
        })
    }

    /// Returns the key that the webhooks of an account are signed with.
    ///
    /// # Errors
    /// None is configured, and none can be kept.
    pub fn webhook_secret(&self, account: &AccountId) -> Result<String, Refusal> {
        self.webhooks.shown_key(account).map_err(|error| {
            tracing::warn!(%error, "the secret of webhooks is not there");
            Refusal::JobsUnavailable
        })
    }

    /// Returns webhooks that wait, or those that were given up, newest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn webhooks(
        &self,
        is_dead: bool,
        limit: usize,
    ) -> Result<Vec<PendingWebhook>, Refusal> {
        let found = self.store.webhooks(is_dead, limit).await;
        found.map_err(|error| unavailable(&error))
    }

    /// Tries a webhook again that was given up.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn retry_webhook(&self, id: &str) -> Result<SettlementResult, Refusal> {
        let revived = WebhookSettlement::Revived(self.clock.now());
        let settled = self
            .store
            .settle_webhook(id.into(), revived, "".into())
            .await;
        let settled = settled.map_err(|error| unavailable(&error))?;
        if settled == SettlementResult::Done {
            self.is_webhook_revived.store(true, Ordering::Release);
            self.signals.webhooks.notify_one();
        }
        Ok(settled)
    }

    /// Delivers the events that wait, once.
    pub async fn flush_events(&self) {
        while let Ok(1..) = events::deliver_some(&self.shared, &*self.store).await {}
    }

    /// Returns a job, with its output so far where it runs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn get(&self, id: JobId) -> Result<Option<StoredJob>, Refusal> {
        let found = self.store.get(id).await;
        let mut found = found.map_err(|error| unavailable(&error))?;
        if let Some(job) = found.as_mut().filter(|job| job.state == JobState::Running)
            && let Some(live) = self.live.get(&id)
        {
            job.result = Some(JobResult::partial(&live.pieces()).to_bytes().into());
        }
        Ok(found)
    }

    /// Returns a watch for changes of a job.
    pub fn watch(&self, id: JobId) -> JobWatch {
        self.signals.watch(id)
    }

    /// Returns jobs, newest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn list(&self, listing: JobListing) -> Result<ListedJobs, Refusal> {
        self.store
            .list(listing)
            .await
            .map_err(|error| unavailable(&error))
    }

    /// Returns counts of the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn stats(&self) -> Result<StoreStats, Refusal> {
        self.store
            .stats()
            .await
            .map_err(|error| unavailable(&error))
    }

    /// Cancels a job: a queued one has ended when this returns, a running one is asked to end.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn cancel(&self, id: JobId, by: CanceledBy) -> Result<CancelResult, Refusal> {
        let canceled = self.store.cancel(id, by).await;
        let canceled = canceled.map_err(|error| unavailable(&error))?;
        if let CancelResult::Requested(_) = canceled {
            self.signals.stop(&id, StopCause::Canceled(by));
        }
        Ok(canceled)
    }

    /// Waits until a job has ended, at most for `limit`; returns it as it is then, with its input.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn wait(&self, id: JobId, limit: Duration) -> Result<Option<StoredJob>, Refusal> {
        let until = Instant::now() + limit;
        let watch = self.signals.watch(id);
        loop {
            let changed = watch.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no end is missed.
            changed.as_mut().enable();
            let found = self.get(id).await?;
            let is_over = found.as_ref().is_none_or(|job| job.state.is_terminal());
            if is_over || Instant::now() >= until || self.shared.drain.is_draining() {
                return Ok(match found {
                    Some(job) => Some(self.with_input(job).await),
                    None => None,
                });
            }
            let look = until.min(Instant::now() + LOOK_EVERY);
            // Either way it is looked at again.
            let _ = tokio::time::timeout_at(look, changed).await;
        }
    }

    /// Stops every run: its job is queued again.
    pub fn release_all(&self) {
        self.signals.stop_all(StopCause::Drain);
    }

    /// Returns whether new jobs are refused because the process ends.
    pub fn is_draining(&self) -> bool {
        self.shared.drain.is_draining()
    }
}

fn set(config: &JobsConfig, store: &EmbeddedSettings, worker: &WorkerSettings) {
    store.keep_ms.store(config.keep().0, Ordering::Relaxed);
    let most = config.worker.concurrency_max;
    worker.concurrency_max.store(most, Ordering::Relaxed);
}

/// Returns what a client gets for a failure of the store.
pub(super) fn unavailable(error: &StoreError) -> Refusal {
    tracing::debug!(%error, "the store of jobs");
    Refusal::JobsUnavailable
}
