//! Rows that the simulated store has committed, and the writes they are made of.
//!
//! Not the table: rows survive a crash of the store, and the table is made of them again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::job::{
    JobDefinition, JobId, JobOutcome, JobProgress, JobState, StoreTime, WorkerId,
};

/// Id of an inference event: the job and the epoch of its end.
pub type JobEventId = (JobId, u32);

/// End of a job as it is kept.
#[derive(Clone, Debug)]
pub struct KeptEnd {
    pub outcome: JobOutcome,
    /// Worker and epoch that the write named, as it was sent.
    pub sent: Option<(WorkerId, u32)>,
    pub charge: u64,
}

impl KeptEnd {
    pub fn new(outcome: JobOutcome, sent: Option<(WorkerId, u32)>) -> KeptEnd {
        let epoch = outcome.progress.epoch;
        let was_running = outcome.progress.owner.is_some();
        let charge = match (outcome.state, outcome.reason) {
            (JobState::Succeeded, _) => work_charge(&outcome.definition.id, epoch),
            (_, Some(reason)) if reason.charges_partial_work(was_running) => 1,
            _ => 0,
        };
        KeptEnd {
            outcome,
            sent,
            charge,
        }
    }

    pub fn job(&self) -> JobId {
        self.outcome.definition.id
    }

    pub fn event(&self) -> JobEventId {
        (self.job(), self.outcome.progress.epoch)
    }
}

/// Neurons of a success: another number for each job and epoch.
fn work_charge(id: &JobId, epoch: u32) -> u64 {
    let sum: u64 = id.as_str().bytes().map(u64::from).sum();
    10 + (sum * 31 + u64::from(epoch)) % 97
}

/// Write of the store.
#[derive(Clone, Debug)]
pub enum StoreWrite {
    Submitted(Arc<JobDefinition>),
    Progressed(JobId, JobProgress),
    Ended(Box<KeptEnd>),
    /// Event and webhook of an end.
    Outbox {
        event: JobEventId,
        charge: u64,
        has_webhook: bool,
    },
    EventSettled(JobEventId),
    WebhookTried {
        job: JobId,
        next: StoreTime,
    },
    WebhookSettled {
        job: JobId,
        is_dead: bool,
    },
}

/// Job that has not ended, as it is kept.
#[derive(Clone, Debug)]
pub struct KeptJob {
    /// Place in the order of submits.
    pub order: u64,
    pub definition: Arc<JobDefinition>,
    pub progress: JobProgress,
}

/// Webhook that is neither delivered nor dead.
#[derive(Clone, Copy, Debug)]
pub struct OpenWebhook {
    pub attempts: u32,
    pub next: StoreTime,
}

/// Rows of the store.
#[derive(Clone, Debug, Default)]
pub struct KeptJobs {
    pub live: BTreeMap<JobId, KeptJob>,
    pub ended: BTreeMap<JobId, KeptEnd>,
    /// Charges of events that are not on disk yet.
    pub events: BTreeMap<JobEventId, u64>,
    pub settled_events: BTreeSet<JobEventId>,
    pub webhooks: BTreeMap<JobId, OpenWebhook>,
    /// Settled webhooks; true for a dead letter.
    pub settled_webhooks: BTreeMap<JobId, bool>,
    next_order: u64,
}

impl KeptJobs {
    /// Rows after these writes.
    pub fn replay<'a>(writes: impl Iterator<Item = &'a StoreWrite>) -> KeptJobs {
        let mut kept = KeptJobs::default();
        writes.for_each(|write| kept.apply(write));
        kept
    }

    pub fn apply(&mut self, write: &StoreWrite) {
        match write {
            StoreWrite::Submitted(definition) => {
                let job = KeptJob {
                    order: self.next_order,
                    definition: Arc::clone(definition),
                    progress: JobProgress::default(),
                };
                self.next_order += 1;
                self.live.insert(definition.id, job);
            }
            StoreWrite::Progressed(id, progress) => {
                if let Some(job) = self.live.get_mut(id) {
                    job.progress = progress.clone();
                }
            }
            StoreWrite::Ended(end) => {
                self.live.remove(&end.job());
                self.ended.insert(end.job(), (**end).clone());
            }
            StoreWrite::Outbox {
                event,
                charge,
                has_webhook,
            } => {
                self.events.insert(*event, *charge);
                if *has_webhook {
                    let open = OpenWebhook {
                        attempts: 0,
                        next: StoreTime::default(),
                    };
                    self.webhooks.insert(event.0, open);
                }
            }
            StoreWrite::EventSettled(event) => {
                if self.events.remove(event).is_some() {
                    self.settled_events.insert(*event);
                }
            }
            StoreWrite::WebhookTried { job, next } => {
                if let Some(open) = self.webhooks.get_mut(job) {
                    open.attempts += 1;
                    open.next = *next;
                }
            }
            StoreWrite::WebhookSettled { job, is_dead } => {
                if self.webhooks.remove(job).is_some() {
                    self.settled_webhooks.insert(*job, *is_dead);
                }
            }
        }
    }

    /// Jobs that have not ended, in the order of their submits.
    pub fn in_order(&self) -> Vec<&KeptJob> {
        let mut jobs: Vec<_> = self.live.values().collect();
        jobs.sort_unstable_by_key(|job| job.order);
        jobs
    }

    /// Returns whether an end has its event and its webhook, settled or not.
    pub fn is_announced(&self, end: &KeptEnd) -> bool {
        let event = end.event();
        let has_event = self.events.contains_key(&event) || self.settled_events.contains(&event);
        let job = end.job();
        let has_webhook = self.webhooks.contains_key(&job)
            || self.settled_webhooks.contains_key(&job)
            || !end.outcome.definition.has_webhook;
        has_event && has_webhook
    }

    /// Returns whether nothing is left to do.
    pub fn is_quiet(&self) -> bool {
        self.live.is_empty() && self.events.is_empty() && self.webhooks.is_empty()
    }
}

/// Writes with the moment of their commit.
pub type CommitLog = Vec<(Millis, StoreWrite)>;
