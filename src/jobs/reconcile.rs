//! Reconciliation of the runs that a worker holds with those that the store has for it.
//!
//! Not a lease: the store is in the worker's process, or knows it by its lease. A run that nothing works on any more, of a
//! take whose answer was lost or a task that panicked, is queued again within two rounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::job::{HeldJobs, Release, ReleaseCause, StoreTime, TakenJob, WorkerId};
use parking_lot::Mutex;

use super::signals::{JobSignals, StopCause};
use super::store::{JobStore, StoreError};

/// Takes whose runs are not registered yet, by number, with the moment of each.
#[derive(Default)]
struct TakeMoments {
    next: u64,
    started: BTreeMap<u64, StoreTime>,
}

/// Runs of a worker between the store and the signals.
#[derive(Default)]
pub struct HeldRuns {
    /// Held for one change.
    takes: Mutex<TakeMoments>,
    /// Runs whose task has panicked. Held for one change; as many as runs at most.
    panicked: Mutex<Vec<TakenJob>>,
}

impl HeldRuns {
    /// Begins a take. Until the guard is dropped, no run that was taken since counts as nobody's.
    pub fn begin_take(self: &Arc<Self>, now: StoreTime) -> TakeGuard {
        let mut takes = self.takes.lock();
        let number = takes.next;
        takes.next += 1;
        takes.started.insert(number, now);
        drop(takes);
        TakeGuard {
            runs: Arc::clone(self),
            number,
        }
    }

    /// Keeps the run of a task in view, should the task panic.
    pub fn watch(self: &Arc<Self>, taken: &TakenJob) -> PanicGuard {
        PanicGuard {
            runs: Arc::clone(self),
            taken: Some(taken.clone()),
        }
    }

    fn oldest_take(&self, now: StoreTime) -> StoreTime {
        let takes = self.takes.lock();
        let oldest = takes.started.values().next().copied();
        // A take that begins after this look is as recent as this look.
        oldest.map_or(now, |oldest| oldest.min(now))
    }

    /// Queues the runs of panicked tasks again, which counts as an attempt: the job may be the cause. Then compares
    /// what is held with the store. Returns how many runs were nobody's.
    ///
    /// # Errors
    /// The store cannot be written; the next round tries again.
    pub async fn reconcile(
        &self,
        store: &dyn JobStore,
        worker: &WorkerId,
        (signals, now): (&JobSignals, StoreTime),
    ) -> Result<usize, StoreError> {
        self.release_panicked(store, worker).await?;
        // In this order: a run that is registered after the look was taken after `oldest_take`.
        let oldest_take = self.oldest_take(now);
        let held = HeldJobs {
            jobs: signals.running(),
            oldest_take: Some(oldest_take),
        };
        let reply = store.heartbeat(worker, held).await?;
        for job in &reply.lost {
            signals.stop(job, StopCause::Lost);
        }
        // A cancel whose answer came too late for its caller has told nobody here.
        let running = signals.running();
        for (job, by) in &reply.canceled {
            if running.contains(job) {
                signals.stop(job, StopCause::Canceled(*by));
            }
        }
        let orphans = reply.orphans.len();
        if orphans > 0 {
            tracing::warn!(
                orphans,
                "jobs whose take was answered to nobody are queued again"
            );
        }
        Ok(orphans)
    }

    async fn release_panicked(
        &self,
        store: &dyn JobStore,
        worker: &WorkerId,
    ) -> Result<(), StoreError> {
        loop {
            let Some(taken) = self.panicked.lock().pop() else {
                return Ok(());
            };
            let (id, epoch) = (taken.definition.id, taken.progress.epoch);
            tracing::error!(job = %id, epoch, "the run of a job panicked: it is queued again, as an attempt");
            let release = Release {
                id,
                epoch,
                cause: ReleaseCause::WorkerLost,
                not_before: None,
            };
            if let Err(error) = store.release(worker, release).await {
                self.panicked.lock().push(taken);
                return Err(error);
            }
        }
    }
}

