//! Task that delivers the ends of jobs: takes entries of the outbox, attempts them in the core's order, settles them.
//!
//! Not the place of an entry, which is the store's until it is delivered: whatever is lost here is found there at the
//! next start. Bodies are made for each attempt. Bounded by the [`ReceiverLimits`] of the order that it shares with the
//! notices of runs.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use hashbrown::HashMap;
use infergate_core::Millis;
use infergate_core::job::receivers::{DeliveryAdmission, DeliveryId, ReceiverLimits};
use infergate_core::job::webhook::{DeliveryDecision, DeliveryResult, WebhookEvent};
use infergate_core::job::{JobId, StoreTime};
use tokio::time::Instant;

use super::client::{AttemptReport, WebhookClient, WebhookMessage};
use super::delivery_queue::DeliveryQueue;
use crate::jobs::object::{ShownStatus, replicate_object};
use crate::jobs::request::StoredRequest;
use crate::jobs::signals::JobSignals;
use crate::jobs::store::{JobStore, PendingWebhook, StoredJob, WebhookSettlement};
use crate::telemetry::job_metrics::JobMetrics;

/// Entries that are taken from the outbox at once.
const LOOK_MAX: usize = 256;
/// Look at the outbox while something waits, in case a hint was lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause before another try to read or write the store.
const STORE_RETRY: Duration = Duration::from_millis(500);
/// Result of a delivery whose job is not kept any more.
const JOB_GONE: &str = "the job is gone";
/// Result of a delivery that newer ones of its account took the place of.
const DISPLACED: &str = "too many messages wait";

/// Parts that attempts use.
struct AttemptContext {
    store: Arc<dyn JobStore>,
    client: Arc<WebhookClient>,
    metrics: Arc<JobMetrics>,
}

/// End of an attempt, settled in the store.
struct AttemptEnd {
    delivery: DeliveryId,
    /// None where no attempt was made: the job is gone.
    result: Option<DeliveryResult>,
    decision: DeliveryDecision,
}

/// Sender of one process.
pub struct WebhookSender {
    context: Arc<AttemptContext>,
    signals: Arc<JobSignals>,
    /// Deliveries in memory; the others stay in the store.
    pending_max: usize,
    pending_max_per_account: usize,
    entries: HashMap<DeliveryId, PendingWebhook>,
    numbers: HashMap<Arc<str>, DeliveryId>,
    in_flight: FuturesUnordered<BoxFuture<'static, AttemptEnd>>,
    /// Set by others: an entry that was dead is live again.
    revived: Arc<AtomicBool>,
    /// New entries may have been missed: all live ones are to be listed.
    must_list: bool,
    looked_at: Instant,
}

impl WebhookSender {
    /// Creates a sender without a delivery. `revived` is set when an entry that was dead is live again.
    pub fn new(
        store: Arc<dyn JobStore>,
        client: Arc<WebhookClient>,
        signals: Arc<JobSignals>,
        revived: Arc<AtomicBool>,
        metrics: Arc<JobMetrics>,
    ) -> WebhookSender {
        let pending_max_per_account = client.choices().jobs.webhooks.pending_max_per_account;
        WebhookSender {
            context: Arc::new(AttemptContext {
                store,
                client,
                metrics,
            }),
            signals,
            pending_max: ReceiverLimits::default().pending_max,
            pending_max_per_account,
            entries: HashMap::new(),
            numbers: HashMap::new(),
            in_flight: FuturesUnordered::new(),
            revived,
            must_list: false,
            looked_at: Instant::now(),
        }
    }

    /// Delivers until its future is dropped; attempts under way are made again at the next start.
    pub async fn run(mut self) {
        let signals = Arc::clone(&self.signals);
        self.look().await;
        loop {
            self.start_due();
            self.context
                .metrics
                .webhooks
                .set_pending(self.entries.len());
            let (rest, is_pending) = (self.rest(), self.is_pending());
            let due = async {
                match is_pending {
                    true => tokio::time::sleep(rest).await,
                    false => std::future::pending().await,
                }
            };
            let client = Arc::clone(&self.context.client);
            tokio::select! {
                () = signals.webhooks.notified() => self.look().await,
                () = client.deliveries.changed.notified() => {}
                Some(end) = self.in_flight.next() => self.finish(end),
                () = due => {
                    if self.looked_at.elapsed() >= LOOK_EVERY {
                        self.look().await;
                    }
                }
            }
        }
    }

    fn deliveries(&self) -> &DeliveryQueue {
        &self.context.client.deliveries
    }

    /// Returns whether something waits for its time, be it a notice.
    fn is_pending(&self) -> bool {
        self.must_list || !self.entries.is_empty() || self.deliveries().next_due().is_some()
    }

    /// Time until a delivery is due or the next look.
    fn rest(&self) -> Duration {
        let look = LOOK_EVERY.saturating_sub(self.looked_at.elapsed());
        let due = self.deliveries().next_due();
        let now = self.deliveries().now();
        let due = due.map(|due| Duration::from_millis(due.since(now).0));
        due.map_or(look, |due| due.min(look))
    }

