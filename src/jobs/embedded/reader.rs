//! Thread that reads committed rows of the embedded store.
//!
//! Writes nothing, and waits for no writer: a reader of a write-ahead log sees the last commit before its query.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use infergate_core::AccountId;
use infergate_core::job::{JobId, StoreTime};

use super::database::{Access, Database};
use super::shared::{OwnerShared, Reply};
use super::webhook_rows::{webhooks, webhooks_after};
use crate::jobs::store::{
    FormerSubmit, IdempotencyKey, JobListing, ListedJobs, PendingEvent, PendingWebhook, RemovedJob,
    StoreError, StoredJob,
};

/// Call that reads.
pub(super) enum Query {
    Job(JobId, Reply<Option<StoredJob>>),
    Former(
        AccountId,
        IdempotencyKey,
        StoreTime,
        Reply<Option<FormerSubmit>>,
    ),
    Removed(JobId, Reply<Option<RemovedJob>>),
    List(JobListing, Reply<ListedJobs>),
    Events(usize, Reply<Vec<PendingEvent>>),
    NewWebhooks(usize, Reply<Vec<PendingWebhook>>),
    Webhooks(bool, usize, Reply<Vec<PendingWebhook>>),
}

impl Query {
    /// Returns the name in metrics.
    pub fn verb(&self) -> &'static str {
        match self {
            Query::Job(..) => "get",
            Query::Former(..) => "former_submit",
            Query::Removed(..) => "removed",
            Query::List(..) => "list",
            Query::Events(..) => "pending_events",
            Query::NewWebhooks(..) => "new_webhooks",
            Query::Webhooks(..) => "webhooks",
        }
    }

    fn refuse(self, error: StoreError) {
        match self {
            Query::Job(_, reply) => reply.send(Err(error)),
            Query::Former(.., reply) => reply.send(Err(error)),
            Query::Removed(_, reply) => reply.send(Err(error)),
            Query::List(_, reply) => reply.send(Err(error)),
            Query::Events(_, reply) => reply.send(Err(error)),
            Query::NewWebhooks(_, reply) | Query::Webhooks(_, _, reply) => reply.send(Err(error)),
        }
    }
}

/// Reader of committed rows.
pub(super) struct StoreReader {
    shared: Arc<OwnerShared>,
    waiting: Receiver<Query>,
    database: Option<Database>,
    /// Place of the last delivery that was returned as new.
    webhook_place: i64,
}

impl StoreReader {
    pub fn new(shared: Arc<OwnerShared>, waiting: Receiver<Query>) -> StoreReader {
        StoreReader {
            shared,
            waiting,
            database: None,
            webhook_place: 0,
        }
    }

    /// Answers queries until the handle is dropped.
    pub fn run(mut self) {
        while let Ok(query) = self.waiting.recv() {
            if self.database.is_none() {
                self.database = Database::open(&self.shared.path, Access::Read).ok();
            }
            match self.database.take() {
                Some(database) => {
                    let answer = AssertUnwindSafe(|| self.answer(&database, query));
                    // After a panic its caller is told, and the next query has another connection.
                    let is_good = catch_unwind(answer).unwrap_or(false);
                    self.database = is_good.then_some(database);
                }
                None => {
                    let problem = self.shared.problem.lock().clone();
                    let problem = problem.unwrap_or_else(|| "it cannot be read".into());
                    query.refuse(StoreError::Unavailable(problem));
                }
            }
        }
    }

    /// Answers a query. Returns false when the connection is to be opened again.
    fn answer(&mut self, database: &Database, query: Query) -> bool {
        let is_handed_over = self.shared.is_handed_over.load(Ordering::Acquire);
        match query {
            Query::Events(_, reply) if is_handed_over => send(Ok(Vec::new()), reply),
            Query::NewWebhooks(_, reply) if is_handed_over => send(Ok(Vec::new()), reply),
            Query::Job(id, reply) => send(database.job(&id), reply),
            Query::Former(account, key, now, reply) => {
                let used = database.used_key(account.as_str(), &key.key, now);
                let former = used.map(|used| used.map(|used| used.as_former(&key)));
                send(former, reply)
            }
            Query::Removed(id, reply) => send(database.removed_job(&id), reply),
            Query::List(listing, reply) => send(database.list(&listing), reply),
            Query::Events(limit, reply) => send(database.pending_events(limit), reply),
            Query::Webhooks(is_dead, limit, reply) => {
                send(webhooks(database, is_dead, limit), reply)
            }
            Query::NewWebhooks(limit, reply) => {
                let found = webhooks_after(database, self.webhook_place, limit);
                if let Ok(found) = &found
                    && let Some((place, _)) = found.last()
                {
                    self.webhook_place = *place;
                }
                let found = found.map(|found| found.into_iter().map(|(_, one)| one).collect());
                send(found, reply)
            }
        }
    }
}

fn send<T>(result: rusqlite::Result<T>, reply: Reply<T>) -> bool {
    let is_good = result.is_ok();
    reply.send(result.map_err(|error| StoreError::Unavailable(error.to_string().into())));
    is_good
}
