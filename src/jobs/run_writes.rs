//! Writes of what came of a run: its end, or its release. Each goes on until the store has it or knows better.
//!
//! Not the decision, nor the bound of ends that are kept meanwhile.

use infergate_core::job::{
    EndReason, JobState, Release, ReleaseCause, RunEnd, StoreTime, TakenJob, WriteResult,
};
use tokio::time::sleep;

use super::kept_ends::WritePauses;
use super::run::RunContext;
use super::store::{EndRecord, StoredEnd};
use crate::pipeline::OwedCharge;

impl RunContext {
    /// Writes an end, again and again until the store has it or knows better. Beyond the bound of ends that are kept,
    /// the job is queued again.
    pub(super) async fn write_end(
        &self,
        taken: &TakenJob,
        (state, reason): (JobState, Option<EndReason>),
        (record, owed): (EndRecord, Option<OwedCharge>),
    ) {
        let job = taken.definition.id;
        let word = reason.map_or(state.name(), EndReason::code);
        self.end_attempt(taken, (word, true));
        let mut kept = None;
        let mut pauses = WritePauses::default();
        loop {
            let end = StoredEnd {
                end: RunEnd {
                    id: job,
                    epoch: taken.progress.epoch,
                    state,
                    reason,
                },
                record: record.clone(),
            };
            match self.store.finish(&self.worker, end).await {
                Ok(WriteResult::Done | WriteResult::Already) => {
                    // Charged with the end that counts, and with no other.
                    owed.into_iter().for_each(OwedCharge::settle);
                    break;
                }
                Ok(WriteResult::Stale) => {
                    self.shared.metrics.jobs().record_refused_write("finish");
                    tracing::debug!(%job, "the end of a job was written by another");
                    break;
                }
                Err(error) if kept.is_none() => {
                    let bytes = record.result.len() + record.event.len();
                    kept = self.kept.keep(bytes as u64);
                    if kept.is_none() {
                        tracing::error!(%job, %error, "too many ends of jobs are kept in memory: the job will run again");
                        return self.release(taken, ReleaseCause::LostReply, None).await;
                    }
                    tracing::warn!(%job, %error, "the end of a job is kept in memory until the store takes it");
                }
                Err(error) => tracing::debug!(%job, %error, "the end of a job is still kept"),
            }
            sleep(pauses.next()).await;
        }
        if kept.take().is_some() {
            // The worker may take jobs again.
            self.signals.work.notify_one();
        }
    }

    pub(super) async fn release(
        &self,
        taken: &TakenJob,
        cause: ReleaseCause,
        not_before: Option<StoreTime>,
    ) {
        let job = taken.definition.id;
        tracing::debug!(%job, cause = cause.name(), "a job is queued again");
        self.end_attempt(taken, (cause.name(), false));
        let mut pauses = WritePauses::default();
        loop {
            let release = Release {
                id: job,
                epoch: taken.progress.epoch,
                cause,
                not_before,
            };
            match self.store.release(&self.worker, release).await {
                Ok(result) => return self.count_release(cause, result),
                Err(error) => {
                    tracing::warn!(%job, %error, "a job cannot be queued again yet");
                    sleep(pauses.next()).await;
                }
            }
        }
    }
}
