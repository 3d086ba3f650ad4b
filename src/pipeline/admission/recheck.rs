//! Check whether a request that got its permit may still be served as it was authorized on arrival.
//!
//! Changes no state: where the answer is no, the pipeline goes back to its second step. While a request
//! waits, a reload may revoke its key, withdraw its model or make another kind of server of it.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::admission::PermitRequest;
use infergate_core::model::{Access, Catalog};
use infergate_core::{AccountId, Refusal};

use crate::pipeline::admission::refund_tokens;
use crate::pipeline::context::RequestContext;
use crate::pipeline::error::RequestError;
use crate::pipeline::fallback::ModelError;
use crate::pipeline::upstream::GrantedUpstream;
use crate::state::{ConfigSnapshot, Shared};
use crate::upstream::{ModelRuntime, Permit};

/// Gates follow a reload a moment before requests see it: so long a request waits to see the
/// configuration that its endpoint comes from. A swap that takes longer does not happen.
const SWAP_WAIT_MAX: Duration = Duration::from_secs(1);
/// Between two looks during that moment.
const SWAP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Passes the turn on where the request may be served as it was checked, and where it was refused at a
/// gate that still stands.
///
/// # Errors
/// The gate's refusal, or [`ModelError::Outdated`]; at a node that was forwarded the request, a refusal
/// after which the node before looks for another one.
pub async fn recheck(
    shared: &Shared,
    ctx: &RequestContext,
    model: &Arc<ModelRuntime>,
    request: &PermitRequest,
    grant: Result<GrantedUpstream, RequestError>,
) -> Result<GrantedUpstream, ModelError> {
    let is_outdated = match grant.as_ref().map(GrantedUpstream::local) {
        Ok(Some(permit)) => !is_current(shared, ctx, model, &request.account, permit).await,
        Ok(None) => false,
        Err(left) => is_withdrawn(shared, ctx, model, left).await,
    };
    if !is_outdated {
        return grant.map_err(|left| ModelError::from_admission(left, model));
    }
    if grant.is_ok() {
        refund_tokens(model, request);
    }
    Err(match ctx.can.checks_access {
        true => ModelError::Outdated,
        false => ModelError::from_admission(Refusal::NoHealthyEndpoint.into(), model),
    })
}

/// Returns whether the request was refused because its model has left the configuration.
async fn is_withdrawn(
    shared: &Shared,
    ctx: &RequestContext,
    model: &ModelRuntime,
    left: &RequestError,
) -> bool {
    let lost_all = matches!(left, RequestError::Refused(refusal) if refusal.is_out_of_capacity())
        && !model.spec.endpoints.is_empty()
        // Slots that are not ready are configured all the same.
        && model.gate.gauges().endpoints == 0;
    if !lost_all {
        return false;
    }
    wait_for_swap(shared, ctx).await;
    let now = shared.snapshot.load();
    now.catalog.model(model.spec.id.as_str()).is_none()
}

/// Returns whether the request may go to the endpoint of `permit` under the configuration it started with.
/// The usual case costs a comparison of two pointers.
async fn is_current(
    shared: &Shared,
    ctx: &RequestContext,
    model: &Arc<ModelRuntime>,
    account: &AccountId,
    permit: &Permit,
) -> bool {
    if Arc::ptr_eq(&shared.snapshot.load(), &ctx.snapshot) {
        if has_endpoint(model, permit) {
            return true;
        }
        wait_for_swap(shared, ctx).await;
    }
    let now = shared.snapshot.load();
    let same_account = !ctx.can.checks_access || is_same_account(&ctx.snapshot, &now, account);
    same_account && is_same_model(&now, model, ctx.can.checks_access, account)
}

/// The endpoint is one that the model had when the request came.
fn has_endpoint(model: &ModelRuntime, permit: &Permit) -> bool {
    let endpoints = &model.spec.endpoints;
    let is_meant = |index: usize| {
        let endpoint = endpoints.get(index);
        endpoint.is_some_and(|endpoint| *endpoint.url == *permit.target.url)
    };
    is_meant(permit.endpoint.0 as usize) || (0..endpoints.len()).any(is_meant)
}

async fn wait_for_swap(shared: &Shared, ctx: &RequestContext) {
    let swapped = async {
        while Arc::ptr_eq(&shared.snapshot.load(), &ctx.snapshot) {
            tokio::time::sleep(SWAP_POLL_INTERVAL).await;
        }
    };
    // Without a swap the permit is taken as it is.
    let _ = tokio::time::timeout(SWAP_WAIT_MAX, swapped).await;
}

fn is_same_account(before: &ConfigSnapshot, now: &ConfigSnapshot, account: &AccountId) -> bool {
    Arc::ptr_eq(&before.accounts, &now.accounts)
        || before.accounts.spec(account).is_some_and(|spec| {
            let still = now.accounts.spec(account);
            still.is_some_and(|still| *still == *spec)
        })
}

fn is_same_model(
    now: &ConfigSnapshot,
    model: &ModelRuntime,
    is_first: bool,
    account: &AccountId,
) -> bool {
    let Some((_, spec)) = now.catalog.model(model.spec.id.as_str()) else {
        return false;
    };
    let may_use = || {
        let account = now.accounts.spec(account);
        account.is_some_and(|account| Catalog::access(account, spec) == Access::Allowed)
    };
    spec.serves_like(&model.spec) && (!is_first || may_use())
}
