//! The models one request may be served by: the one it asks for, then its fallbacks.
//!
//! Not the decision: the core says whether a model is left, and which ones are open.
//! A model without fallbacks costs no look-up. Once all have failed, the client gets the error of the
//! model it named.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::model::{Access, AccountSpec, Catalog};
use infergate_core::routing::{FallbackCandidate, FallbackReason, FallbackState};

use crate::pipeline::context::RequestContext;
use crate::pipeline::error::RequestError;
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
    /// Classifies a refusal of the model's admission gate.
    pub fn from_admission(left: RequestError) -> ModelError {
        match left {
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
    /// The model asked for and its error, once it is left. Boxed: few requests leave it.
    primary: Option<Box<(Arc<ModelRuntime>, Refusal)>>,
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
        if ctx.can.may_fall_back && !fallback.model.spec.fallbacks.is_empty() {
            fallback.find_candidates(ctx);
        }
        fallback
    }

    /// Finds the open rungs.
    fn find_candidates(&mut self, ctx: &RequestContext) {
        let snapshot = &ctx.snapshot;
        let spec = &self.model.spec;
        let models = spec.fallbacks.iter().rev();
        let indices = models.filter_map(|id| Some(snapshot.catalog.model(id.as_str())?.0));
        let open = indices.map(|index| snapshot.models.get(index));
        self.candidates = open.filter(|model| self.is_open(model)).cloned().collect();
        self.state = FallbackState::new(spec.pin_primary, self.candidates.len());
    }

    fn is_open(&self, model: &ModelRuntime) -> bool {
        let candidate = FallbackCandidate {
            is_allowed: Catalog::access(&self.account, &model.spec) == Access::Allowed,
            is_external: model.spec.is_external(),
        };
        candidate.is_open(self.shared.runtime.flags().allow_cloud_fallback)
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
        self.primary.is_some() && !self.is_open(&self.model)
    }

    /// State of the fallback, for the retry decisions of the attempts.
    pub fn state(&self) -> FallbackState {
        self.state
    }

    /// The request for the present model before it is taken; none once the last model has taken it.
    pub fn untaken_call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    /// The request for the present model. To be taken once at each.
    pub fn call(&mut self) -> Result<Call, Refusal> {
        let call = match self.candidates.is_empty() {
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
        let left = || Box::new((Arc::clone(&self.model), refusal));
        let (primary, first_refusal) = (**self.primary.get_or_insert_with(left)).clone();
        let leaves = self
            .state
            .may_fall_back(reason.unwrap_or(FallbackReason::Failed), ctx.attempts);
        let Some(next) = leaves.then(|| self.next_open()).flatten() else {
            ctx.set_model(&primary, &primary);
            return Err(first_refusal.into());
        };
        if let Some(reason) = reason {
            self.model.metrics.record_fallback(reason);
        }
        self.state.record_fallback(self.candidates.len());
        self.is_resumed = false;
        self.model = next;
        ctx.set_model(&self.model, &primary);
        let now_us = self.shared.clock.micros();
        ctx.trace
            .record_fallback(now_us, &self.model.spec.id, &cause);
        match &self.call {
            Some(call) => {
                ctx.exchange_quota(&self.account, &self.model, call);
                Ok(())
            }
            None => Err(Refusal::Internal.into()),
        }
    }

    /// The guard may have come down while the request waited.
    fn next_open(&mut self) -> Option<Arc<ModelRuntime>> {
        while let Some(next) = self.candidates.pop() {
            if self.is_open(&next) {
                return Some(next);
            }
        }
        None
    }
}
