//! Step 8 of the walk: where the request should go, as the model's routing policy sees it.
//!
//! Not a permit: the result is an order, which the turnstile follows as far as permits and health allow.
//! Without a policy it says nothing, at no cost.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::admission::Order;
use infergate_core::api::Call;

use super::call::Trip;
use crate::plugin::RoutingMode;
use crate::upstream::{Class, Lane, Prompt, Wish};

/// Where a request should go, and what its endpoint is to remember of it.
#[derive(Default)]
pub struct Route {
    /// None where tier and load decide.
    pub order: Option<Arc<Order>>,
    prompt: Prompt,
}

impl Route {
    /// Asks the policy, or reads what it has said.
    pub fn find(lane: &Lane, trip: &mut Trip, call: &Call, priority: u8, now: Millis) -> Route {
        if lane.routing.mode() == RoutingMode::None {
            return Route::default();
        }
        let prompt = lane.routing.prompt(&call.body, call.lora().as_deref());
        let Some(account) = trip.event().account_id.clone() else {
            return Route::default();
        };
        let request_id = Arc::clone(trip.request_id());
        let class = Class {
            streaming: call.stream,
            priority,
            lora: prompt.lora(),
            // Endpoints of this node are at site 0; whoever must go elsewhere takes none of them.
            forced_site: trip.only_site.as_ref().map(|_| 0),
        };
        if let Some(journey) = &mut trip.journey {
            journey.class = class;
        }
        let wish = Wish {
            account: &account,
            request_id: &request_id,
            class,
            body_bytes: call.body.len(),
            deadline_ms: u32::try_from(trip.deadline.since(now).0).unwrap_or(u32::MAX),
            prompt: &prompt,
        };
        let placed = lane.routing.place(&lane.gate, &wish, now);
        let advice = placed.as_ref().map(|placed| &placed.advice);
        trip.story.routed(now, lane, advice);
        if let Some(placed) = &placed {
            trip.had_say(&placed.advice.uses);
        }
        Route {
            order: placed.map(|placed| Arc::clone(&placed.order)),
            prompt,
        }
    }

    /// The request has gone to an endpoint.
    pub fn taken(&self, lane: &Lane, url: &Arc<str>) {
        lane.routing.went(url, &self.prompt);
    }
}
