//! A trace as JSON, for people: the body of `GET /explain/{request id}`.
//!
//! Runs on an operator's request, never within a request. Spans are milliseconds with three decimals;
//! `…at_ms` is from the end of the request's head. Names are in `docs/explain.md`.

use std::sync::Arc;

use infergate_core::admission::Readiness;
use infergate_core::deadline::DeadlineBound;
use infergate_core::routing::Candidate;
use infergate_core::routing::cluster::{Need, NodeView};
use infergate_core::vram::ChallengerName;
use infergate_core::{AccountId, Millis, ModelId};
use serde_json::{Map, Value, json};

use super::cluster::{ForwardStep, ForwardStepEnd, PeerSelectionStep};
use super::record::{
    AdmissionStep, AdmissionStepResult, AttemptStep, DeadlineInputs, QuotaHold, RefusalSummary,
    RequestTrace, RetryDecision, TraceStep, TraceSummary,
};
use super::steps::RoutingStep;
use crate::plugin::RoutingMode;
use crate::telemetry::Clock;
use crate::telemetry::ForwardResult;
use crate::telemetry::clock::rfc3339;
use crate::telemetry::event::PluginUse;
use crate::upstream::{AdmissionSnapshot, ColdPlace, ColdState, RankingResult, SiteRanking};

/// Node that renders the trace.
#[derive(Clone, Copy)]
pub struct NodeInfo<'a> {
    /// The clock that the trace was measured with.
    pub clock: Clock,
    /// `node.id`.
    pub node: &'a str,
    /// `node.site`.
    pub site: &'a str,
}

impl RequestTrace {
    /// The whole trace.
    pub fn to_json(&self, here: NodeInfo<'_>) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        let end = self.summary.as_ref();
        put("request_id", self.request_id().into());
        put(
            "began_at",
            rfc3339(here.clock.wall_at(self.begin_us)).into(),
        );
        put("node", here.node.into());
        put("site", here.site.into());
        let before = self.forwarded_from.as_ref();
        put("forwarded_by", before.map(|before| &*before.node).into());
        put(
            "forwarded_after_ms",
            before.map(|before| ms(before.elapsed_us)).into(),
        );
        put("config_generation", self.generation.into());
        let client = end.and_then(|end| end.client_address);
        put(
            "client_address",
            client.map(|client| client.to_string()).into(),
        );
        put("account", account_json(end));
        put("model", model_json(end));
        // As the caller wrote it, where that is an alias or nothing known.
        let requested = self.requested_model.as_deref().map(Value::from);
        let left = end.and_then(|end| end.asked_model.as_ref());
        let left = left.map(|model| Value::from(model.as_str()));
        let requested = requested.or(left);
        put(
            "requested_model",
            requested.unwrap_or_else(|| model_json(end)),
        );
        put("client_profile", self.client_profile.as_deref().into());
        put("face", end.map(|end| end.dialect.name()).into());
        put("deadline", self.deadline.map(deadline_json).into());
        put("quota", end.and_then(quota_json).into());
        let steps = self.steps.iter().map(|step| self.step_json(step));
        put("steps", steps.collect());
        put("steps_left_out", self.steps_left_out.into());
        put(
            "plugins",
            json!(end.map_or(&[][..], |end| end.plugins.as_slice())),
        );
        put("outcome", end.map(|end| end.outcome.name()).into());
        put("status", end.map(|end| end.status).into());
        let code = end.and_then(|end| end.code).map(|code| code.to_string());
        put("error_code", code.into());
        put("refusal", self.refusal.map(refusal_json).into());
        put("streamed", end.map(|end| end.streamed).into());
        put("queued_ms", end.map(|end| ms(end.queued_us)).into());
        let load_wait = end.and_then(|end| end.load_wait_us);
        put("load_wait_ms", load_wait.map(ms).into());
        let first_byte = end.and_then(|end| end.first_byte_us);
        put("first_byte_at_ms", first_byte.map(ms).into());
        put("total_ms", end.map(|end| self.offset_ms(end.at_us)).into());
        put("neurons", end.and_then(|end| end.neurons).into());
        Value::Object(object)
    }

    /// Renders the line of the list of traces.
    pub fn to_summary_json(&self, here: NodeInfo<'_>) -> Value {
        let end = self.summary.as_ref();
        json!({
            "request_id": self.request_id(),
            "began_at": rfc3339(here.clock.wall_at(self.begin_us)),
            "account": account_json(end),
            "model": model_json(end),
            "status": end.map(|end| end.status),
            "outcome": end.map(|end| end.outcome.name()),
            "cause": self.refusal.map(|refusal| refusal.cause),
            "total_ms": end.map(|end| self.offset_ms(end.at_us)),
        })
    }

