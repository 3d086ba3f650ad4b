//! Step 8 of the request pipeline: where the request should go, as the model's routing policy sees it.
//!
//! Not a permit: the result is an order, which the turnstile follows as far as permits and health allow.
//! Without a policy it says nothing, at no cost.

use std::sync::Arc;

use infergate_core::admission::EndpointOrder;

use crate::pipeline::attempt::request::ModelRequest;
use crate::pipeline::context::RequestContext;
use crate::plugin::RoutingMode;
use crate::telemetry::Clock;
use crate::upstream::{ModelRuntime, PromptFingerprint, RankingClass, RankingRequest};

/// Preferred endpoints of a request, and the prompt that its endpoint is to remember.
#[derive(Default)]
pub struct EndpointPreference {
    /// None where tier and load decide.
    pub order: Option<Arc<EndpointOrder>>,
    prompt: PromptFingerprint,
}

impl EndpointPreference {
    /// Asks the policy, or reads what it has said.
    pub fn find(
        model: &ModelRuntime,
        ctx: &mut RequestContext,
        request: &ModelRequest,
        priority: u8,
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

    /// The request has gone to an endpoint.
    pub fn record_choice(&self, model: &ModelRuntime, url: &Arc<str>) {
        model.routing.record_sent(url, &self.prompt);
    }
}
