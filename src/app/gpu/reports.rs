//! Reports of the pool in the log.
//!
//! Decides nothing, and reads no state.

use infergate_core::vram::{PoolReport, SlotId};

use super::view::GpuBoard;

/// Writes a report of a slot to the log, and counts loads.
pub(super) fn record_report(slot: &SlotId, report: &PoolReport, board: &GpuBoard) {
    match report {
        PoolReport::Transition { from, to } => {
            tracing::debug!(%slot, from = from.name(), to = to.name(), "a slot changed");
        }
        PoolReport::Swap {
            victims,
            debt,
            cost,
            reason,
        } => {
            let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
            let reason = reason.name();
            tracing::info!(%slot, ?victims, debt, cost, reason, "others make room for a model");
        }
        PoolReport::RoomForClaim(claim) => {
            tracing::info!(%slot, %claim, "a model makes room for another holder");
        }
        PoolReport::Setup(status) => {
            tracing::info!(%slot, ?status, "a load ended");
        }
        PoolReport::Failure(failure) => {
            tracing::warn!(%slot, failure = failure.name(), "a model failed");
        }
        PoolReport::Load { kind, took } => {
            tracing::info!(%slot, took_ms = took.0, "a {} succeeded", kind.name());
            board.count_load(&slot.model, *kind);
        }
        PoolReport::Alarm => {
            tracing::error!(%slot, "processes of a model cannot be ended: its device takes no new model");
        }
        PoolReport::Ignored(ignored) => tracing::debug!(%slot, "{ignored}"),
    }
}