    /// Milliseconds from the request's head to `us`.
    pub(super) fn offset_ms(&self, us: u64) -> f64 {
        ms(us.saturating_sub(self.begin_us))
    }

    /// The same of a moment that may not have come.
    fn optional_offset_ms(&self, us: u64) -> Option<f64> {
        (us != 0).then(|| self.offset_ms(us))
    }

    fn step_json(&self, step: &TraceStep) -> Value {
        match step {
            TraceStep::Routing(routing) => self.routing_json(routing),
            TraceStep::Admission(admission) => self.admission_json(admission),
            TraceStep::Permit(permit) => json!({
                "step": "permit",
                "at_ms": self.offset_ms(permit.at_us),
                "class": permit.turn.class.name(),
                "turn": permit.turn.choice.name(),
                "waited_before_ms": ms(permit.waited_us.into()),
            }),
            TraceStep::WeightsChange { at_us } => json!({
                "step": "weights",
                "at_ms": self.offset_ms(*at_us),
                "weights_changed": true,
            }),
            TraceStep::Attempt(tried) => self.attempt_json(tried),
            TraceStep::Fallback(fallback) => json!({
                "step": "fallback",
                "at_ms": self.offset_ms(fallback.at_us),
                "to": fallback.to,
                "cause": fallback.cause,
            }),
            TraceStep::PeerSelection(look) => self.peer_selection_json(look),
            TraceStep::Forward(forward) => self.forward_json(forward),
        }
    }

    fn routing_json(&self, routing: &RoutingStep) -> Value {
        let advice = routing.advice.as_deref();
        let now_ms = routing.at_us / 1000;
        json!({
            "step": "routing",
            "at_ms": self.offset_ms(routing.at_us),
            "policy": routing.policy,
            "mode": match routing.mode {
                RoutingMode::None => "none",
                RoutingMode::Cached => "cached",
                RoutingMode::PerRequest => "per-request",
            },
            // Null where the policy has not ranked yet: tier and load decide.
            "ranking_age_ms": advice.map(|advice| now_ms.saturating_sub(advice.at.0)),
            "by": advice.map(|advice| ranked_by(&advice.uses)),
            "candidates": advice.map_or_else(Vec::new, places_json),
            "candidates_left_out": advice.map_or(0, |advice| advice.omitted),
        })
    }

    fn admission_json(&self, admission: &AdmissionStep) -> Value {
        let AdmissionStep {
            snapshot: found,
            result,
        } = admission;
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("step", "admission".into());
        put("at_ms", self.offset_ms(found.at_us).into());
        match *result {
            AdmissionStepResult::Leased => {
                put("result", "leased".into());
            }
            AdmissionStepResult::Queued {
                position,
                expected_wait,
                ended,
                turn,
            } => {
                put("result", "queued".into());
                put("position", position.into());
                put("expected_wait_ms", expected_wait.0.into());
                let waited = ended.map(|(at_us, _)| ms(at_us.saturating_sub(found.at_us)));
                put("waited_ms", waited.into());
                put("ended", ended.map_or("cut-off", |(_, how)| how).into());
                put("class", turn.map(|turn| turn.class.name()).into());
                put("turn", turn.map(|turn| turn.choice.name()).into());
            }
            AdmissionStepResult::Full { cause, retry_after } => {
                put("result", "full".into());
                put("cause", cause.into());
                put("retry_after_ms", retry_after.map(|after| after.0).into());
            }
        }
        let gauges = &found.gauges;
        put("waiting", gauges.depth.into());
        let permits = json!({ "used": gauges.used, "limit": gauges.limit });
        put("permits", permits);
        put("endpoints", gauges.endpoints.into());
        put("usable_endpoints", gauges.usable_endpoints.into());
        put(
            "load",
            found
                .cold
                .as_deref()
                .map(|it| load_json(it, found.at_us))
                .into(),
        );
        put("candidates", candidates_json(found));
        put("candidates_left_out", found.omitted().into());
        Value::Object(object)
    }

