//! Terms of a request beside those of its model: what a named task and the profile of its client set.
//!
//! Most requests have none. The choice of the candidate that goes first is the core's.

use std::sync::Arc;

use infergate_core::admission::{ClientCooldown, DemandClient};
use infergate_core::api::{Call, body};
use infergate_core::model::{
    Access, AccountSpec, Catalog, ClientProfile, Defaults, KeepLoaded, NamedTask,
};
use infergate_core::routing::{FallbackCandidate, first_candidate};
use infergate_core::{ModelId, Refusal};

use super::context::RequestContext;
use super::origin::Origin;
use crate::state::{Account, BodyShare, Shared};
use crate::upstream::ModelRuntime;

/// Terms of one request.
#[derive(Default)]
pub struct RequestTerms {
    /// Named task that the client asked for in place of a model.
    pub task: Option<Arc<NamedTask>>,
    /// Candidate of the task that would have gone first, and is cold.
    passed_over: Option<Arc<ModelRuntime>>,
    /// Profile of the client.
    pub profile: Option<Arc<ClientProfile>>,
    /// Name that the client used, where its profile has another one for it.
    pub replaced_name: Option<ModelId>,
}

impl RequestTerms {
    /// Seconds for the whole request, in place of the model's time.
    pub fn budget_secs(&self) -> Option<u64> {
        self.task.as_ref()?.budget_secs
    }

    /// Most seconds for the whole request.
    pub fn profile_secs(&self) -> Option<u64> {
        self.profile.as_ref()?.timeout_secs
    }

    /// Time for which the model that serves stays loaded, in place of its own. The client's profile goes before the task.
    pub fn keep_alive(&self) -> Option<KeepLoaded> {
        let of_profile = self.profile.as_ref();
        let of_task = || self.task.as_ref()?.keep_alive_secs.map(KeepLoaded::of_secs);
        of_profile.and_then(|it| it.keep_alive()).or_else(of_task)
    }

    /// Parameters to fill in before those of the model, the first ones first.
    fn defaults(&self) -> impl Iterator<Item = &Defaults> {
        let of_profile = self.profile.iter().map(|profile| &*profile.defaults);
        of_profile.chain(self.task.iter().map(|task| &*task.defaults))
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

/// Takes the client that a request names, and what its profile says of model and priority. Jobs have no profile.
pub fn apply_profile(ctx: &mut RequestContext, call: &mut Call) {
    ctx.set_end_user(call.client_id.as_deref());
    let Some(profiles) = &ctx.snapshot.clients else {
        return;
    };
    let Some(client_id) = call.client_id.as_deref() else {
        return;
    };
    if matches!(ctx.origin(), Origin::Job(_)) {
        return;
    }
    let Some(profile) = profiles.find(client_id).cloned() else {
        return;
    };
    call.priority = call.priority.or(profile.priority);
    ctx.trace.set_client_profile(&profile.client_id);
    // Another node has put the name in its place already.
    let replacement = profile.replacement(&call.model);
    let replacement = replacement.filter(|_| ctx.can.checks_access).cloned();
    let terms = ctx.terms.get_or_insert_default();
    if let Some(model) = replacement {
        let named = std::mem::replace(&mut call.model, model.as_str().to_owned());
        terms.replaced_name = Some(ModelId::from(named.as_str()));
    }
    terms.profile = Some(profile);
    ctx.begin_profile();
}

/// Client of a request for a model whose processes the gateway starts; none where it names none. Jobs have none.
pub fn demand_client(
    ctx: &RequestContext,
    model: &ModelRuntime,
    call: &Call,
) -> Option<Arc<DemandClient>> {
    model.spec.process.as_ref()?;
    let client_id = call.client_id.as_deref()?;
    if matches!(ctx.origin(), Origin::Job(_)) {
        return None;
    }
    let terms = ctx.terms.as_ref();
    let profile = terms.and_then(|terms| terms.profile.as_ref());
    let cooldown = profile.and_then(|profile| {
        Some(ClientCooldown {
            profile: Arc::clone(&profile.client_id),
            span: profile.cooldown()?,
        })
    });
    Some(Arc::new(DemandClient {
        id: client_id.into(),
        cooldown,
    }))
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
pub fn record_passed_over(ctx: &mut RequestContext, account: &Account, call: &Call) {
    let terms = ctx.terms.as_mut();
    if let Some(first) = terms.and_then(|terms| terms.passed_over.take()) {
        let client = demand_client(ctx, &first, call);
        first.gate.record_cold_demand(&account.spec.id, client);
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
