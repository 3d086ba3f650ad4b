//! The world `routing-policy`.
//!
//! Ids that a guest may not name are not a failure: the order is made whole instead.

use std::sync::Arc;

use infergate_core::routing::policy::{self, CANDIDATES_MAX};
use infergate_core::routing::{Candidate, Choice, Health, Hints};

use crate::plugin::failure::Failure;
use crate::plugin::roles::captured_args;
use crate::plugin::roles::guest::{ABSENT, broken};
use crate::plugin::roles::traits::RoutingPolicy;
use crate::plugin::runtime::bindings::routing as wit;
use crate::plugin::runtime::call::Caller;
use crate::plugin::runtime::call::HookCall;
use crate::plugin::runtime::revision::Revision;
use crate::telemetry::event::PluginIdentity;

impl RoutingPolicy for Revision {
    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        Some(&self.parts.identity)
    }

    fn rank(
        &self,
        caller: Option<Caller<'_>>,
        hints: &Hints,
        candidates: &[Candidate],
    ) -> Result<Vec<Choice>, Failure> {
        let shown = &candidates[..candidates.len().min(CANDIDATES_MAX)];
        let given: Vec<wit::Candidate> = shown.iter().map(candidate).collect();
        let hook = HookCall {
            name: "rank",
            deadline_ms: self.parts.bounds.deadline_ms,
            input_bytes: 0,
        };
        let hints_param = hints_in(hints);
        let ended = self.call(hook, caller, |store, exports| {
            let Some(routing) = &exports.routing else {
                return Ok(Err(ABSENT));
            };
            let returned =
                routing
                    .infergate_plugin_routing()
                    .call_rank(store, hints_param, &given)?;
            Ok(returned.map_err(broken).and_then(|returned| {
                if returned.len() > given.len() {
                    return Err(Failure::Invalid("rank-length"));
                }
                let choices: Vec<Choice> = returned
                    .into_iter()
                    .map(|choice| Choice {
                        id: choice.id,
                        step: choice.step,
                    })
                    .collect();
                Ok(policy::complete_ranking(&choices, candidates))
            }))
        });
        let bytes = captured_args::SMALL * (1 + shown.len());
        self.capture(hook, caller, (&ended, bytes), || {
            captured_args::rank(hints, shown)
        });
        ended
    }
}

fn hints_in(hints: &Hints) -> wit::Hints {
    wit::Hints {
        model: hints.model,
        source_site: hints.source_site,
        body_bytes: hints.body_bytes,
        attempt: hints.attempt,
        streaming: hints.streaming,
        priority: hints.priority,
        deadline_ms: hints.deadline_ms,
        lora: hints.lora,
        forced_site: hints.forced_site,
        seed: hints.seed,
    }
}

fn candidate(one: &Candidate) -> wit::Candidate {
    wit::Candidate {
        id: one.id,
        site: one.site,
        node: one.node,
        health: match one.health {
            Health::Healthy => wit::Health::Healthy,
            Health::Degraded => wit::Health::Degraded,
            Health::Ejected => wit::Health::Ejected,
            Health::Draining => wit::Health::Draining,
            Health::Down => wit::Health::Down,
        },
        permits_free: one.permits_free,
        permits_total: one.permits_total,
        queue_len: one.queue_len,
        rtt_us: one.rtt_us,
        ttft_us: one.ttft_us,
        latency_us: one.latency_us,
        error_ppm: one.error_ppm,
        lora_affinity: one.lora_affinity,
        prefix_affinity: one.prefix_affinity,
        tier: one.tier,
        ooc: one.ooc,
    }
}