    fn attempt_json(&self, tried: &AttemptStep) -> Value {
        let trace = &tried.trace;
        let marks = &trace.marks;
        let connection = match (marks.reused, marks.connected_us) {
            (true, _) => Some("reused"),
            (false, 0) => None,
            (false, _) if marks.replaced => Some("replaced"),
            (false, _) => Some("new"),
        };
        json!({
            "step": "attempt",
            "at_ms": self.offset_ms(tried.begin_us),
            "endpoint": tried.url,
            "instance": tried.instance,
            "model": tried.model,
            "connection": connection,
            "connected_at_ms": self.optional_offset_ms(marks.connected_us),
            "sent_at_ms": self.optional_offset_ms(marks.sent_us),
            "head_at_ms": self.optional_offset_ms(trace.head_us),
            "failed_at_ms": self.optional_offset_ms(trace.failed_us),
            "status": Some(trace.status).filter(|status| *status != 0),
            // A request that is dropped under way records no result of its attempt.
            "result": trace.result.map_or("cut-off", |result| result.name()),
            "retry": tried.retry.map(retry_json),
        })
    }
}

/// Renders the retry decision.
pub(super) fn retry_json(decision: RetryDecision) -> Value {
    json!({
        "allowed": decision.allowed,
        "why": decision.reason(),
        "counted": decision.is_counted(),
        "pause_ms": decision.pause.map(|pause| pause.0),
        "attempts_left": decision.attempts_left(),
        "model_retries_left": decision.model_left,
    })
}

/// Milliseconds with three decimals.
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn account_json(end: Option<&TraceSummary>) -> Value {
    let account = end.and_then(|end| end.account.as_ref());
    account.map(AccountId::as_str).into()
}

fn model_json(end: Option<&TraceSummary>) -> Value {
    let model = end.and_then(|end| end.model.as_ref());
    model.map(ModelId::as_str).into()
}

fn deadline_json(deadline: DeadlineInputs) -> Value {
    let DeadlineInputs {
        rule,
        model_secs,
        requested,
    } = deadline;
    let bound: DeadlineBound = rule.bound(model_secs, requested);
    json!({
        "after_ms": rule.deadline(Millis::ZERO, model_secs, requested).0,
        "from": bound.name(),
        "model_secs": model_secs,
        "floor_secs": rule.model_floor_secs,
        "ceiling_secs": rule.ceiling_secs,
        "profile_secs": rule.profile_secs,
        "caller_ms": requested.map(|requested| requested.0),
    })
}

fn quota_json(end: &TraceSummary) -> Option<Value> {
    let QuotaHold {
        neurons,
        per_day,
        granted,
    } = end.quota?;
    let settlement = match (granted, end.neurons) {
        (false, _) => "refused",
        (true, Some(_)) => "settled",
        (true, None) => "released",
    };
    Some(json!({ "neurons": neurons, "per_day": per_day, "settlement": settlement }))
}

fn refusal_json(refusal: RefusalSummary) -> Value {
    json!({
        "cause": refusal.cause,
        "reason": refusal.reason,
        "message": refusal.message,
        "retry_after_ms": refusal.retry_after.map(|after| after.0),
    })
}

/// Renders the source of an order.
pub(super) fn ranked_by(uses: &[PluginUse]) -> Value {
    match uses.first() {
        Some(PluginUse { plugin, .. }) => json!({
            "plugin": plugin.name,
            "sha256": plugin.sha256,
            "config": plugin.config,
        }),
        None => "builtin".into(),
    }
}

fn places_json(advice: &RankingResult) -> Vec<Value> {
    let place = |(url, step, candidate): &(Arc<str>, u8, Candidate)| {
        json!({
            "endpoint": url,
            "rank": step,
            "tier": candidate.tier,
            "health": candidate.health,
            "permits": {
                "used": candidate.permits_total.saturating_sub(candidate.permits_free),
                "limit": candidate.permits_total,
            },
            "rtt_us": candidate.rtt_us,
            "ttft_us": candidate.ttft_us,
            "latency_us": candidate.latency_us,
            "error_ppm": candidate.error_ppm,
            "lora_affinity": candidate.lora_affinity,
            "prefix_affinity": candidate.prefix_affinity,
            "out_of_capacity_in_a_row": candidate.ooc,
        })
    };
    advice.ranked.iter().map(place).collect()
}

/// Renders what a request found of a model that was not ready.
fn load_json(cold: &ColdState, at_us: u64) -> Value {
    let (earliest, expected) = match cold.readiness {
        Readiness::Expected { earliest, expected } => (Some(earliest), Some(expected)),
        Readiness::Never => (None, None),
    };
    let now = Millis(at_us / 1000);
    json!({
        "slot": cold.slot,
        "reason": cold.reason,
        "place": cold.place.as_ref().map(|it| it.ahead + 1),
        "ahead": cold.place.as_ref().map(ahead_json),
        "debt_per_load_sec": cold.place.as_ref().map(|it| it.debt_per_load_sec),
        "earliest_in_ms": earliest.map(|it| it.since(now).0),
        "expected_in_ms": expected.map(|it| it.since(now).0),
    })
}

