//! Hints inside one process: there is work, a job has ended, a run is to stop. Each may be lost without harm.
//!
//! Not the truth, which is the store's: a waiter looks there again each second.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::job::{CanceledBy, DeployableKey, JobId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::files::FileId;

/// Cancels that came before their run was registered. Of older ones the store ends the job after its grace.
const EARLY_MAX: usize = 1024;

/// Files of inputs that wait for their removal: those beyond are left to their own ends.
const FREED_MAX: usize = 4096;

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
    /// A record with a file of its own is gone.
    pub freed: Notify,
    /// Files of inputs whose records are gone. Held for one addition or one look.
    freed_files: Mutex<VecDeque<FileId>>,
    /// Jobs that can be taken, by queue. Held for one look or one update.
    ready: Mutex<HashMap<DeployableKey, usize>>,
    /// Waiters for changes of jobs. Held for one look-up.
    waiters: Mutex<HashMap<JobId, JobWaiters>>,
    /// Runs of this process. Held for one look-up.
    runs: Mutex<Runs>,
}

/// Runs of this process.
#[derive(Default)]
struct Runs {
    /// Epoch of each, and what tells it to stop.
    running: HashMap<JobId, (u32, watch::Sender<StopCause>)>,
    /// Cancels of jobs that were taken a moment ago.
    early: VecDeque<(JobId, StopCause)>,
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

    /// The records of these files of inputs are gone.
    pub fn free_files(&self, files: Vec<FileId>) {
        if files.is_empty() {
            return;
        }
        let mut freed = self.freed_files.lock();
        freed.extend(files);
        freed.truncate(FREED_MAX);
        drop(freed);
        self.freed.notify_one();
    }

    /// Returns a file of an input whose record is gone.
    pub fn next_freed_file(&self) -> Option<FileId> {
        self.freed_files.lock().pop_front()
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

    /// Stops a run. Returns whether it is of this process. A cancel is kept for a run that is not registered yet.
    pub fn stop(&self, job: &JobId, cause: StopCause) -> bool {
        let mut runs = self.runs.lock();
        let Some((_, run)) = runs.running.get(job) else {
            if matches!(cause, StopCause::Canceled(_)) {
                runs.early.truncate(EARLY_MAX - 1);
                runs.early.push_front((*job, cause));
            }
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
        for job in self.running() {
            self.stop(&job, cause);
        }
    }

    /// Jobs that run in this process.
    pub fn running(&self) -> Vec<JobId> {
        self.runs.lock().running.keys().copied().collect()
    }

    /// Registers a run, the `epoch`th of its job; it is forgotten when the guard is dropped.
    pub fn register_run(
        self: &Arc<Self>,
        job: JobId,
        epoch: u32,
    ) -> (RunGuard, watch::Receiver<StopCause>) {
        let mut runs = self.runs.lock();
        let early = runs.early.iter().position(|(early, _)| *early == job);
        let early = early.and_then(|at| runs.early.remove(at));
        let cause = early.map_or(StopCause::None, |(_, cause)| cause);
        let (sender, receiver) = watch::channel(cause);
        runs.running.insert(job, (epoch, sender));
        drop(runs);
        let signals = Arc::clone(self);
        let guard = RunGuard {
            signals,
            job,
            epoch,
        };
        (guard, receiver)
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
    epoch: u32,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let running = &mut self.signals.runs.lock().running;
        // A job that was released may run again before this is dropped.
        if running
            .get(&self.job)
            .is_some_and(|(epoch, _)| *epoch == self.epoch)
        {
            running.remove(&self.job);
        }
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
        let (guard, receiver) = signals.register_run(id(1), 1);
        assert!(signals.stop(&id(1), StopCause::Canceled(CanceledBy::User)));
        signals.stop_all(StopCause::Drain);
        assert_eq!(*receiver.borrow(), StopCause::Canceled(CanceledBy::User));
        assert_eq!(signals.running(), [id(1)]);
        drop(guard);
        assert!(!signals.stop(&id(1), StopCause::Canceled(CanceledBy::User)));
    }

    #[test]
    fn a_cancel_that_comes_before_its_run_is_registered_stops_it() {
        let signals = Arc::new(JobSignals::default());
        let cause = StopCause::Canceled(CanceledBy::User);
        assert!(!signals.stop(&id(1), cause));
        let (_other, others) = signals.register_run(id(2), 1);
        let (_guard, receiver) = signals.register_run(id(1), 1);
        assert_eq!(
            (*others.borrow(), *receiver.borrow()),
            (StopCause::None, cause)
        );
        signals.job_ended(&id(3));
        for number in 0..=EARLY_MAX as u128 {
            signals.stop(&id(10 + number), cause);
        }
        assert_eq!(signals.runs.lock().early.len(), EARLY_MAX);
        assert_eq!(*signals.register_run(id(10), 1).1.borrow(), StopCause::None);
        assert_eq!(*signals.register_run(id(11), 1).1.borrow(), cause);
    }

    #[test]
    fn the_end_of_a_run_leaves_the_next_one_of_its_job() {
        let signals = Arc::new(JobSignals::default());
        let (former, _) = signals.register_run(id(1), 1);
        let (next, receiver) = signals.register_run(id(1), 2);
        drop(former);
        assert!(signals.stop(&id(1), StopCause::Drain));
        assert_eq!(*receiver.borrow(), StopCause::Drain);
        drop(next);
        assert!(signals.running().is_empty());
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