    /// Takes what is new in the outbox. Deliveries under way go on meanwhile: a long list costs none its time. Ends
    /// of deliveries are noted afterwards, as an answer from before their end may still name them.
    async fn look(&mut self) {
        let mut in_flight = mem::take(&mut self.in_flight);
        let mut ends = Vec::new();
        {
            let mut taken = pin!(self.take_new());
            loop {
                tokio::select! {
                    () = &mut taken => break,
                    Some(end) = in_flight.next() => ends.push(end),
                }
            }
        }
        self.in_flight = in_flight;
        for end in ends {
            self.finish(end);
        }
    }

    async fn take_new(&mut self) {
        self.looked_at = Instant::now();
        let mut displaced = self.apply_bound();
        self.must_list |= self.revived.swap(false, Ordering::AcqRel);
        // A list that does not fit is read again when half of what waits is delivered.
        if self.must_list && self.entries.len() <= self.pending_max / 2 {
            self.must_list = false;
            let live = self.context.store.webhooks(false, self.pending_max);
            match live.await {
                // Newest first; the oldest are sent first.
                Ok(live) => self.admit_all(live.into_iter().rev(), &mut displaced).await,
                Err(_) => self.must_list = true,
            }
        }
        let room = self.pending_max.saturating_sub(self.entries.len());
        let limit = room.min(LOOK_MAX);
        if limit > 0 {
            match self.context.store.new_webhooks(limit).await {
                Ok(found) => {
                    if found.len() == limit {
                        // There may be more; what is due goes out first.
                        self.signals.webhooks.notify_one();
                    }
                    self.admit_all(found.into_iter(), &mut displaced).await;
                }
                // Entries of an answer that came too late are not returned as new again.
                Err(_) => self.must_list = true,
            }
        }
        self.bury(displaced).await;
    }

    /// Applies a bound that a reload has changed. Returns those that are to be dead letters now.
    fn apply_bound(&mut self) -> Vec<(Arc<str>, &'static str)> {
        let choices = self.context.client.choices();
        let max = choices.jobs.webhooks.pending_max_per_account;
        if max == self.pending_max_per_account {
            return Vec::new();
        }
        self.pending_max_per_account = max;
        let beyond = self
            .deliveries()
            .set_pending_max_per_account(max)
            .into_iter();
        let entries = beyond.filter_map(|oldest| self.forget(oldest));
        entries.map(|entry| (entry.id, DISPLACED)).collect()
    }