/// Names what comes before a model: a claim of a command or of another gateway by its identity.
fn ahead_json(place: &ColdPlace) -> Value {
    let before = place.front.iter().take(place.ahead);
    let names = before.map(|name| match name {
        ChallengerName::Model(model) => model.to_string(),
        ChallengerName::Claim(claim) => claim.to_string(),
    });
    names.collect()
}

fn candidates_json(found: &AdmissionSnapshot) -> Value {
    let object = found.endpoints().map(|endpoint| {
        json!({
            "endpoint": endpoint.url,
            "rank": endpoint.rank,
            "health": endpoint.health,
            "permits": { "used": endpoint.used, "limit": endpoint.limit },
            "tried_before": endpoint.avoided,
        })
    });
    object.collect()
}

impl RequestTrace {
    pub(super) fn peer_selection_json(&self, look: &PeerSelectionStep) -> Value {
        let (need, wait_max_ms) = match look.need {
            Need::Permit => ("permit", None),
            Need::Queue { wait_max, .. } => ("queue", Some(wait_max.0)),
        };
        json!({
            "step": "peer_selection",
            "at_ms": self.offset_ms(look.at_us),
            "need": need,
            "wait_max_ms": wait_max_ms,
            "forced_site": look.forced_site,
            "sites_by": look.sites.as_ref().map(|ranking| ranked_by(&ranking.uses)),
            "sites_ranking_age_ms": look.sites.as_ref().map(|ranking| (look.at_us / 1000).saturating_sub(ranking.at.0)),
            "sites": look.sites.as_ref().map_or_else(Vec::new, |ranking| sites(ranking)),
            "chosen": look.chosen,
            "nodes": look.nodes.iter().map(node).collect::<Vec<_>>(),
            "nodes_left_out": look.nodes_left_out,
        })
    }

    pub(super) fn forward_json(&self, forward: &ForwardStep) -> Value {
        let (status, rejection) = match forward.ended {
            Some((_, ForwardStepEnd::Answered(status))) => (Some(status), None),
            Some((_, ForwardStepEnd::Rejected { free, wait_ms, .. })) => {
                (None, Some(json!({ "free": free, "wait_ms": wait_ms })))
            }
            _ => (None, None),
        };
        let result = match forward.ended {
            // A request that is dropped under way records no result.
            None => "cut-off",
            Some((_, ForwardStepEnd::Answered(_))) => ForwardResult::Answered.name(),
            Some((_, ForwardStepEnd::Rejected { result, .. } | ForwardStepEnd::Ended(result))) => {
                result.name()
            }
        };
        json!({
            "step": "forward",
            "at_ms": self.offset_ms(forward.begin_us),
            "node": forward.node,
            "site": forward.site,
            "rtt_ms": Some(forward.rtt_us).filter(|us| *us > 0).map(|us| ms(us.into())),
            "in_flight": forward.in_flight,
            "wait_max_ms": forward.wait_max_ms,
            "ended_at_ms": forward.ended.map(|(at_us, _)| self.offset_ms(at_us)),
            "result": result,
            "status": status,
            "rejection": rejection,
            "retry": forward.retry.map(retry_json),
        })
    }
}

/// Sites in the policy's order.
fn sites(ranking: &SiteRanking) -> Vec<Value> {
    let site = |(name, rank, seen): &(Arc<str>, u8, Candidate)| {
        json!({
            "site": name,
            "rank": rank,
            "free": seen.permits_free,
            "permits": seen.permits_total,
            "queued": seen.queue_len,
            "rtt_us": seen.rtt_us,
            "ttft_us": seen.ttft_us,
        })
    };
    ranking.ranked.iter().map(site).collect()
}

fn node(view: &NodeView) -> Value {
    json!({
        "node": view.node.name,
        "site": view.site,
        "skip_reason": view.skip_reason.map(|why| why.name()),
        "free": view.free,
        "permits": view.load.permits,
        "queued": view.load.queued,
        "wait_ms": view.load.wait_ms,
        "in_flight_from_here": view.in_flight,
        "rtt_ms": Some(view.rtt_us).filter(|us| *us > 0).map(|us| ms(us.into())),
        "report_age_ms": view.age.0,
    })
}
