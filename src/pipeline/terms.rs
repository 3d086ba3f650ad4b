//! Terms of a request beside those of its model: what a named task sets.
//!
//! Most requests have none. The choice of the candidate that goes first is the core's.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::{Call, body};
use infergate_core::model::{Access, AccountSpec, Catalog, Defaults, KeepLoaded, NamedTask};
use infergate_core::routing::{FallbackCandidate, first_candidate};

use super::context::RequestContext;
use crate::state::{Account, BodyShare, Shared};
use crate::upstream::ModelRuntime;

/// Terms of one request.
#[derive(Default)]
pub struct RequestTerms {
    /// Named task that the client asked for in place of a model.
    pub task: Option<Arc<NamedTask>>,
    /// Candidate of the task that would have gone first, and is cold.
    passed_over: Option<Arc<ModelRuntime>>,
}

impl RequestTerms {
    /// Seconds for the whole request, in place of the model's time.
    pub fn budget_secs(&self) -> Option<u64> {
        self.task.as_ref()?.budget_secs
    }

    /// Time for which the model that serves stays loaded, in place of its own.
    pub fn keep_alive(&self) -> Option<KeepLoaded> {
        let secs = self.task.as_ref()?.keep_alive_secs?;
        Some(KeepLoaded::of_secs(secs))
    }

    /// Parameters to fill in before those of the model.
    fn defaults(&self) -> impl Iterator<Item = &Defaults> {
        self.task.iter().map(|task| &*task.defaults)
    }

    /// Returns the request with the parameters that the terms fill in; a copy of its body has a part of `body_share`.
    ///
    /// # Errors
    /// A parameter does not fit the request, or there is no memory for the copy.
    pub fn fill_in(&self, call: Call, body_share: &mut BodyShare) -> Result<Call, Refusal> {
        let mut call = call;
        for defaults in self.defaults() {
            let before = call.body.as_ptr();
            call = body::with_parameters(call, defaults.parameters())?;
            if call.body.as_ptr() != before && !body_share.grow(call.body.len() as u64) {
                return Err(Refusal::BodyBudgetSpent);
            }
        }
        Ok(call)
    }
}

/// Fills in what the terms of the request say, where it has any.
pub fn fill_in(
    ctx: &RequestContext,
    call: Call,
    body_share: &mut BodyShare,
) -> Result<Call, Refusal> {
    match &ctx.terms {
        Some(terms) => terms.fill_in(call, body_share),
        None => Ok(call),
    }
}

/// Step 5 for a name that no model has: the candidate of a named task that goes first.
///
/// # Errors
/// [`Refusal::NoSuchModel`], [`Refusal::NotAllowed`].
pub fn find_candidate(
    ctx: &mut RequestContext,
    name: &str,
    account: &Account,
) -> Result<Arc<ModelRuntime>, Refusal> {
    let snapshot = Arc::clone(&ctx.snapshot);
    let found = snapshot.catalog.model_for(name, &account.spec);
    let id = found.as_ref().ok().map(|(_, spec)| &spec.id);
    ctx.trace.set_requested_model(name, id);
    let first = match found {
        Ok((index, _)) => snapshot.models.get(index),
        Err(Access::Denied) => return Err(Refusal::NotAllowed),
        Err(_) => return Err(Refusal::NoSuchModel),
    };
    let Some(task) = snapshot.catalog.named_task(name) else {
        return Err(Refusal::NoSuchModel);
    };
    let open = open_candidates(ctx.shared(), ctx, &account.spec, task, first);
    let all = std::iter::once(first).chain(&open);
    let chosen = first_candidate(task.pin_primary, all.map(|model| !model.gate.is_cold()));
    let (chosen, passed_over) = match chosen.checked_sub(1) {
        Some(later) => (&open[later], Some(Arc::clone(first))),
        None => (first, None),
    };
    ctx.begin_task(task, chosen);
    ctx.terms.get_or_insert_default().passed_over = passed_over;
    Ok(Arc::clone(chosen))
}

/// Records, of a request that may run, that the candidate which it passed over is wanted still.
pub fn record_passed_over(ctx: &mut RequestContext, account: &Account) {
    let terms = ctx.terms.as_mut();
    if let Some(first) = terms.and_then(|terms| terms.passed_over.take()) {
        first.gate.record_cold_demand(&account.spec.id);
    }
}

/// Candidates of a named task that may follow `first`, in order.
pub fn open_candidates(
    shared: &Shared,
    ctx: &RequestContext,
    account: &AccountSpec,
    task: &NamedTask,
    first: &ModelRuntime,
) -> Vec<Arc<ModelRuntime>> {
    let snapshot = &ctx.snapshot;
    let others = snapshot.catalog.candidates(task);
    let others = others.map(|(index, _)| snapshot.models.get(index));
    let open = |model: &&Arc<ModelRuntime>| {
        model.spec.id != first.spec.id && is_open(shared, account, model)
    };
    others.filter(open).cloned().collect()
}

/// Returns whether a request of an account may fall back to a model.
pub fn is_open(shared: &Shared, account: &AccountSpec, model: &ModelRuntime) -> bool {
    let candidate = FallbackCandidate {
        is_allowed: Catalog::access(account, &model.spec) == Access::Allowed,
        is_external: model.spec.is_external(),
    };
    candidate.is_open(shared.runtime.flags().allow_cloud_fallback)
}
