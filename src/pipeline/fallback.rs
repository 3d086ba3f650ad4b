//! The models one request may be served by: the one it asks for, then its fallbacks.
//!
//! Not the decision: the core says whether a model is left, and which ones are open.
//! A model without fallbacks costs no look-up. Once all have failed, the client gets the error of the
//! model it named.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::model::AccountSpec;
use infergate_core::routing::{ATTEMPTS_MAX, FallbackReason, FallbackState};

use crate::pipeline::context::RequestContext;
use crate::pipeline::error::RequestError;
use crate::pipeline::terms;
use crate::state::Shared;
use crate::upstream::ModelRuntime;

/// Reason for which a model has not begun to respond.
pub enum ModelError {
    /// The model cannot take the request as it is.
    Unfit(Refusal),
    /// The model could not serve the request, and no server has started to work.
    Fallback(FallbackReason, Refusal),
    /// The configuration changed while it waited, in what the request was checked for.
    Outdated,
    /// The request ends here, whatever other models could do.
    Ended(RequestError),
}

impl From<RequestError> for ModelError {
    fn from(left: RequestError) -> ModelError {
        ModelError::Ended(left)
    }
}

impl From<Refusal> for ModelError {
    fn from(refusal: Refusal) -> ModelError {
        ModelError::Ended(refusal.into())
    }
}

impl ModelError {
    /// Classifies a refusal of the admission gate of `model`.
    pub fn from_admission(left: RequestError, model: &ModelRuntime) -> ModelError {
        match left {
            RequestError::Refused(Refusal::NoHealthyEndpoint) if model.gate.is_cold() => {
                // What the client hears should no other model serve it.
                let retry_after = model.gate.expected_wait();
                let refusal = Refusal::CannotStartInTime { retry_after };
                ModelError::Fallback(FallbackReason::Cold, refusal)
            }
            RequestError::Refused(refusal) if refusal.is_out_of_capacity() => {
                let reason = match refusal {
                    Refusal::NoHealthyEndpoint => FallbackReason::Unhealthy,
                    _ => FallbackReason::OutOfCapacity,
                };
                ModelError::Fallback(reason, refusal)
            }
            left => ModelError::Ended(left),
        }
    }
}

/// Fallback of one request.
pub struct ModelFallback<'a> {
    shared: &'a Shared,
    account: Arc<AccountSpec>,
    /// The request has waited for its first model already and goes to the head of the queue.
    is_resumed: bool,
    /// Kept for the models to come, and taken by the last one: a task changes what it gets.
    call: Option<Call>,
    model: Arc<ModelRuntime>,
    /// Models to come, the next one last.
    candidates: Vec<Arc<ModelRuntime>>,
    state: FallbackState,
    /// The model asked for, once it is left. Boxed: few requests leave it.
    primary: Option<Box<PrimaryModel>>,
}

/// Model that was asked for, and left.
struct PrimaryModel {
    model: Arc<ModelRuntime>,
    /// Its latest error.
    refusal: Refusal,
    /// Model that was left because it has to be loaded: the request waits for it when no other serves.
    awaited: Option<Arc<ModelRuntime>>,
}

