//! Calls that write to the embedded store, on their way to the thread that owns it.
//!
//! Not their effect, which is the owner's. Each has a caller who may have left, and a bound of its wait.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobId, Release,
    SubmitResult, TakeRequest, WorkerId, WriteResult,
};

use super::shared::Reply;
use crate::jobs::deployments::{DeploymentResult, DeploymentWrite};
use crate::jobs::store::{
    NewStoredJob, SettlementResult, StoreError, StoreStats, StoredEnd, StoredRun, WebhookSettlement,
};

/// Longest wait of a client for the store, so that the answer leaves within a second.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(900);
/// Longest wait of a call of this process: longer than a busy disk takes.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Call that writes.
pub(super) enum StoreCommand {
    Submit(Box<NewStoredJob>, Reply<SubmitResult>),
    Take(WorkerId, TakeRequest, Reply<Vec<StoredRun>>),
    Finish(WorkerId, Box<StoredEnd>, Reply<WriteResult>),
    Release(WorkerId, Release, Reply<WriteResult>),
    Cancel(JobId, CanceledBy, Reply<CancelResult>),
    Heartbeat(WorkerId, HeldJobs, Reply<HeartbeatReply>),
    Retire(WorkerId, Reply<()>),
    EndQueued(DeployableKey, EndReason, Reply<usize>),
    SetPaused(DeployableKey, bool, Reply<()>),
    Position(JobId, Reply<Option<usize>>),
    Stats(Reply<StoreStats>),
    AcknowledgeEvents(Vec<i64>, Reply<()>),
    SettleWebhook(
        Arc<str>,
        WebhookSettlement,
        Arc<str>,
        Reply<SettlementResult>,
    ),
    WriteDeployment(Box<DeploymentWrite>, Reply<DeploymentResult>),
    /// The process that let go of the store has ended or does not come back, after this many connections of it.
    /// Answered with false where it has come back meanwhile.
    PredecessorEnded(u64, Reply<bool>),
}

impl StoreCommand {
    /// Returns the name in metrics.
    pub fn verb(&self) -> &'static str {
        match self {
            StoreCommand::Submit(..) => "submit",
            StoreCommand::Take(..) => "take",
            StoreCommand::Finish(..) => "finish",
            StoreCommand::Release(..) => "release",
            StoreCommand::Cancel(..) => "cancel",
            StoreCommand::Heartbeat(..) => "heartbeat",
            StoreCommand::Retire(..) => "retire",
            StoreCommand::EndQueued(..) => "end_queued",
            StoreCommand::SetPaused(..) => "set_paused",
            StoreCommand::Position(..) => "position",
            StoreCommand::Stats(..) => "stats",
            StoreCommand::AcknowledgeEvents(..) => "acknowledge_events",
            StoreCommand::SettleWebhook(..) => "settle_webhook",
            StoreCommand::WriteDeployment(..) => "write_deployment",
            StoreCommand::PredecessorEnded(..) => "predecessor_ended",
        }
    }

    /// Answers with a failure.
    pub fn refuse(self, error: StoreError) {
        match self {
            StoreCommand::Submit(_, reply) => reply.send(Err(error)),
            StoreCommand::Take(.., reply) => reply.send(Err(error)),
            StoreCommand::Finish(.., reply) | StoreCommand::Release(.., reply) => {
                reply.send(Err(error))
            }
            StoreCommand::Cancel(.., reply) => reply.send(Err(error)),
            StoreCommand::Heartbeat(.., reply) => reply.send(Err(error)),
            StoreCommand::Retire(_, reply)
            | StoreCommand::SetPaused(.., reply)
            | StoreCommand::AcknowledgeEvents(_, reply) => reply.send(Err(error)),
            StoreCommand::PredecessorEnded(_, reply) => reply.send(Err(error)),
            StoreCommand::EndQueued(.., reply) => reply.send(Err(error)),
            StoreCommand::Position(_, reply) => reply.send(Err(error)),
            StoreCommand::Stats(reply) => reply.send(Err(error)),
            StoreCommand::SettleWebhook(.., reply) => reply.send(Err(error)),
            StoreCommand::WriteDeployment(_, reply) => reply.send(Err(error)),
        }
    }

    /// Longest wait of the caller; none where only the store's answer tells what the caller has to do.
    pub fn time_limit(&self) -> Option<Duration> {
        match self {
            StoreCommand::Submit(..) | StoreCommand::Cancel(..) => Some(CLIENT_TIMEOUT),
            // A take whose answer is not heard is a job that runs nowhere.
            StoreCommand::Take(..) => None,
            _ => Some(CALL_TIMEOUT),
        }
    }

    /// Returns whether the caller has left before the call was begun: it has no effect then.
    pub fn is_abandoned(&self) -> bool {
        match self {
            StoreCommand::Submit(_, reply) => reply.0.is_closed(),
            StoreCommand::Take(.., reply) => reply.0.is_closed(),
            _ => false,
        }
    }
}
