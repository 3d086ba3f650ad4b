//! Step 3 of the request pipeline, and step 5: what the account may do, before and after the body.
//!
//! Not the key, which the head is read for, and not the day's neurons, which `billing` reserves. Units of
//! rates taken here are settled after the response.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::model::{Access, Catalog};

use super::context::RequestContext;
use super::error::RequestError;
use super::permit_request::tokens_ahead;
use super::request_head::AuthenticatedRequest;
use super::{respond, terms};
use crate::state::{Account, Shared};
use crate::telemetry::RequestOutcome;
use crate::upstream::ModelRuntime;

/// Step 3: what is looked at before the body, so that a request that cannot pass is not read. Returns the
/// model that stands in the path, unless the body may name a client that means another one.
pub fn enter(
    shared: &Shared,
    ctx: &mut RequestContext,
    request: &AuthenticatedRequest,
    path_model: Option<&str>,
) -> Result<Option<Arc<ModelRuntime>>, Refusal> {
    let account = &request.account;
    let path_model = path_model.filter(|name| !ctx.snapshot.may_replace(name));
    let found = path_model.map(|model| find_model(ctx, model, account));
    let model = found.transpose()?;
    if ctx.can.charges_rate {
        if let Some(limit) = account.spec.neurons_per_day {
            shared.quota.check(&account.spec.id, limit)?;
        }
        if account.has_rates() {
            ctx.rate_account = Some(Arc::clone(account));
        }
        account.take_unit(ctx.arrival)?;
    }
    Ok(model)
}

/// Counts the request among those under way of its account, with the tokens it may use and its task.
///
/// # Errors
/// [`Refusal::RateLimited`], [`Refusal::TaskRateLimited`].
pub fn charge_account(
    shared: &Shared,
    ctx: &mut RequestContext,
    account: &Arc<Account>,
    (model, call): (&ModelRuntime, &Call),
) -> Result<(), Refusal> {
    if ctx.can.charges_rate {
        ctx.account_guard = account.enter(|| tokens_ahead(call), || shared.clock.recent())?;
        let task = model.spec.task;
        let is_charged = account.take_task_unit(task, ctx.arrival)?;
        ctx.charged_task = is_charged.then_some(task);
    } else if ctx.can.charges_tokens {
        ctx.account_guard = account.enter_job(tokens_ahead(call), shared.clock.recent())?;
    }
    Ok(())
}

/// Step 5: the model, if the account may use it.
///
/// # Errors
/// [`Refusal::NoSuchModel`], [`Refusal::NotAllowed`].
pub fn find_model(
    ctx: &mut RequestContext,
    name: &str,
    account: &Account,
) -> Result<Arc<ModelRuntime>, Refusal> {
    let Some((index, spec)) = ctx.snapshot.catalog.model(name) else {
        return terms::find_candidate(ctx, name, account);
    };
    ctx.trace.set_requested_model(name, Some(&spec.id));
    let model = Arc::clone(ctx.snapshot.models.get(index));
    // Another node has looked already, by the same rules.
    let access = match ctx.can.checks_access {
        true => Catalog::access(&account.spec, &model.spec),
        false => {
            ctx.restore_task();
            Access::Allowed
        }
    };
    ctx.model = Some(Arc::clone(&model));
    match access {
        Access::Allowed => Ok(model),
        Access::Denied => Err(Refusal::NotAllowed),
        Access::Hidden => Err(Refusal::NoSuchModel),
    }
}

/// Settles the account's tokens after the request, and refunds its unit where the request cost nothing.
pub fn settle_account(
    shared: &Shared,
    ctx: &mut RequestContext,
    account: &Account,
    result: &Result<(), RequestError>,
) {
    if let Some(guard) = ctx.account_guard.take()
        && has_worked(ctx, result)
    {
        guard.settle(ctx.tokens_used(), shared.clock.recent());
    }
    if let Err(RequestError::Refused(refusal)) = result
        && cost_nothing(refusal)
        && ctx.can.charges_rate
    {
        account.refund_unit();
        if let Some(task) = ctx.charged_task {
            account.refund_task_unit(task);
        }
    }
}

/// Returns whether work for the account used up some of its tokens: what a server failed to do did not.
fn has_worked(ctx: &RequestContext, result: &Result<(), RequestError>) -> bool {
    let outcome = match result {
        _ if ctx.is_event_elsewhere() => return true,
        Err(RequestError::Refused(refusal)) => respond::outcome_of(refusal),
        _ => ctx.outcome(),
    };
    ctx.attempts > 0 && !matches!(outcome, RequestOutcome::Failed | RequestOutcome::Refused)
}

/// Returns whether a refused request leaves its account's pace as it was: there was no room for it, here
/// or in the account's day.
fn cost_nothing(refusal: &Refusal) -> bool {
    let no_room = matches!(refusal, Refusal::BodyBudgetSpent | Refusal::QuotaUsed);
    no_room || refusal.is_out_of_capacity()
}
