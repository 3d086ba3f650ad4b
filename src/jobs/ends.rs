//! Meaning of a finished run for its job: end, release, or nothing, with the charge that follows.
//!
//! Not the write of it. Decided by the refusal of the pipeline, the status of the response, and why the run stopped.

use infergate_core::job::{EndReason, JobState, ReleaseCause, StoreTime};
use infergate_core::model::WhenQuotaUsed;
use infergate_core::{Millis, Refusal};

use super::signals::StopCause;
use crate::telemetry::RequestOutcome;

/// Wait of a job whose account's neurons are held by others.
const QUOTA_WAIT: Millis = Millis(1000);
/// Longest wait of a job whose account is over its pace: tokens of others may come back sooner.
const QUOTA_WAIT_MAX: Millis = Millis(30_000);

/// Facts of a finished run.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// Refusal of the pipeline; none where a response was sent.
    pub refusal: Option<Refusal>,
    /// Status of the response; 0 where there was none.
    pub status: u16,
    /// The response broke off.
    pub is_cut: bool,
    /// Cause for which the run was to stop.
    pub stop: StopCause,
    /// Reason of the end by time, where the run's deadline has passed.
    pub time_over: Option<EndReason>,
    /// The output was larger than it may be.
    pub is_too_large: bool,
    /// The output could not be put into files.
    pub is_unstored: bool,
    /// A model server may have begun to work.
    pub was_sent: bool,
    /// The answer tells an error of the model, or has a form that is none of its kind's.
    pub has_error: bool,
    /// Rule for a quota that is used up.
    pub when_quota_used: WhenQuotaUsed,
}

/// Decision on a finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunDecision {
    /// The job ends.
    End {
        /// State.
        state: JobState,
        /// Reason; none of a success.
        reason: Option<EndReason>,
        /// Charged for the work that was done.
        is_charged: bool,
    },
    /// The job is queued again.
    Release(ReleaseCause),
    /// The job waits for the next day.
    WaitForQuota,
    /// The job is not this run's any more.
    Nothing,
}

fn failed(reason: EndReason) -> RunDecision {
    RunDecision::End {
        state: reason.state(true),
        reason: Some(reason),
        is_charged: reason.charges_partial_work(true),
    }
}

/// Decides what a finished run means.
pub fn decide(facts: &RunFacts) -> RunDecision {
    match facts.stop {
        StopCause::Lost => return RunDecision::Nothing,
        StopCause::Drain => return RunDecision::Release(ReleaseCause::Drain),
        StopCause::Canceled(by) => return failed(by.reason()),
        StopCause::None => {}
    }
    if facts.is_too_large {
        return failed(EndReason::OutputTooLarge);
    }
    if let Some(refusal) = &facts.refusal {
        return decide_refusal(refusal, facts);
    }
    if let Some(reason) = facts.time_over.filter(|_| facts.is_cut) {
        return failed(reason);
    }
    match facts.status {
        200..300 if facts.has_error => failed(EndReason::ModelError),
        200..300 if facts.is_cut => RunDecision::Release(ReleaseCause::ServerLost),
        200..300 if facts.is_unstored => failed(EndReason::OutputStoreFailed),
        200..300 => RunDecision::End {
            state: JobState::Succeeded,
            reason: None,
            is_charged: true,
        },
        400 | 413 | 415 | 422 => failed(EndReason::InvalidInput),
        409 | 429 | 503 => RunDecision::Release(ReleaseCause::NoServer),
        500..600 => RunDecision::Release(ReleaseCause::ServerLost),
        0 if facts.was_sent => RunDecision::Release(ReleaseCause::ServerLost),
        0 => RunDecision::Release(ReleaseCause::NoServer),
        _ => failed(EndReason::ModelError),
    }
}

fn decide_refusal(refusal: &Refusal, facts: &RunFacts) -> RunDecision {
    match refusal {
        Refusal::DeadlinePassed => failed(facts.time_over.unwrap_or(EndReason::Timeout)),
        Refusal::NoSuchModel => failed(EndReason::ModelRemoved),
        Refusal::NotAllowed | Refusal::Unauthenticated => failed(EndReason::NotPermitted),
        Refusal::BadRequest { .. }
        | Refusal::Rejected { .. }
        | Refusal::NotSupported(_)
        | Refusal::NoSuchFinetune
        | Refusal::FinetuneIncomplete
        | Refusal::BodyTooLarge => failed(EndReason::InvalidInput),
        Refusal::QuotaUsed => match facts.when_quota_used {
            WhenQuotaUsed::Fail => failed(EndReason::QuotaUsed),
            WhenQuotaUsed::Wait => RunDecision::WaitForQuota,
        },
        Refusal::QuotaHeld { .. }
        | Refusal::RateLimited { .. }
        | Refusal::TaskRateLimited { .. } => RunDecision::Release(ReleaseCause::QuotaWait),
        Refusal::PluginFailed => failed(EndReason::PluginFailed),
        Refusal::InvalidResponse | Refusal::ModelFailed { .. } => failed(EndReason::ModelError),
        Refusal::UpstreamLost if facts.has_error => failed(EndReason::ModelError),
        Refusal::UpstreamLost | Refusal::UpstreamTimeout => {
            RunDecision::Release(ReleaseCause::ServerLost)
        }
        // Attempts were made, and none may have begun the work.
        Refusal::UpstreamFailed => RunDecision::Release(ReleaseCause::NoServer),
        _ if facts.was_sent && !refusal.is_out_of_capacity() => {
            RunDecision::Release(ReleaseCause::ServerLost)
        }
        _ => RunDecision::Release(ReleaseCause::NoServer),
    }
}

