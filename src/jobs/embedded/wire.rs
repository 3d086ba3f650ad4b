//! Calls of a process that has handed its store over, as they travel to its successor through a Unix socket.
//!
//! Not every verb: running jobs end, are queued again or canceled, and late submits are stored. A frame a call and one
//! an answer, each a length in four bytes and JSON. The two sides are releases of one program, next to each other.

use std::io::{self, Read, Write};

use infergate_core::Millis;
use infergate_core::job::{
    CancelResult, CanceledBy, EndReason, HeartbeatReply, HeldJobs, JobDefinition, JobId, JobState,
    NewJob, QueueLimits, Release, ReleaseCause, RunEnd, StoreTime, SubmitResult, WorkerId,
    WriteResult,
};
use infergate_core::model::FlowMode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::jobs::store::{EndRecord, IdempotencyKey, NewStoredJob, StoredEnd};

/// Longest frame: the longest output with its event, as JSON in JSON.
const FRAME_BYTES_MAX: usize = 1 << 30;

/// Request of a successor for the store.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StoreRequest {
    /// The store is to be closed.
    LetGo,
    /// The connection of a process that let go of the store is gone, and this one takes its place.
    Resume,
}

/// Answer to [`StoreRequest::Resume`]: calls are served from now on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ResumeAnswer;

/// Answer to [`StoreRequest::LetGo`]: the file is closed and its lock free.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LetGoAnswer {
    /// Running jobs that end through this connection.
    pub running: usize,
}

/// Call that is forwarded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ForwardedCall {
    Submit {
        definition: Box<JobDefinition>,
        flows: FlowMode,
        queue_max: u32,
        queue_max_per_account: u32,
        bytes_max: u64,
        payload: String,
        key: Option<(String, [u8; 32])>,
    },
    Finish {
        worker: WorkerId,
        id: JobId,
        epoch: u32,
        state: JobState,
        reason: Option<EndReason>,
        result: String,
        event: String,
    },
    Release {
        worker: WorkerId,
        id: JobId,
        epoch: u32,
        cause: ReleaseCause,
        not_before: Option<StoreTime>,
    },
    Cancel(JobId, CanceledBy),
    Heartbeat {
        worker: WorkerId,
        jobs: Vec<JobId>,
        /// Moment before which a take that left no job in `jobs` has lost its answer; none where that is not asked.
        #[serde(default)]
        taken_before: Option<StoreTime>,
    },
    Retire(WorkerId),
}

/// Answer to a forwarded call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ForwardedAnswer {
    Created,
    Exists(JobState),
    Duplicate(JobId),
    KeyMismatch,
    QueueFull {
        retry_after_ms: u64,
    },
    StoreFull,
    Written(WriteResult),
    Canceled(CancelResult),
    Held {
        canceled: Vec<JobId>,
        /// Members of `canceled` that an operator wants to end.
        #[serde(default)]
        canceled_by_operator: Vec<JobId>,
        lost: Vec<JobId>,
        #[serde(default)]
        orphans: Vec<JobId>,
        #[serde(default = "known")]
        is_known: bool,
    },
    Done,
    /// Nothing was written, for this reason.
    Failed(String),
    /// The outcome is unknown.
    Unknown,
}

/// A release before this answer knew every worker.
fn known() -> bool {
    true
}

impl ForwardedCall {
    /// Call of a worker's heartbeat.
    pub fn heartbeat(worker: WorkerId, held: HeldJobs) -> ForwardedCall {
        ForwardedCall::Heartbeat {
            worker,
            jobs: held.jobs,
            taken_before: Some(held.oldest_take.unwrap_or(StoreTime::MAX)),
        }
    }

    /// Call of a submit.
    pub fn submit(job: NewStoredJob) -> ForwardedCall {
        let NewStoredJob { job, payload, key } = job;
        ForwardedCall::Submit {
            definition: Box::new(job.definition),
            flows: job.flows,
            queue_max: job.limits.queue_max,
            queue_max_per_account: job.limits.queue_max_per_account,
            bytes_max: job.limits.bytes_max,
            payload: text(&payload),
            key: key.map(|key| (key.key.to_string(), key.digest)),
        }
    }

    /// Call of an end.
    pub fn finish(worker: WorkerId, end: StoredEnd) -> ForwardedCall {
        let StoredEnd { end, record } = end;
        ForwardedCall::Finish {
            worker,
            id: end.id,
            epoch: end.epoch,
            state: end.state,
            reason: end.reason,
            result: text(&record.result),
            event: text(&record.event),
        }
    }

    /// Call of a release.
    pub fn release(worker: WorkerId, release: &Release) -> ForwardedCall {
        ForwardedCall::Release {
            worker,
            id: release.id,
            epoch: release.epoch,
            cause: release.cause,
            not_before: release.not_before,
        }
    }
}

/// Forwarded call as the successor's store takes it.
pub(super) enum ReceivedCall {
    Submit(Box<NewStoredJob>),
    Finish(WorkerId, Box<StoredEnd>),
    Release(WorkerId, Release),
    Cancel(JobId, CanceledBy),
    Heartbeat(WorkerId, HeldJobs),
    Retire(WorkerId),
}

