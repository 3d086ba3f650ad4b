//! Leases of slots in the ledger of the host. Each call is one change of a file, and blocks for as long.

use std::collections::BTreeMap;

use infergate_core::vram::{ClaimedNeed, DeviceShare, LeaseGroup, PlacementRequest};
use infergate_core::{Millis, ModelId};
use thiserror::Error;

use crate::gpu::process::ProcessId;
use crate::gpu::{HostLedger, HostReading, LedgerStoreError};

/// Time from a renewal to the end of a claim of a gateway: three renewals.
const CLAIM_TTL: Millis = Millis::from_secs(15);

/// Reason why memory was not leased.
#[derive(Debug, Error)]
pub(super) enum LeaseRefusal {
    /// Others have the memory, or its devices give none.
    #[error("{0}")]
    NoRoom(String),
    /// The ledger cannot be read or written.
    #[error("the ledger of device memory cannot be used: {0}")]
    Ledger(LedgerStoreError),
}

/// Leases the shares of a slot, all or none, and reads them back. The gateway is their holder until a keeper is there.
///
/// # Errors
/// [`LeaseRefusal`]: there is no room any more, or the ledger cannot be used.
pub(super) fn acquire(
    ledger: &HostLedger,
    reading: &HostReading,
    (slot, priority): (&str, u8),
    shares: &[DeviceShare],
) -> Result<LeaseGroup, LeaseRefusal> {
    let holder = ledger.host().slot_holder(slot, std::process::id());
    let holder = holder.map_err(no_room)?;
    let views = reading.views();
    let acquired =
        ledger.change(|ledger, now| ledger.acquire(&holder, priority, shares, &views, now));
    let group = acquired.map_err(LeaseRefusal::Ledger)?.map_err(no_room)?;
    match ledger.read() {
        Ok(read) if read.leases().iter().any(|lease| lease.group == group.id) => Ok(group),
        Ok(_) => Err(no_room("the leases were released by another process")),
        // Nothing else would give them back: their holder lives.
        Err(error) => match release(ledger, &group) {
            Ok(()) => Err(LeaseRefusal::Ledger(error)),
            Err(_) => Ok(group),
        },
    }
}

/// Changes the leases of a slot to these shares, all or none.
///
/// # Errors
/// [`LeaseRefusal`]: there is no room any more, or the ledger cannot be used.
pub(super) fn resize(
    ledger: &HostLedger,
    reading: &HostReading,
    group: &LeaseGroup,
    shares: &[DeviceShare],
) -> Result<(), LeaseRefusal> {
    let views = reading.views();
    let resized = ledger.change(|ledger, now| ledger.resize(group, shares, &views, now));
    resized.map_err(LeaseRefusal::Ledger)?.map_err(no_room)
}

fn no_room(reason: impl ToString) -> LeaseRefusal {
    LeaseRefusal::NoRoom(reason.to_string())
}

/// Marks the memory of a slot as risen to its height: memory of others is told from it by its lease from then on.
pub(super) fn hold(ledger: &HostLedger, slot: &str, group: &LeaseGroup) {
    // A group that is gone belonged to a process that has ended meanwhile.
    if let Err(error) = ledger.change(|ledger, _| ledger.hold(group)) {
        tracing::warn!(slot, %error, "the leases of a model count as those of a load");
    }
}

/// Gives the leases to the keeper of a process that is to be started, which ends after it.
///
/// # Errors
/// A sentence: the leases are gone, or the ledger cannot be used. The process must not start.
pub(super) fn hand_over(
    ledger: &HostLedger,
    slot: &str,
    group: &LeaseGroup,
    keeper: ProcessId,
) -> Result<(), String> {
    let holder = ledger.host().slot_holder(slot, keeper.pid);
    let holder = holder.map_err(|error| error.to_string())?;
    let changed = ledger.change(|ledger, _| ledger.hand_over(group, &holder));
    let handed_over = changed.map_err(|error| error.to_string())?;
    handed_over.map_err(|error| error.to_string())
}

/// Need of a model that waits for memory of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelClaim {
    pub placement: PlacementRequest,
    pub priority: u8,
}

/// Replaces the claims of this gateway's models.
pub(super) fn write_claims(ledger: &HostLedger, claims: &BTreeMap<ModelId, ModelClaim>) {
    let pid = std::process::id();
    let Some(process) = ProcessId::of(pid) else {
        return;
    };
    let needs = claims.iter().filter_map(|(model, claim)| {
        let holder = ledger.host().slot_holder(model.as_str(), pid).ok()?;
        Some(ClaimedNeed {
            holder,
            placement: claim.placement,
            priority: claim.priority,
        })
    });
    let needs: Vec<ClaimedNeed> = needs.collect();
    let claimed = ledger.change(|ledger, now| {
        let process = (process.pid, process.start);
        ledger.claim_for_slots(&needs, process, now, now + CLAIM_TTL)
    });
    match claimed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "other holders do not hear of models that wait"),
        Err(error) => tracing::warn!(%error, "other holders do not hear of models that wait"),
    }
}

/// Releases leases. Those of a holder that is gone have ended already.
///
/// # Errors
/// A sentence: the ledger cannot be used.
pub(super) fn release(ledger: &HostLedger, group: &LeaseGroup) -> Result<(), String> {
    let released = ledger.change(|ledger, _| ledger.release(group));
    released.map(drop).map_err(|error| error.to_string())
}