    async fn admit_all(
        &mut self,
        found: impl Iterator<Item = PendingWebhook>,
        displaced: &mut Vec<(Arc<str>, &'static str)>,
    ) {
        for entry in found {
            if let Some(dead) = self.admit(entry).await {
                displaced.push(dead);
            }
        }
    }

    /// Adds an entry to those that wait. Returns one that is to be a dead letter now.
    async fn admit(&mut self, entry: PendingWebhook) -> Option<(Arc<str>, &'static str)> {
        if let Some(known) = self.numbers.get(&entry.id) {
            // Settled, perhaps also revived, while its attempt is not finished here: listed again.
            let known = self.entries.get(known);
            self.must_list |= known.is_some_and(|known| entry.due != known.due);
            return None;
        }
        let job = match self.context.store.get(entry.job).await {
            Ok(job) => job,
            Err(_) => {
                self.must_list = true;
                return None;
            }
        };
        let Some(AddressedJob { job, url, .. }) = job.and_then(AddressedJob::of) else {
            return Some((entry.id, JOB_GONE));
        };
        let receiver = self.context.client.receiver_key(&url);
        let account = &job.definition.account;
        let (delivery, admission) = self
            .deliveries()
            .add(&receiver, account, Millis(entry.due.0));
        let displaced = match admission {
            DeliveryAdmission::Known => return None,
            DeliveryAdmission::Full => {
                self.must_list = true;
                return None;
            }
            DeliveryAdmission::Waiting => None,
            DeliveryAdmission::Displaced(oldest) => Some(oldest),
        };
        self.numbers.insert(Arc::clone(&entry.id), delivery);
        self.entries.insert(delivery, entry);
        let oldest = self.forget(displaced?)?;
        Some((oldest.id, DISPLACED))
    }

    fn forget(&mut self, delivery: DeliveryId) -> Option<PendingWebhook> {
        let entry = self.entries.remove(&delivery)?;
        self.numbers.remove(&entry.id);
        Some(entry)
    }

    /// Makes entries dead letters without an attempt.
    async fn bury(&mut self, dead: Vec<(Arc<str>, &'static str)>) {
        let store = &self.context.store;
        let writes = dead.into_iter().map(|(id, result)| {
            tracing::warn!(id = &*id, result, "a webhook is a dead letter");
            self.context.metrics.webhooks.record_dead();
            store.settle_webhook(id, WebhookSettlement::Displaced, result.into())
        });
        let written = join_all(writes).await;
        self.must_list |= written.iter().any(Result::is_err);
    }

    /// Starts what is due.
    fn start_due(&mut self) {
        while let Some(delivery) = self.deliveries().next() {
            let Some(entry) = self.entries.get(&delivery).cloned() else {
                self.deliveries().remove(delivery);
                continue;
            };
            let context = Arc::clone(&self.context);
            self.in_flight.push(Box::pin(
                async move { context.attempt(delivery, entry).await },
            ));
        }
    }

    fn finish(&mut self, end: AttemptEnd) {
        let AttemptEnd {
            delivery,
            result,
            decision,
        } = end;
        match result {
            Some(result) => self.deliveries().finish(delivery, result, decision),
            None => self.deliveries().remove(delivery),
        }
        match decision {
            DeliveryDecision::RetryAt(due) => {
                if let Some(entry) = self.entries.get_mut(&delivery) {
                    entry.attempts += 1;
                    entry.due = StoreTime(due.0);
                }
            }
            DeliveryDecision::Done | DeliveryDecision::Dead => _ = self.forget(delivery),
        }
    }
}

impl Drop for WebhookSender {
    /// Gives the places in the order back: a later sender reads its entries from the store.
    fn drop(&mut self) {
        for delivery in self.entries.keys() {
            self.deliveries().remove(*delivery);
        }
    }
}

impl AttemptContext {
    /// Makes an attempt and writes what came of it.
    async fn attempt(&self, delivery: DeliveryId, entry: PendingWebhook) -> AttemptEnd {
        let report = match self.job(entry.job).await.and_then(AddressedJob::of) {
            Some(addressed) => Some(self.deliver(&entry, &addressed).await),
            None => None,
        };
        let now = self.client.deliveries.now();
        let attempts = entry.attempts.saturating_add(1);
        let (result, decision, text) = match report {
            Some(AttemptReport { result, text }) => {
                let decision = result.decide(attempts, fastrand::u64(..), now);
                (Some(result), decision, text)
            }
            None => (None, DeliveryDecision::Dead, JOB_GONE.into()),
        };
        let settlement = match decision {
            DeliveryDecision::Done => WebhookSettlement::Delivered,
            DeliveryDecision::Dead => WebhookSettlement::Dead,
            DeliveryDecision::RetryAt(due) => WebhookSettlement::RetryAt(StoreTime(due.0)),
        };
        if settlement == WebhookSettlement::Dead {
            tracing::warn!(
                id = &*entry.id,
                result = &*text,
                "a webhook is a dead letter"
            );
            self.metrics.webhooks.record_dead();
        }
        self.settle(&entry.id, settlement, text).await;
        AttemptEnd {
            delivery,
            result,
            decision,
        }
    }

    async fn deliver(&self, entry: &PendingWebhook, addressed: &AddressedJob) -> AttemptReport {
        let job = &addressed.job;
        let body = replicate_object(&self.client.choices(), job, ShownStatus::Present);
        let message = WebhookMessage {
            account: &job.definition.account,
            url: &addressed.url,
            id: &entry.id,
            event: WebhookEvent::Completed,
            body: body.into(),
            traceparent: addressed.traceparent.as_deref(),
        };
        let report = self.client.deliver(message).await;
        if report.result == DeliveryResult::Accepted
            && let Some(ended) = job.ended
        {
            let delay = self.client.deliveries.now().since(Millis(ended.0));
            self.metrics.webhooks.record_delay(delay.0);
        }
        report
    }

    /// Reads a job, as often as it takes: the delivery keeps its place meanwhile.
    async fn job(&self, id: JobId) -> Option<StoredJob> {
        loop {
            match self.store.get(id).await {
                Ok(job) => return job,
                Err(_) => tokio::time::sleep(STORE_RETRY).await,
            }
        }
    }

    /// Writes a result, as often as it takes: nothing is sent twice because a disk was full.
    async fn settle(&self, id: &Arc<str>, settlement: WebhookSettlement, text: Arc<str>) {
        loop {
            let (id, text) = (Arc::clone(id), Arc::clone(&text));
            let written = self.store.settle_webhook(id, settlement.clone(), text);
            match written.await {
                Ok(_) => return,
                Err(_) => tokio::time::sleep(STORE_RETRY).await,
            }
        }
    }
}

/// Job with its receiver.
struct AddressedJob {
    job: StoredJob,
    url: Arc<str>,
    /// `traceparent` of the submit.
    traceparent: Option<Arc<str>>,
}

impl AddressedJob {
    /// Returns none where the job has no receiver.
    fn of(job: StoredJob) -> Option<AddressedJob> {
        let request = StoredRequest::read(&job.payload).ok()?;
        Some(AddressedJob {
            job,
            url: request.webhook?,
            traceparent: request.traceparent,
        })
    }
}
