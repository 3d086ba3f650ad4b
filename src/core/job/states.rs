//! States of a job, the reasons of their changes, and which change is possible.
//!
//! Not the queue: the table applies what is decided here. A job ends exactly once, and an ended job never changes.

use serde::{Deserialize, Serialize};

use super::id::WorkerId;

/// Kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// A prediction of a model.
    Prediction,
    /// A training of a model.
    Training,
    /// A run of a procedure.
    Procedure,
    /// An item of a batch.
    BatchItem,
}

impl JobKind {
    /// Returns the name in events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            JobKind::Prediction => "prediction",
            JobKind::Training => "training",
            JobKind::Procedure => "procedure",
            JobKind::BatchItem => "batch-item",
        }
    }

    /// Returns whether one attempt is all a job of the kind has, whatever is configured.
    pub const fn has_one_attempt(self) -> bool {
        matches!(self, JobKind::Training | JobKind::Procedure)
    }
}

/// State of a job in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Waits for a permit.
    Queued,
    /// A worker has it.
    Running,
    /// Ended with an output.
    Succeeded,
    /// Ended without one.
    Failed,
    /// Ended by its user, an operator, or its own deadline after a first start.
    Canceled,
    /// Ended by its own deadline before any start.
    Aborted,
}

impl JobState {
    /// Every state.
    pub const ALL: [JobState; 6] = [
        JobState::Queued,
        JobState::Running,
        JobState::Succeeded,
        JobState::Failed,
        JobState::Canceled,
        JobState::Aborted,
    ];

    /// Returns whether nothing changes any more.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }

    /// Returns the name in stores, events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Canceled => "canceled",
            JobState::Aborted => "aborted",
        }
    }

    /// Returns the status that users see. A job that was started stays `processing`, also while it is queued again.
    pub const fn public_status(self, was_started: bool) -> &'static str {
        match self {
            JobState::Queued if !was_started => "starting",
            JobState::Queued | JobState::Running => "processing",
            ended => ended.name(),
        }
    }
}

/// Reason of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the sentences of `text` document them
pub enum EndReason {
    ModelError,
    InvalidInput,
    Timeout,
    Lifetime,
    Deadline,
    CanceledByUser,
    CanceledByOperator,
    WorkerLost,
    ServerLost,
    NoServer,
    QuotaUsed,
    NotPermitted,
    ModelRemoved,
    SetupFailed,
    NeverStarted,
    OutputTooLarge,
    OutputStoreFailed,
    PluginFailed,
    Moderated,
}

impl EndReason {
    /// Every reason.
    pub const ALL: [EndReason; 19] = [
        EndReason::ModelError,
        EndReason::InvalidInput,
        EndReason::Timeout,
        EndReason::Lifetime,
        EndReason::Deadline,
        EndReason::CanceledByUser,
        EndReason::CanceledByOperator,
        EndReason::WorkerLost,
        EndReason::ServerLost,
        EndReason::NoServer,
        EndReason::QuotaUsed,
        EndReason::NotPermitted,
        EndReason::ModelRemoved,
        EndReason::SetupFailed,
        EndReason::NeverStarted,
        EndReason::OutputTooLarge,
        EndReason::OutputStoreFailed,
        EndReason::PluginFailed,
        EndReason::Moderated,
    ];

    /// Returns the code in `/jobs`, events and metrics.
    pub const fn code(self) -> &'static str {
        match self {
            EndReason::ModelError => "model_error",
            EndReason::InvalidInput => "invalid_input",
            EndReason::Timeout => "timeout",
            EndReason::Lifetime => "lifetime",
            EndReason::Deadline => "deadline",
            EndReason::CanceledByUser => "canceled_by_user",
            EndReason::CanceledByOperator => "canceled_by_operator",
            EndReason::WorkerLost => "worker_lost",
            EndReason::ServerLost => "server_lost",
            EndReason::NoServer => "no_server",
            EndReason::QuotaUsed => "quota_used",
            EndReason::NotPermitted => "not_permitted",
            EndReason::ModelRemoved => "model_removed",
            EndReason::SetupFailed => "setup_failed",
            EndReason::NeverStarted => "never_started",
            EndReason::OutputTooLarge => "output_too_large",
            EndReason::OutputStoreFailed => "output_store_failed",
            EndReason::PluginFailed => "plugin_failed",
            EndReason::Moderated => "moderated",
        }
    }

    /// Returns the sentence for the user.
    pub const fn text(self) -> &'static str {
        match self {
            EndReason::ModelError => "The model reported an error.",
            EndReason::InvalidInput => "The model's server refused the input.",
            EndReason::Timeout => "The job ran longer than its model allows.",
            EndReason::Lifetime => "The job did not end within its lifetime.",
            EndReason::Deadline => "The job did not end before its deadline.",
            EndReason::CanceledByUser => "The job was canceled.",
            EndReason::CanceledByOperator => "An operator canceled the job.",
            EndReason::WorkerLost => "The process that ran the job was lost too often.",
            EndReason::ServerLost => "Model servers were lost while they ran the job.",
            EndReason::NoServer => "No model server could take the job.",
            EndReason::QuotaUsed => "The account's neurons of the day are used up.",
            EndReason::NotPermitted => "The account may not use the model any more.",
            EndReason::ModelRemoved => "The model is not served any more.",
            EndReason::SetupFailed => "The setup of the model's servers failed.",
            EndReason::NeverStarted => "The job was not started within its retention time.",
            EndReason::OutputTooLarge => "The output is larger than the model's limit.",
            EndReason::OutputStoreFailed => "The output could not be stored.",
            EndReason::PluginFailed => "A plugin of the model failed.",
            EndReason::Moderated => "The input was rejected by moderation.",
        }
    }

    /// Returns the state in which the reason ends a job; a deadline ends one that was never started as aborted.
    pub const fn state(self, was_started: bool) -> JobState {
        match self {
            EndReason::CanceledByUser | EndReason::CanceledByOperator => JobState::Canceled,
            EndReason::Deadline if was_started => JobState::Canceled,
            EndReason::Deadline => JobState::Aborted,
            _ => JobState::Failed,
        }
    }

    /// Returns whether what was made until the cut is charged. `is_running`: the job had begun and was not queued
    /// again.
    pub const fn charges_partial_work(self, is_running: bool) -> bool {
        let is_cut = matches!(
            self,
            EndReason::CanceledByUser
                | EndReason::CanceledByOperator
                | EndReason::Deadline
                | EndReason::Timeout
                | EndReason::Lifetime
                | EndReason::OutputTooLarge
        );
        is_cut && is_running
    }
}

