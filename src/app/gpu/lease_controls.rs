//! Leases of the host as operators see them through the gateway, and the release of those whose holder is gone.
//!
//! Ends no process: a lease of one that lives is refused with what to do. The ledger is a file, read aside.

use std::sync::Arc;

use infergate_core::vram::Holder;
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::admin::GpuControlError;
use crate::gpu::{
    HostLedger, LeaseList, LedgerStoreError, ReleaseOutcome, UnseenHolder, model_of, release_leases,
};

/// Returns all leases and claims, or the leases of an identity.
///
/// # Errors
/// No such lease, or the ledger is not readable.
pub(super) async fn list(
    ledger: &Arc<HostLedger>,
    id: Option<&str>,
) -> Result<Value, GpuControlError> {
    let list = aside(ledger, LeaseList::read).await?;
    let shown = match id {
        None => serde_json::to_value(&list),
        Some(id) => serde_json::to_value(list.find(id).ok_or_else(|| none(id))?),
    };
    Ok(shown.expect("a list is plain JSON"))
}

/// Frees the leases of an identity, whose holder is gone.
///
/// # Errors
/// No such lease, its holder is there or cannot be seen, or the ledger cannot be used.
pub(super) async fn release(ledger: &Arc<HostLedger>, id: &str) -> Result<(), GpuControlError> {
    let named = id.to_owned();
    let released = aside(ledger, move |ledger| {
        release_leases(ledger, &named, UnseenHolder::Keep)
    });
    match released.await? {
        ReleaseOutcome::Released => {
            tracing::info!(lease = id, "an operator has freed leases");
            Ok(())
        }
        ReleaseOutcome::NoSuchLease => Err(none(id)),
        ReleaseOutcome::Alive(holder) => Err(GpuControlError::Conflict(in_use(&holder))),
        ReleaseOutcome::Unseen(holder) => Err(GpuControlError::Conflict(format!(
            "process {} (`{}`) counts in another pid namespace and cannot be seen from here: once it is gone, \
             `infergate gpu leases release {id}` on its host frees the lease",
            holder.pid, holder.name
        ))),
    }
}

/// Says what to do about a holder that lives.
fn in_use(holder: &Holder) -> String {
    let Holder { pid, name, .. } = holder;
    match model_of(holder) {
        Some(model) => format!(
            "process {pid} runs `{name}` with this memory: unload the model at its gateway, by `infergate gpu unload \
             {model}` or `POST /gpu/models/{{id}}/unload`"
        ),
        None => format!(
            "process {pid} runs `{name}` under `infergate lease` with this memory: end the process, and its lease \
             ends with it"
        ),
    }
}

fn none(id: &str) -> GpuControlError {
    GpuControlError::NotFound(format!(
        "there is no lease `{id}`; `GET /gpu/leases` lists them"
    ))
}

async fn aside<T: Send + 'static>(
    ledger: &Arc<HostLedger>,
    look: impl FnOnce(&HostLedger) -> Result<T, LedgerStoreError> + Send + 'static,
) -> Result<T, GpuControlError> {
    let ledger = Arc::clone(ledger);
    let looked = spawn_blocking(move || look(&ledger)).await;
    let looked = looked.map_err(|error| GpuControlError::Unavailable(error.to_string()))?;
    looked.map_err(|error| GpuControlError::Unavailable(error.to_string()))
}