impl From<ForwardedCall> for ReceivedCall {
    fn from(call: ForwardedCall) -> ReceivedCall {
        match call {
            ForwardedCall::Submit {
                definition,
                flows,
                queue_max,
                queue_max_per_account,
                bytes_max,
                payload,
                key,
            } => ReceivedCall::Submit(Box::new(NewStoredJob {
                job: new_job(
                    *definition,
                    flows,
                    [queue_max, queue_max_per_account],
                    bytes_max,
                ),
                payload: payload.into(),
                key: key.map(|(key, digest)| IdempotencyKey {
                    key: key.into(),
                    digest,
                }),
            })),
            ForwardedCall::Finish {
                worker,
                id,
                epoch,
                state,
                reason,
                result,
                event,
            } => {
                let end = RunEnd {
                    id,
                    epoch,
                    state,
                    reason,
                };
                let record = EndRecord {
                    result: result.into(),
                    event: event.into(),
                };
                ReceivedCall::Finish(worker, Box::new(StoredEnd { end, record }))
            }
            ForwardedCall::Release {
                worker,
                id,
                epoch,
                cause,
                not_before,
            } => {
                let release = Release {
                    id,
                    epoch,
                    cause,
                    not_before,
                };
                ReceivedCall::Release(worker, release)
            }
            ForwardedCall::Cancel(job, by) => ReceivedCall::Cancel(job, by),
            ForwardedCall::Heartbeat {
                worker,
                jobs,
                taken_before,
            } => ReceivedCall::Heartbeat(worker, held_jobs(jobs, taken_before)),
            ForwardedCall::Retire(worker) => ReceivedCall::Retire(worker),
        }
    }
}

fn new_job(
    definition: JobDefinition,
    flows: FlowMode,
    [queue_max, queue_max_per_account]: [u32; 2],
    bytes_max: u64,
) -> NewJob {
    NewJob {
        definition,
        flows,
        limits: QueueLimits {
            queue_max,
            queue_max_per_account,
            bytes_max,
        },
    }
}

fn held_jobs(jobs: Vec<JobId>, taken_before: Option<StoreTime>) -> HeldJobs {
    HeldJobs {
        jobs,
        // No take is as old as the default: none is judged.
        oldest_take: Some(taken_before.unwrap_or_default()),
    }
}

impl From<SubmitResult> for ForwardedAnswer {
    fn from(result: SubmitResult) -> ForwardedAnswer {
        match result {
            SubmitResult::Created => ForwardedAnswer::Created,
            SubmitResult::Exists(state) => ForwardedAnswer::Exists(state),
            SubmitResult::Duplicate(id) => ForwardedAnswer::Duplicate(id),
            SubmitResult::KeyMismatch => ForwardedAnswer::KeyMismatch,
            SubmitResult::QueueFull { retry_after } => ForwardedAnswer::QueueFull {
                retry_after_ms: retry_after.0,
            },
            SubmitResult::StoreFull => ForwardedAnswer::StoreFull,
        }
    }
}

impl From<HeartbeatReply> for ForwardedAnswer {
    fn from(reply: HeartbeatReply) -> ForwardedAnswer {
        let by_operator = |(_, by): &&(JobId, CanceledBy)| *by == CanceledBy::Operator;
        let operator = reply.canceled.iter().filter(by_operator);
        ForwardedAnswer::Held {
            canceled_by_operator: operator.map(|(job, _)| *job).collect(),
            canceled: reply.canceled.iter().map(|(job, _)| *job).collect(),
            lost: reply.lost,
            orphans: reply.orphans,
            is_known: reply.is_known,
        }
    }
}

impl ForwardedAnswer {
    /// Result of a heartbeat; none of another call.
    pub fn held(self) -> Option<HeartbeatReply> {
        let ForwardedAnswer::Held {
            canceled,
            canceled_by_operator,
            lost,
            orphans,
            is_known,
        } = self
        else {
            return None;
        };
        let origin = |job| match canceled_by_operator.contains(&job) {
            true => (job, CanceledBy::Operator),
            false => (job, CanceledBy::User),
        };
        Some(HeartbeatReply {
            is_known,
            orphans,
            canceled: canceled.into_iter().map(origin).collect(),
            lost,
        })
    }

    /// Result of a submit; none of another call.
    pub fn submitted(self) -> Option<SubmitResult> {
        Some(match self {
            ForwardedAnswer::Created => SubmitResult::Created,
            ForwardedAnswer::Exists(state) => SubmitResult::Exists(state),
            ForwardedAnswer::Duplicate(id) => SubmitResult::Duplicate(id),
            ForwardedAnswer::KeyMismatch => SubmitResult::KeyMismatch,
            ForwardedAnswer::QueueFull { retry_after_ms } => SubmitResult::QueueFull {
                retry_after: Millis(retry_after_ms),
            },
            ForwardedAnswer::StoreFull => SubmitResult::StoreFull,
            _ => return None,
        })
    }
}

/// Payloads, results and events are JSON.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a frame.
pub(super) fn write_frame(stream: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

/// Reads a frame.
pub(super) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
