//! Attempts of a job, and the delay before it runs again.
//!
//! Not the retries within one run, which are the request pipeline's. A release is a run that ended without a result.

use serde::{Deserialize, Serialize};

use super::states::EndReason;
use crate::Millis;

/// Releases of one job without a counted attempt: beyond, no server will ever take it.
pub const UNCOUNTED_MAX: u32 = 100;
/// Longest delay after a refusal by every server.
const DELAY_MAX: Millis = Millis::from_secs(30);

/// Cause of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseCause {
    /// The worker drains.
    Drain,
    /// The account's neurons are used up, or its pace is.
    QuotaWait,
    /// The reply of a take was lost.
    LostReply,
    /// No server could be reached, or none had room, before work began; or the files of the input could not be read.
    NoServer,
    /// The server or the connection was lost after work may have begun.
    ServerLost,
    /// The worker was lost.
    WorkerLost,
}

impl ReleaseCause {
    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ReleaseCause::Drain => "drain",
            ReleaseCause::QuotaWait => "quota_wait",
            ReleaseCause::LostReply => "lost_reply",
            ReleaseCause::NoServer => "no_server",
            ReleaseCause::ServerLost => "server_lost",
            ReleaseCause::WorkerLost => "worker_lost",
        }
    }

    /// Returns whether work may have begun, so that the attempt counts.
    pub const fn counts(self) -> bool {
        matches!(self, ReleaseCause::ServerLost | ReleaseCause::WorkerLost)
    }
}

/// Attempts of a job so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptCounts {
    /// Attempts that count against the limit.
    pub counted: u32,
    /// Releases because no server took the job.
    pub refused: u32,
}

/// Decision after a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseDecision {
    /// The job is queued again, not before this delay.
    Again(Millis),
    /// The job has failed.
    End(EndReason),
}

impl AttemptCounts {
    /// Counts a release and decides what follows. `attempts_max` is at least 1.
    pub fn release(&mut self, cause: ReleaseCause, attempts_max: u32) -> ReleaseDecision {
        match cause {
            ReleaseCause::Drain | ReleaseCause::QuotaWait | ReleaseCause::LostReply => {
                ReleaseDecision::Again(Millis::ZERO)
            }
            ReleaseCause::NoServer => {
                self.refused = self.refused.saturating_add(1);
                match self.refused >= UNCOUNTED_MAX {
                    true => ReleaseDecision::End(EndReason::NoServer),
                    false => ReleaseDecision::Again(refusal_delay(self.refused)),
                }
            }
            ReleaseCause::ServerLost | ReleaseCause::WorkerLost => {
                self.counted = self.counted.saturating_add(1);
                match self.counted >= attempts_max {
                    false => ReleaseDecision::Again(Millis::ZERO),
                    true if cause == ReleaseCause::WorkerLost => {
                        ReleaseDecision::End(EndReason::WorkerLost)
                    }
                    true => ReleaseDecision::End(EndReason::ServerLost),
                }
            }
        }
    }
}

/// Delay after the given number of refusals: 1, 2, 4 … 30 s.
fn refusal_delay(refusals: u32) -> Millis {
    let doublings = refusals.saturating_sub(1).min(5);
    Millis::from_secs(1 << doublings).min(DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_wait_longer_each_time_and_end_after_a_hundred() {
        let mut counts = AttemptCounts::default();
        let mut delays = Vec::new();
        loop {
            match counts.release(ReleaseCause::NoServer, 3) {
                ReleaseDecision::Again(delay) => delays.push(delay.0 / 1000),
                ReleaseDecision::End(reason) => {
                    assert_eq!(reason, EndReason::NoServer);
                    break;
                }
            }
        }
        assert_eq!(delays[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!((delays.len(), counts.counted), (99, 0));
    }

    #[test]
    fn a_poison_job_has_as_many_servers_as_attempts() {
        let mut counts = AttemptCounts::default();
        let again = ReleaseDecision::Again(Millis::ZERO);
        assert_eq!(counts.release(ReleaseCause::ServerLost, 3), again);
        assert_eq!(counts.release(ReleaseCause::Drain, 3), again);
        assert_eq!(counts.release(ReleaseCause::WorkerLost, 3), again);
        let end = counts.release(ReleaseCause::ServerLost, 3);
        assert_eq!(end, ReleaseDecision::End(EndReason::ServerLost));
        let mut training = AttemptCounts::default();
        let end = training.release(ReleaseCause::WorkerLost, 1);
        assert_eq!(end, ReleaseDecision::End(EndReason::WorkerLost));
    }
}