/// Take whose run is not registered yet; ends by drop.
pub struct TakeGuard {
    runs: Arc<HeldRuns>,
    number: u64,
}

impl Drop for TakeGuard {
    fn drop(&mut self) {
        self.runs.takes.lock().started.remove(&self.number);
    }
}

/// Run of a task that may panic; noted by drop where it does.
pub struct PanicGuard {
    runs: Arc<HeldRuns>,
    taken: Option<TakenJob>,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(taken) = self.taken.take()
        {
            self.runs.panicked.lock().push(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::job::{JobState, TakeRequest};

    use super::*;
    use crate::jobs::conformance::{id, job};
    use crate::jobs::table_store::TableStore;

    const NOW: StoreTime = StoreTime(1_000_000);

    async fn taken(store: &TableStore, worker: &WorkerId) -> TakenJob {
        store.submit(job(1, "a", NOW)).await.unwrap();
        let request = TakeRequest {
            deployable: "vp-a".into(),
            count: 1,
            turn: 1,
            preferred_flow: None,
        };
        store.take(worker, request).await.unwrap().remove(0).taken
    }

    async fn state(store: &TableStore) -> (JobState, u32) {
        let job = store.get(id(1)).await.unwrap().unwrap();
        (job.state, job.progress.attempts.counted)
    }

    #[tokio::test]
    async fn a_run_whose_take_was_answered_to_nobody_is_queued_again() {
        let (store, worker) = (TableStore::default(), WorkerId::new("w", 1));
        let (runs, signals) = (
            Arc::new(HeldRuns::default()),
            Arc::new(JobSignals::default()),
        );
        let context = (&*signals, NOW + infergate_core::Millis(1));
        let take = runs.begin_take(NOW);
        let run = taken(&store, &worker).await;
        let reconcile = async || runs.reconcile(&store, &worker, context).await.unwrap();
        assert_eq!(reconcile().await, 0, "its take may be on its way");
        let registered = signals.register_run(run.definition.id, run.progress.epoch);
        drop(take);
        assert_eq!(reconcile().await, 0, "it is held");
        drop(registered);
        assert_eq!(reconcile().await, 1);
        assert_eq!(state(&store).await, (JobState::Queued, 0));
    }

    #[tokio::test]
    async fn a_cancel_whose_answer_its_caller_did_not_hear_reaches_the_run() {
        let (store, worker) = (TableStore::default(), WorkerId::new("w", 1));
        let runs = HeldRuns::default();
        let signals = Arc::new(JobSignals::default());
        let run = taken(&store, &worker).await;
        let (_guard, stop) = signals.register_run(run.definition.id, run.progress.epoch);
        let by = infergate_core::job::CanceledBy::User;
        store.cancel(id(1), by).await.unwrap();
        let now = NOW + infergate_core::Millis(1);
        runs.reconcile(&store, &worker, (&signals, now))
            .await
            .unwrap();
        assert_eq!(*stop.borrow(), StopCause::Canceled(by));
    }

    #[tokio::test]
    async fn the_run_of_a_task_that_panics_is_queued_again_as_an_attempt() {
        let (store, worker) = (TableStore::default(), WorkerId::new("w", 1));
        let (runs, signals) = (
            Arc::new(HeldRuns::default()),
            Arc::new(JobSignals::default()),
        );
        let run = taken(&store, &worker).await;
        let guard = runs.watch(&run);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let _guard = guard;
            panic!("a planted panic");
        });
        assert!(tasks.join_next().await.unwrap().is_err());
        drop(runs.watch(&run));
        assert_eq!(
            runs.panicked.lock().len(),
            1,
            "one that ends well is not noted"
        );
        let context = (&*signals, NOW);
        runs.reconcile(&store, &worker, context).await.unwrap();
        assert_eq!(state(&store).await, (JobState::Queued, 1));
    }
}
