//! Check whether a request that got its permit may still be served as it was authorized on arrival.
//!
//! Changes no state: where the answer is no, the pipeline goes back to its second step. While a request
//! waits, a reload may revoke its key, withdraw its model or make another kind of server of it.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::admission::Ask;
use infergate_core::model::{Access, Catalog};
use infergate_core::{AccountId, Refusal};

use super::admit::{Turn, uncharge};
use super::call::{Left, Trip};
use super::ladder::Unserved;
use super::{Shared, World};
use crate::upstream::{Lane, Permit};

/// Gates follow a reload a moment before requests see it: so long a request waits to see the
/// configuration that its endpoint comes from. A swap that takes longer does not happen.
const SWAP_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks during that moment.
const SWAP_LOOK: Duration = Duration::from_millis(1);

/// Passes the turn on where the request may be served as it was checked, and where it was refused at a
/// gate that still stands.
///
/// # Errors
/// The gate's refusal, or [`Unserved::Outdated`]; at a node that was forwarded the request, a refusal
/// after which the node before looks for another one.
pub async fn look_again(
    shared: &Shared,
    trip: &Trip,
    lane: &Arc<Lane>,
    ask: &Ask,
    turn: Result<Turn, Left>,
) -> Result<Turn, Unserved> {
    let is_outdated = match &turn {
        Ok(Turn::Here(permit)) => !is_current(shared, trip, lane, &ask.account, permit).await,
        Ok(Turn::There(_)) => false,
        Err(left) => is_withdrawn(shared, trip, lane, left).await,
    };
    if !is_outdated {
        return turn.map_err(Unserved::at_the_gate);
    }
    if turn.is_ok() {
        uncharge(lane, ask);
    }
    Err(match trip.is_first() {
        true => Unserved::Outdated,
        false => Unserved::at_the_gate(Refusal::NoHealthyEndpoint.into()),
    })
}

/// Returns whether the request was refused because its model has left the configuration.
async fn is_withdrawn(shared: &Shared, trip: &Trip, lane: &Lane, left: &Left) -> bool {
    let lost_all = matches!(left, Left::Refused(refusal) if refusal.is_out_of_capacity())
        && !lane.spec.endpoints.is_empty()
        && lane.gate.targets().is_empty();
    if !lost_all {
        return false;
    }
    wait_for_swap(shared, trip).await;
    let now = shared.world.load();
    now.catalog.model(lane.spec.id.as_str()).is_none()
}

/// Returns whether the request may go to the endpoint of `permit` under the configuration it started with.
/// The usual case costs a comparison of two pointers.
async fn is_current(
    shared: &Shared,
    trip: &Trip,
    lane: &Arc<Lane>,
    account: &AccountId,
    permit: &Permit,
) -> bool {
    if Arc::ptr_eq(&shared.world.load(), &trip.world) {
        if knows(lane, permit) {
            return true;
        }
        wait_for_swap(shared, trip).await;
    }
    let now = shared.world.load();
    let same_account = !trip.is_first() || is_same_account(&trip.world, &now, account);
    same_account && is_same_model(&now, lane, trip.is_first(), account)
}

/// The endpoint is one that the model had when the request came.
fn knows(lane: &Lane, permit: &Permit) -> bool {
    let endpoints = &lane.spec.endpoints;
    let is_meant = |index: usize| {
        let endpoint = endpoints.get(index);
        endpoint.is_some_and(|endpoint| *endpoint.url == *permit.target.url)
    };
    is_meant(permit.endpoint.0 as usize) || (0..endpoints.len()).any(is_meant)
}

async fn wait_for_swap(shared: &Shared, trip: &Trip) {
    let swapped = async {
        while Arc::ptr_eq(&shared.world.load(), &trip.world) {
            tokio::time::sleep(SWAP_LOOK).await;
        }
    };
    // Without a swap the permit is taken as it is.
    let _ = tokio::time::timeout(SWAP_PATIENCE, swapped).await;
}

fn is_same_account(before: &World, now: &World, account: &AccountId) -> bool {
    Arc::ptr_eq(&before.accounts, &now.accounts)
        || before.accounts.spec(account).is_some_and(|spec| {
            let still = now.accounts.spec(account);
            still.is_some_and(|still| *still == *spec)
        })
}

fn is_same_model(now: &World, lane: &Lane, is_first: bool, account: &AccountId) -> bool {
    let Some((_, spec)) = now.catalog.model(lane.spec.id.as_str()) else {
        return false;
    };
    let may_use = || {
        let account = now.accounts.spec(account);
        account.is_some_and(|account| Catalog::access(account, spec) == Access::Allowed)
    };
    spec.serves_like(&lane.spec) && (!is_first || may_use())
}
