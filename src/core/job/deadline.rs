//! Deadlines of a job: its own, its lifetime, and the timeout of its run. The earliest ends it.
//!
//! Not a timer: moments are the store's, and the worker watches the span that is left on its own clock.

use serde::{Deserialize, Serialize};

use super::states::EndReason;
use super::store_time::StoreTime;
use crate::Millis;

/// Least time that a job may be given, from its submit.
pub const DEADLINE_MIN: Millis = Millis::from_secs(5);

/// Limits of a job's time, fixed at its submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLimits {
    /// Moment of the job's own deadline, where the user set one.
    pub deadline: Option<StoreTime>,
    /// End of its lifetime.
    pub lifetime: StoreTime,
    /// Time from its first take to its end, milliseconds.
    pub run_timeout_ms: u64,
}

/// End that time has for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextEnd {
    /// Moment of the end.
    pub at: StoreTime,
    /// Its reason.
    pub reason: EndReason,
}

impl JobLimits {
    /// Returns the earliest end of a job whose timeout counts from `started`, once it was taken.
    pub fn next_end(&self, started: Option<StoreTime>) -> NextEnd {
        let lifetime = NextEnd {
            at: self.lifetime,
            reason: EndReason::Lifetime,
        };
        let timeout = started.map(|started| NextEnd {
            at: started + Millis(self.run_timeout_ms),
            reason: EndReason::Timeout,
        });
        let deadline = self.deadline.map(|at| NextEnd {
            at,
            reason: EndReason::Deadline,
        });
        // The user's own deadline first among equals: it is the end that was asked for.
        let candidates = [deadline, timeout].into_iter().flatten();
        candidates.fold(lifetime, |earliest, end| match end.reason {
            EndReason::Deadline if end.at <= earliest.at => end,
            _ if end.at < earliest.at => end,
            _ => earliest,
        })
    }
}

/// Returns the moment of a job's own deadline: the earlier of its two sources.
pub fn own_deadline(
    created: StoreTime,
    cancel_after: Option<Millis>,
    timeout: Option<Millis>,
) -> Option<StoreTime> {
    let timeout = timeout.map(|span| span.max(DEADLINE_MIN));
    let span = [cancel_after, timeout].into_iter().flatten().min()?;
    Some(created + span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATED: StoreTime = StoreTime(1_000_000);

    fn limits(deadline: Option<u64>, lifetime: u64, run: u64) -> JobLimits {
        JobLimits {
            deadline: deadline.map(|ms| CREATED + Millis(ms)),
            lifetime: CREATED + Millis(lifetime),
            run_timeout_ms: run,
        }
    }

    #[test]
    fn the_earliest_of_three_ends_a_job() {
        let started = Some(CREATED + Millis(10));
        for (deadline, lifetime, run, started, reason, at) in [
            (None, 50, 20, None, EndReason::Lifetime, 50),
            (None, 50, 20, started, EndReason::Timeout, 30),
            (None, 50, 60, started, EndReason::Lifetime, 50),
            (Some(20), 50, 60, None, EndReason::Deadline, 20),
            (Some(20), 50, 5, started, EndReason::Timeout, 15),
            (Some(60), 50, 60, started, EndReason::Lifetime, 50),
            (Some(50), 50, 60, started, EndReason::Deadline, 50),
            (Some(30), 50, 20, started, EndReason::Deadline, 30),
        ] {
            let end = limits(deadline, lifetime, run).next_end(started);
            assert_eq!(
                end.at,
                CREATED + Millis(at),
                "{deadline:?} {lifetime} {run}"
            );
            assert_eq!(end.reason, reason, "{deadline:?} {lifetime} {run}");
        }
    }

    #[test]
    fn a_job_has_at_least_five_seconds_and_the_earlier_of_two_wishes() {
        let secs = Millis::from_secs;
        assert_eq!(own_deadline(CREATED, None, None), None);
        let short = own_deadline(CREATED, None, Some(Millis(10)));
        assert_eq!(short, Some(CREATED + secs(5)));
        let both = own_deadline(CREATED, Some(secs(30)), Some(secs(20)));
        assert_eq!(both, Some(CREATED + secs(20)));
    }
}
