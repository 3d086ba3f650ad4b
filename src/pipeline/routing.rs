//! Step 8 of the request pipeline: where the request should go, as the model's routing policy sees it.
//!
//! Not a permit: the result is an order, which the turnstile follows as far as permits and health allow.
//! Without a policy it says nothing, at no cost.

use std::sync::Arc;

use infergate_core::admission::{EndpointId, EndpointOrder, PermitRequest};

use crate::pipeline::admission::refund_tokens;
use crate::pipeline::attempt::request::ModelRequest;
use crate::pipeline::context::RequestContext;
use crate::plugin::RoutingMode;
use crate::telemetry::Clock;
use crate::upstream::{
    GateEntry, ModelRuntime, Permit, PromptFingerprint, RankingClass, RankingRequest,
};

/// Preferred endpoints of a request, and the prompt that its endpoint is to remember.
#[derive(Default)]
pub struct EndpointPreference {
    /// None where tier and load decide.
    pub order: Option<Arc<EndpointOrder>>,
    prompt: PromptFingerprint,
}

impl EndpointPreference {
    /// Asks the policy, or reads what it has said; `held` is the endpoint of the permit that the request came with.
    pub fn find(
        model: &ModelRuntime,
        ctx: &mut RequestContext,
        request: &ModelRequest,
        (priority, held): (u8, Option<EndpointId>),
        clock: Clock,
    ) -> EndpointPreference {
        if model.routing.mode() == RoutingMode::None {
            return EndpointPreference::default();
        }
        let now = clock.recent();
        let (call, lora) = (request.call(), request.lora());
        let prompt = model.routing.prompt(&call.body, lora.as_deref());
        let Some(account) = ctx.account().cloned() else {
            return EndpointPreference::default();
        };
        let request_id = Arc::clone(ctx.request_id());
        let class = RankingClass {
            streaming: call.stream,
            priority,
            lora: prompt.lora(),
            // Endpoints of this node are at site 0; a request for another site takes none of them.
            forced_site: ctx.forced_site.as_ref().map(|_| 0),
        };
        ctx.ranking_class = class;
        let request = RankingRequest {
            account: &account,
            request_id: &request_id,
            class,
            body_bytes: call.body.len(),
            deadline_ms: u32::try_from(ctx.deadline.since(now).0).unwrap_or(u32::MAX),
            prompt: &prompt,
            held,
        };
        let ranking = model.routing.rank_endpoints(&model.gate, &request, now);
        let advice = ranking.as_ref().map(|ranking| &ranking.result);
        ctx.trace.record_routing(now, model, advice);
        if let Some(ranking) = &ranking {
            ctx.record_plugins(&ranking.result.uses);
        }
        EndpointPreference {
            order: ranking.map(|ranking| Arc::clone(&ranking.order)),
            prompt,
        }
    }

    /// Returns the permit that a request came with, or one of an endpoint that is preferred to its own and free now.
    pub fn exchange(
        &self,
        model: &ModelRuntime,
        wanted: &PermitRequest,
        held: Permit,
        clock: Clock,
    ) -> Permit {
        let order = match self.order.as_deref() {
            // Another gate's endpoints have other numbers.
            Some(order) if held.is_of(&model.gate) => order,
            _ => return held,
        };
        let step = |permit: &Permit| {
            let mut ranked = order.ranked().iter();
            let found = ranked.find(|(_, endpoint)| *endpoint == permit.endpoint);
            found.map_or(u8::MAX, |(step, _)| *step)
        };
        let best = order.ranked().first().map_or(u8::MAX, |(step, _)| *step);
        if step(&held) <= best {
            return held;
        }
        let request = PermitRequest {
            no_wait: true,
            ..wanted.clone()
        };
        match model.gate.request_permit_at(request, clock.micros()).1 {
            Ok(GateEntry::Leased(other)) if step(&other) < step(&held) => {
                held.give_back();
                other
            }
            Ok(GateEntry::Leased(other)) => {
                refund_tokens(model, wanted);
                other.give_back();
                held
            }
            _ => held,
        }
    }

    /// The request has gone to an endpoint.
    pub fn record_choice(&self, model: &ModelRuntime, url: &Arc<str>) {
        model.routing.record_sent(url, &self.prompt);
    }
}
