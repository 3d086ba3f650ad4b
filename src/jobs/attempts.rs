//! Attempts of jobs in this process: which server, when, with which result and trace.
//!
//! For operators alone: in memory, bounded, and gone with the process. Decisions about a job stand in the store.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::job::{JobId, ReleaseCause, StoreTime};
use infergate_core::trace_context::TraceId;
use parking_lot::Mutex;

/// Jobs whose attempts are known, the latest ones: as many as an operator may look into after a fault.
const JOBS_MAX: usize = 4096;
/// Attempts of one job, the latest ones.
const ATTEMPTS_MAX: usize = 16;

/// Attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobAttempt {
    /// Number of its take.
    pub epoch: u32,
    /// Moment at which it began.
    pub began: StoreTime,
    /// Moment at which its result was known.
    pub ended: Option<StoreTime>,
    /// Endpoint that worked on it last; that of its permit before there is one.
    pub endpoint: Arc<str>,
    /// State or reason of the end, or cause of the release; none while it goes on.
    pub result: Option<&'static str>,
    /// The job ended with it.
    pub is_last: bool,
    /// Trace of its request.
    pub trace: Option<TraceId>,
}

#[derive(Default)]
struct KnownAttempts {
    jobs: HashMap<JobId, VecDeque<JobAttempt>>,
    /// Jobs in the order of their first attempt.
    order: VecDeque<JobId>,
}

/// Attempts of the jobs that ran in this process.
#[derive(Default)]
pub struct AttemptLog {
    /// Held for one look-up.
    attempts: Mutex<KnownAttempts>,
}

impl AttemptLog {
    /// Records the begin of a run.
    pub fn begin(&self, (job, epoch): (JobId, u32), endpoint: &Arc<str>, now: StoreTime) {
        let mut attempts = self.attempts.lock();
        let KnownAttempts { jobs, order } = &mut *attempts;
        let own = jobs.entry(job).or_insert_with(|| {
            order.push_back(job);
            VecDeque::new()
        });
        if own.len() >= ATTEMPTS_MAX {
            own.pop_front();
        }
        own.push_back(JobAttempt {
            epoch,
            began: now,
            ended: None,
            endpoint: Arc::clone(endpoint),
            result: None,
            is_last: false,
            trace: None,
        });
        if order.len() > JOBS_MAX
            && let Some(oldest) = order.pop_front()
        {
            jobs.remove(&oldest);
        }
    }

    /// Records the server and the trace of a run.
    pub fn note(&self, run: (JobId, u32), endpoint: Option<&Arc<str>>, trace: Option<TraceId>) {
        self.change(run, |attempt| {
            if let Some(endpoint) = endpoint {
                attempt.endpoint = Arc::clone(endpoint);
            }
            attempt.trace = trace;
        });
    }

    /// Records the result of a run. The first one counts.
    pub fn end(&self, run: (JobId, u32), (result, is_last): (&'static str, bool), now: StoreTime) {
        self.change(run, |attempt| {
            if attempt.result.is_none() {
                attempt.result = Some(result);
                attempt.is_last = is_last;
                attempt.ended = Some(now);
            }
        });
    }

    fn change(&self, (job, epoch): (JobId, u32), change: impl FnOnce(&mut JobAttempt)) {
        let mut attempts = self.attempts.lock();
        let own = attempts.jobs.get_mut(&job).into_iter().flatten();
        if let Some(attempt) = own.rev().find(|attempt| attempt.epoch == epoch) {
            change(attempt);
        }
    }

    /// Returns whether the attempt before `epoch` lost the server at `url`.
    pub fn has_lost(&self, job: &JobId, epoch: u32, url: &str) -> bool {
        let attempts = self.attempts.lock();
        let own = attempts.jobs.get(job).into_iter().flatten();
        let mut before = own.rev().filter(|attempt| attempt.epoch < epoch);
        before.next().is_some_and(|attempt| {
            attempt.result == Some(ReleaseCause::ServerLost.name()) && *attempt.endpoint == *url
        })
    }

    /// Returns the attempts of a job that are known, the first one first.
    pub fn of(&self, job: &JobId) -> Vec<JobAttempt> {
        let attempts = self.attempts.lock();
        attempts
            .jobs
            .get(job)
            .map_or_else(Vec::new, |own| own.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_attempt_tells_the_server_that_was_lost() {
        let log = AttemptLog::default();
        let job = id(1);
        for (epoch, url, result) in [(1, "http://a", "server_lost"), (2, "http://b", "drain")] {
            log.begin((job, epoch), &Arc::from(url), StoreTime(1));
            log.end((job, epoch), (result, false), StoreTime(2));
        }
        assert!(log.has_lost(&job, 2, "http://a"));
        assert!(!log.has_lost(&job, 2, "http://b"), "another server");
        assert!(!log.has_lost(&job, 3, "http://b"), "not lost");
        assert!(!log.has_lost(&job, 3, "http://a"), "not the latest");
        assert!(!log.has_lost(&job, 1, "http://a"), "no attempt before");
    }

    fn id(n: usize) -> JobId {
        JobId::from_random(None, (n as u128).to_be_bytes())
    }

    #[test]
    fn the_latest_attempts_of_the_latest_jobs_are_known() {
        let log = AttemptLog::default();
        let endpoint = Arc::from("http://a");
        for epoch in 1..=ATTEMPTS_MAX as u32 + 1 {
            log.begin((id(0), epoch), &endpoint, StoreTime(epoch.into()));
            log.end((id(0), epoch), ("no_server", false), StoreTime(90));
        }
        let last = (id(0), ATTEMPTS_MAX as u32 + 1);
        log.end(last, ("succeeded", true), StoreTime(91));
        log.note(last, Some(&Arc::from("http://b")), None);
        let known = log.of(&id(0));
        assert_eq!((known.len(), known[0].epoch), (ATTEMPTS_MAX, 2));
        let known = known.last().unwrap();
        assert_eq!(known.result, Some("no_server"), "the first result counts");
        assert_eq!(&*known.endpoint, "http://b");
        for n in 1..=JOBS_MAX {
            log.begin((id(n), 1), &endpoint, StoreTime(0));
        }
        assert_eq!(log.of(&id(0)), []);
        assert_eq!(log.of(&id(1)).len(), 1);
        assert_eq!(log.attempts.lock().jobs.len(), JOBS_MAX);
    }
}
