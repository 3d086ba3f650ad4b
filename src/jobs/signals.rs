//! Hints inside one process: there is work, a job has ended, a run is to stop. Each may be lost without harm.
//!
//! Not the truth, which is the store's: a waiter looks there again each second.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::job::{CanceledBy, DeployableKey, JobId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// Cause for which a run is to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopCause {
    /// None: the run goes on.
    #[default]
    None,
    /// Its cancel was requested.
    Canceled(CanceledBy),
    /// Its end was written by another.
    Lost,
    /// The worker drains: the run is released.
    Drain,
}

/// Hints of one process.
#[derive(Default)]
pub struct JobSignals {
    /// A job can be taken, or a place in a queue is free.
    pub work: Notify,
    /// An event is in the outbox.
    pub events: Notify,
    /// A webhook is in the outbox.
    pub webhooks: Notify,
    /// Jobs that can be taken, by queue. Held for one look or one update.
    ready: Mutex<HashMap<DeployableKey, usize>>,
    /// Waiters for changes of jobs. Held for one look-up.
    waiters: Mutex<HashMap<JobId, JobWaiters>>,
    /// Runs of this process. Held for one look-up.
    runs: Mutex<HashMap<JobId, watch::Sender<StopCause>>>,
}

struct JobWaiters {
    changed: Arc<Notify>,
    count: usize,
}

impl JobSignals {
    /// Sets how many jobs of the queues can be taken now.
    pub fn set_ready(&self, counts: impl Iterator<Item = (DeployableKey, usize)>) {
        let mut ready = self.ready.lock();
        let mut has_work = false;
        for (key, count) in counts {
            has_work |= count > 0;
            match count {
                0 => _ = ready.remove(&key),
                _ => _ = ready.insert(key, count),
            }
        }
        drop(ready);
        if has_work {
            self.work.notify_one();
        }
    }

    /// No job can be taken: the store does not work.
    pub fn clear_ready(&self) {
        self.ready.lock().clear();
    }

    /// Returns how many jobs of each queue can be taken now.
    pub fn ready(&self) -> Vec<(DeployableKey, usize)> {
        let ready = self.ready.lock();
        ready
            .iter()
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }

    /// Wakes those that wait for changes of a job.
    pub fn job_changed(&self, job: &JobId) {
        if let Some(found) = self.waiters.lock().get(job) {
            found.changed.notify_waiters();
        }
    }

    /// The end of a job was written: wakes waiters, and stops a run of it that goes on here.
    pub fn job_ended(&self, job: &JobId) {
        self.job_changed(job);
        self.stop(job, StopCause::Lost);
    }

    /// Stops a run. Returns whether it is of this process.
    pub fn stop(&self, job: &JobId, cause: StopCause) -> bool {
        let runs = self.runs.lock();
        let Some(run) = runs.get(job) else {
            return false;
        };
        run.send_if_modified(|now| {
            let is_first = *now == StopCause::None;
            if is_first {
                *now = cause;
            }
            is_first
        });
        true
    }

    /// Stops every run.
    pub fn stop_all(&self, cause: StopCause) {
        let runs: Vec<JobId> = self.runs.lock().keys().copied().collect();
        for job in runs {
            self.stop(&job, cause);
        }
    }

    /// Jobs that run in this process.
    pub fn running(&self) -> Vec<JobId> {
        self.runs.lock().keys().copied().collect()
    }

    /// Registers a run; it is forgotten when the guard is dropped.
    pub fn register_run(self: &Arc<Self>, job: JobId) -> (RunGuard, watch::Receiver<StopCause>) {
        let (sender, receiver) = watch::channel(StopCause::None);
        self.runs.lock().insert(job, sender);
        let signals = Arc::clone(self);
        (RunGuard { signals, job }, receiver)
    }

    /// Registers a waiter for changes of a job.
    pub fn watch(self: &Arc<Self>, job: JobId) -> JobWatch {
        let mut waiters = self.waiters.lock();
        let found = waiters.entry(job).or_insert_with(|| JobWaiters {
            changed: Arc::new(Notify::new()),
            count: 0,
        });
        found.count += 1;
        let changed = Arc::clone(&found.changed);
        drop(waiters);
        let signals = Arc::clone(self);
        JobWatch {
            signals,
            job,
            changed,
        }
    }
}

/// Run of this process; forgotten by drop.
pub struct RunGuard {
    signals: Arc<JobSignals>,
    job: JobId,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.signals.runs.lock().remove(&self.job);
    }
}

/// Waiter for changes of a job; forgotten by drop.
pub struct JobWatch {
    signals: Arc<JobSignals>,
    job: JobId,
    /// Notified after each change.
    pub changed: Arc<Notify>,
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        let mut waiters = self.signals.waiters.lock();
        if let Some(found) = waiters.get_mut(&self.job) {
            found.count -= 1;
            if found.count == 0 {
                waiters.remove(&self.job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> JobId {
        JobId::from_random(None, n.to_be_bytes())
    }

    #[test]
    fn a_run_stops_for_the_first_cause_and_is_forgotten_by_drop() {
        let signals = Arc::new(JobSignals::default());
        let (guard, receiver) = signals.register_run(id(1));
        assert!(signals.stop(&id(1), StopCause::Canceled(CanceledBy::User)));
        signals.stop_all(StopCause::Drain);
        assert_eq!(*receiver.borrow(), StopCause::Canceled(CanceledBy::User));
        assert_eq!(signals.running(), [id(1)]);
        drop(guard);
        assert!(!signals.stop(&id(1), StopCause::Canceled(CanceledBy::User)));
    }

    #[test]
    fn waiters_are_forgotten_with_the_last_one() {
        let signals = Arc::new(JobSignals::default());
        let [one, two] = [signals.watch(id(1)), signals.watch(id(1))];
        signals.job_ended(&id(1));
        drop((two, one));
        assert!(signals.waiters.lock().is_empty());
    }

    #[test]
    fn queues_without_work_are_not_kept() {
        let signals = JobSignals::default();
        let key = DeployableKey::from("vp-a");
        signals.set_ready([(key.clone(), 2)].into_iter());
        assert_eq!(signals.ready(), [(key.clone(), 2)]);
        signals.set_ready([(key, 0)].into_iter());
        assert!(signals.ready().is_empty());
    }
}