/// Returns the outcome of a job in its event.
pub fn outcome(state: JobState, reason: Option<EndReason>) -> RequestOutcome {
    match (state, reason) {
        (JobState::Succeeded, _) => RequestOutcome::Completed,
        (JobState::Aborted, _) => RequestOutcome::Refused,
        (_, Some(EndReason::CanceledByUser | EndReason::CanceledByOperator)) => {
            RequestOutcome::CutByClient
        }
        (_, Some(EndReason::Deadline | EndReason::Timeout | EndReason::Lifetime)) => {
            RequestOutcome::CutByDeadline
        }
        _ => RequestOutcome::Failed,
    }
}

/// Returns the sentence of a refusal for the user.
pub fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::BadRequest { pointer, message }
        | Refusal::Rejected {
            pointer, message, ..
        } => match pointer.as_str() {
            "" => message.clone(),
            pointer => format!("{pointer}: {message}"),
        },
        Refusal::ModelFailed { message } => message.clone(),
        other => other.row().message.to_owned(),
    }
}

/// Returns the time until a job may run whose account is over its pace, or whose neurons are held by others.
pub fn quota_pause(refusal: Option<&Refusal>) -> Millis {
    match refusal {
        Some(Refusal::RateLimited { retry_after }) => {
            (*retry_after).clamp(QUOTA_WAIT, QUOTA_WAIT_MAX)
        }
        _ => QUOTA_WAIT,
    }
}

/// Returns the next midnight in UTC.
pub fn next_midnight(now: StoreTime) -> StoreTime {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    StoreTime((now.0 / DAY_MS + 1) * DAY_MS)
}

#[cfg(test)]
mod tests {
    use infergate_core::job::CanceledBy;

    use super::*;

    fn facts() -> RunFacts {
        RunFacts {
            refusal: None,
            status: 200,
            is_cut: false,
            stop: StopCause::None,
            time_over: None,
            is_too_large: false,
            is_unstored: false,
            was_sent: true,
            has_error: false,
            when_quota_used: WhenQuotaUsed::Fail,
        }
    }

    /// Charged or not, by reason: the table of the documentation.
    #[test]
    fn each_finish_has_one_meaning() {
        let release = RunDecision::Release;
        let refused = |refusal| RunFacts {
            refusal: Some(refusal),
            ..facts()
        };
        let charged = |reason: EndReason| RunDecision::End {
            state: reason.state(true),
            reason: Some(reason),
            is_charged: true,
        };
        for (facts, expected) in [
            (
                facts(),
                RunDecision::End {
                    state: JobState::Succeeded,
                    reason: None,
                    is_charged: true,
                },
            ),
            (
                RunFacts {
                    status: 422,
                    ..facts()
                },
                failed(EndReason::InvalidInput),
            ),
            (
                RunFacts {
                    status: 404,
                    ..facts()
                },
                failed(EndReason::ModelError),
            ),
            (
                RunFacts {
                    status: 500,
                    ..facts()
                },
                release(ReleaseCause::ServerLost),
            ),
            (
                RunFacts {
                    status: 503,
                    ..facts()
                },
                release(ReleaseCause::NoServer),
            ),
            (
                RunFacts {
                    is_cut: true,
                    ..facts()
                },
                release(ReleaseCause::ServerLost),
            ),
            (
                RunFacts {
                    has_error: true,
                    ..facts()
                },
                failed(EndReason::ModelError),
            ),
            (
                RunFacts {
                    has_error: true,
                    is_cut: true,
                    ..facts()
                },
                failed(EndReason::ModelError),
            ),
            (
                RunFacts {
                    has_error: true,
                    ..refused(Refusal::UpstreamLost)
                },
                failed(EndReason::ModelError),
            ),
            (
                RunFacts {
                    is_too_large: true,
                    ..facts()
                },
                charged(EndReason::OutputTooLarge),
            ),
            (
                RunFacts {
                    is_unstored: true,
                    ..facts()
                },
                failed(EndReason::OutputStoreFailed),
            ),
            (
                RunFacts {
                    stop: StopCause::Canceled(CanceledBy::User),
                    ..facts()
                },
                charged(EndReason::CanceledByUser),
            ),
            (
                RunFacts {
                    stop: StopCause::Canceled(CanceledBy::Operator),
                    ..facts()
                },
                charged(EndReason::CanceledByOperator),
            ),
            (
                RunFacts {
                    stop: StopCause::Lost,
                    ..facts()
                },
                RunDecision::Nothing,
            ),
            (
                RunFacts {
                    stop: StopCause::Drain,
                    ..facts()
                },
                release(ReleaseCause::Drain),
            ),
            (
                RunFacts {
                    time_over: Some(EndReason::Deadline),
                    ..refused(Refusal::DeadlinePassed)
                },
                charged(EndReason::Deadline),
            ),
            (
                refused(Refusal::NoSuchModel),
                failed(EndReason::ModelRemoved),
            ),
            (refused(Refusal::QuotaUsed), failed(EndReason::QuotaUsed)),
            (
                RunFacts {
                    when_quota_used: WhenQuotaUsed::Wait,
                    ..refused(Refusal::QuotaUsed)
                },
                RunDecision::WaitForQuota,
            ),
            (
                refused(Refusal::UpstreamLost),
                release(ReleaseCause::ServerLost),
            ),
            (
                refused(Refusal::UpstreamFailed),
                release(ReleaseCause::NoServer),
            ),
            (
                refused(Refusal::NoHealthyEndpoint),
                release(ReleaseCause::NoServer),
            ),
            (
                refused(Refusal::PluginFailed),
                failed(EndReason::PluginFailed),
            ),
        ] {
            assert_eq!(decide(&facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_day_ends_at_midnight() {
        let noon = StoreTime(86_400_000 * 3 + 43_200_000);
        assert_eq!(next_midnight(noon), StoreTime(86_400_000 * 4));
    }
}