impl<'a> ModelFallback<'a> {
    /// Begins at the model that was asked for.
    pub fn begin(
        shared: &'a Shared,
        ctx: &RequestContext,
        account: &Arc<AccountSpec>,
        model: Arc<ModelRuntime>,
        call: Call,
    ) -> ModelFallback<'a> {
        let mut fallback = ModelFallback {
            shared,
            account: Arc::clone(account),
            is_resumed: false,
            call: Some(call),
            candidates: Vec::new(),
            state: FallbackState::new(model.spec.pin_primary, 0),
            model,
            primary: None,
        };
        // Another node's client has that node's fallbacks.
        if ctx.can.may_fall_back {
            fallback.find_candidates(ctx);
        }
        fallback
    }

    /// Finds the open rungs.
    fn find_candidates(&mut self, ctx: &RequestContext) {
        if let Some(task) = ctx.named_task() {
            let account = &self.account;
            self.candidates = terms::open_candidates(self.shared, ctx, account, task, &self.model);
            self.candidates.reverse();
            self.state = FallbackState::new(task.pin_primary, self.candidates.len());
            return;
        }
        let snapshot = &ctx.snapshot;
        let spec = &self.model.spec;
        if spec.fallbacks.is_empty() {
            return;
        }
        let models = spec.fallbacks.iter().rev();
        let indices = models.filter_map(|id| Some(snapshot.catalog.model(id.as_str())?.0));
        let open = indices.map(|index| snapshot.models.get(index));
        self.candidates = open.filter(|model| self.is_open(model)).cloned().collect();
        self.state = FallbackState::new(spec.pin_primary, self.candidates.len());
    }

    fn is_open(&self, model: &ModelRuntime) -> bool {
        terms::is_open(self.shared, &self.account, model)
    }

    /// The model to ask now.
    pub fn model(&self) -> &Arc<ModelRuntime> {
        &self.model
    }

    /// Returns whether the request has waited for the present model already.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Goes to the head of the line where it has waited at the gate of `former`.
    pub fn resume_after(&mut self, former: &ModelRuntime) {
        self.is_resumed = Arc::ptr_eq(&self.model.gate, &former.gate);
    }

    /// The guard has come down since this model was chosen: nothing may be sent there any more.
    pub fn is_barred(&self) -> bool {
        let primary = self.primary.as_ref();
        // Back at the model that was asked for, no guard is asked.
        let is_fallback = primary.is_some_and(|it| !Arc::ptr_eq(&it.model, &self.model));
        is_fallback && !self.is_open(&self.model)
    }

    /// Returns whether the request goes on to another model where no endpoint of the present one is usable. A
    /// model that is to be loaded is left for one that is ready, and for no other.
    pub fn has_alternative(&self, attempts: u32) -> bool {
        let may_leave = |reason| self.state.may_fall_back(reason, attempts);
        if !may_leave(FallbackReason::Unhealthy) {
            return false;
        }
        let is_cold = self.model.spec.process.is_some() && self.model.gate.is_cold();
        !is_cold || self.candidates.iter().any(|it| self.is_warm(it))
    }

    fn is_warm(&self, model: &ModelRuntime) -> bool {
        self.is_open(model) && model.gate.gauges().usable_endpoints > 0
    }

    /// State of the fallback, for the retry decisions of the attempts.
    pub fn state(&self) -> FallbackState {
        self.state
    }

    /// The request for the present model before it is taken; none once the last model has taken it.
    pub fn untaken_call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    fn has_awaited(&self) -> bool {
        let primary = self.primary.as_ref();
        primary.is_some_and(|it| it.awaited.is_some())
    }

    /// The request for the present model. To be taken once at each.
    pub fn call(&mut self) -> Result<Call, Refusal> {
        let call = match self.candidates.is_empty() && !self.has_awaited() {
            true => self.call.take(),
            false => self.call.clone(),
        };
        // Taken before only by the last model, after which there is none.
        call.ok_or(Refusal::Internal)
    }

    /// Advances to the next model that is open, with the error of the present one.
    ///
    /// # Errors
    /// No model is left; the error is for the client.
    pub fn advance(
        &mut self,
        ctx: &mut RequestContext,
        unserved: ModelError,
    ) -> Result<(), RequestError> {
        let (reason, refusal) = match unserved {
            ModelError::Ended(left) => return Err(left),
            // The fallback was undone by now.
            ModelError::Outdated => return Err(Refusal::Internal.into()),
            // What is wrong with a request is for the model that was asked for to say.
            ModelError::Unfit(refusal) if self.primary.is_none() => return Err(refusal.into()),
            ModelError::Unfit(refusal) => (None, refusal),
            ModelError::Fallback(reason, refusal) => (Some(reason), refusal),
        };
        let cause = refusal.clone();
        let is_cold = reason == Some(FallbackReason::Cold);
        if is_cold {
            let call = self.call.as_ref();
            let client = call.and_then(|call| terms::demand_client(ctx, &self.model, call));
            self.model.gate.record_cold_demand(&self.account.id, client);
        }
        let leaves = self
            .state
            .may_fall_back(reason.unwrap_or(FallbackReason::Failed), ctx.attempts);
        let (primary, first_refusal) = self.leave(refusal, is_cold && leaves);
        // One that is cold too is not loaded in its place: the request goes back to the first one that it left.
        let must_be_warm = is_cold || self.has_awaited();
        let next = match leaves.then(|| self.next_open(must_be_warm)).flatten() {
            Some(next) => {
                if let Some(reason) = reason {
                    self.model.metrics.record_fallback(reason);
                }
                self.state.record_fallback(self.candidates.len());
                Some(next)
            }
            None => self.return_to_awaited(ctx.attempts),
        };
        let Some(next) = next else {
            ctx.set_model(&primary, &primary);
            return Err(first_refusal.into());
        };
        self.is_resumed = Arc::ptr_eq(&next, &self.model);
        self.model = next;
        ctx.set_model(&self.model, &primary);
        let now_us = self.shared.clock.micros();
        let cause = match is_cold {
            true => FallbackReason::Cold.name(),
            false => cause.cause(),
        };
        ctx.trace
            .record_fallback(now_us, &self.model.spec.id, cause);
        match &self.call {
            Some(call) => {
                ctx.exchange_quota(&self.account, &self.model, call);
                Ok(())
            }
            None => Err(Refusal::Internal.into()),
        }
    }

    /// Takes note of the error of the present model; returns the model asked for, with its own.
    fn leave(&mut self, refusal: Refusal, is_awaited: bool) -> (Arc<ModelRuntime>, Refusal) {
        let model = &self.model;
        let left = || {
            Box::new(PrimaryModel {
                model: Arc::clone(model),
                refusal: refusal.clone(),
                awaited: None,
            })
        };
        let primary = self.primary.get_or_insert_with(left);
        if Arc::ptr_eq(&primary.model, model) {
            // Its latest word, where the request has come back to it.
            primary.refusal = refusal;
        }
        if is_awaited && primary.awaited.is_none() {
            primary.awaited = Some(Arc::clone(model));
        }
        (Arc::clone(&primary.model), primary.refusal.clone())
    }

    /// Goes back to the model that was left because it has to be loaded: no other is left, and none has begun to work.
    fn return_to_awaited(&mut self, attempts: u32) -> Option<Arc<ModelRuntime>> {
        let awaited = self.primary.as_mut()?.awaited.take();
        let awaited = awaited.filter(|_| attempts < ATTEMPTS_MAX)?;
        self.candidates.clear();
        self.state.record_return();
        Some(awaited)
    }

    /// Next model that is open, and ready where it `must_be_warm`. The guard may have come down while the request waited.
    fn next_open(&mut self, must_be_warm: bool) -> Option<Arc<ModelRuntime>> {
        while let Some(next) = self.candidates.pop() {
            let is_next = match must_be_warm {
                true => self.is_warm(&next),
                false => self.is_open(&next),
            };
            if is_next {
                return Some(next);
            }
        }
        None
    }
}