/// Origin of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CanceledBy {
    /// The job's account.
    User,
    /// An operator.
    Operator,
}

impl CanceledBy {
    /// Returns the reason of the end.
    pub const fn reason(self) -> EndReason {
        match self {
            CanceledBy::User => EndReason::CanceledByUser,
            CanceledBy::Operator => EndReason::CanceledByOperator,
        }
    }
}

/// Result of a worker's write to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteResult {
    /// Written.
    Done,
    /// The same write was made before: its reply was lost.
    Already,
    /// The job has moved on: it is another worker's, queued again, or ended.
    Stale,
}

/// Owner of a running job: which worker took it, and in which epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOwner {
    /// Worker that took it.
    pub worker: WorkerId,
    /// Number of takes so far.
    pub epoch: u32,
}

/// Position of a job against which a worker's write is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPosition<'a> {
    /// State in the store.
    pub state: JobState,
    /// Number of takes so far.
    pub epoch: u32,
    /// Worker of the latest take that may still write, or that wrote the end.
    pub worker: Option<&'a WorkerId>,
}

/// Judges a write of `worker` in `epoch`: written only to the running job of that take; the repeat of a written
/// end is recognized.
pub fn judge_write(position: JobPosition<'_>, worker: &WorkerId, epoch: u32) -> WriteResult {
    let is_own = position.epoch == epoch && position.worker == Some(worker);
    match position.state {
        JobState::Running if is_own => WriteResult::Done,
        state if state.is_terminal() && is_own => WriteResult::Already,
        _ => WriteResult::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each state with each relation of epoch and worker: written only where the job runs in this take.
    #[test]
    fn a_write_passes_only_in_the_take_that_runs_and_its_repeat_is_known() {
        let (own, other) = (WorkerId::new("a", 1), WorkerId::new("a", 2));
        for state in JobState::ALL {
            for epoch in [4, 5, 6] {
                for worker in [Some(&own), Some(&other), None] {
                    let position = JobPosition {
                        state,
                        epoch,
                        worker,
                    };
                    let is_own = epoch == 5 && worker == Some(&own);
                    let expected = match state {
                        JobState::Running if is_own => WriteResult::Done,
                        JobState::Queued | JobState::Running => WriteResult::Stale,
                        _ if is_own => WriteResult::Already,
                        _ => WriteResult::Stale,
                    };
                    assert_eq!(judge_write(position, &own, 5), expected, "{position:?}");
                }
            }
        }
    }

    #[test]
    fn a_status_never_goes_back() {
        assert_eq!(JobState::Queued.public_status(false), "starting");
        assert_eq!(JobState::Running.public_status(true), "processing");
        assert_eq!(JobState::Queued.public_status(true), "processing");
        assert_eq!(JobState::Aborted.public_status(false), "aborted");
    }

    #[test]
    fn a_reason_ends_a_job_in_one_state_and_is_charged_by_one_rule() {
        assert_eq!(EndReason::Deadline.state(false), JobState::Aborted);
        assert_eq!(EndReason::Deadline.state(true), JobState::Canceled);
        assert_eq!(EndReason::CanceledByUser.state(false), JobState::Canceled);
        for reason in EndReason::ALL {
            assert!(reason.state(true).is_terminal());
            assert!(!reason.charges_partial_work(false), "{}", reason.code());
            let word = serde_json::to_value(reason).unwrap();
            assert_eq!(word, reason.code());
        }
    }

    /// Work until the cut is charged for these reasons, and for none else.
    #[test]
    fn the_table_of_charges_names_each_reason() {
        let charged: Vec<&str> = EndReason::ALL
            .into_iter()
            .filter(|reason| reason.charges_partial_work(true))
            .map(EndReason::code)
            .collect();
        let expected = [
            "output_too_large",
            "timeout",
            "lifetime",
            "deadline",
            "canceled_by_user",
            "canceled_by_operator",
        ];
        assert_eq!(charged.len(), expected.len());
        assert!(
            expected.iter().all(|code| charged.contains(code)),
            "{charged:?}"
        );
    }
}
