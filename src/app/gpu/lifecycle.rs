//! Lifecycle events: a JSON object for each transition, lease, swap, load and failure of a slot, for the demand of models,
//! and for each configuration.
//!
//! Decides nothing. Names of states and reasons are those of `/gpu`.

use infergate_core::vram::replay::{DEMAND_EVENT, DemandLine, HOST_EVENT, HostLine};
use infergate_core::vram::{DeviceShare, PoolReport, SlotId};
use infergate_core::{Millis, ModelId};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Moment of an event, by the calendar and since the start of the gateway.
pub(super) struct EventMoment {
    /// RFC 3339.
    pub at: String,
    pub now: Millis,
}

impl EventMoment {
    /// Returns the event of a report; none of one that changed nothing.
    pub fn of_report(
        &self,
        (slot, instance): (&SlotId, Option<&str>),
        report: &PoolReport,
    ) -> Option<Value> {
        let (event, members) = match report {
            PoolReport::Transition { from, to } => (
                "transition",
                json!({ "from": from.name(), "to": to.name() }),
            ),
            PoolReport::Swap {
                victims,
                debt,
                cost,
                reason,
            } => {
                let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
                let members = json!({ "challenger": slot.to_string(), "victims": victims, "debt": debt, "cost": cost, "reason": reason.name() });
                ("swap", members)
            }
            PoolReport::Setup(status) => ("setup", json!({ "status": status.name() })),
            PoolReport::Failure(failure) => ("failure", json!({ "failure": failure.name() })),
            PoolReport::Load { kind, took } => {
                let members = json!({ "kind": kind.name(), "took_ms": took.0 });
                ("load", members)
            }
            PoolReport::RoomForClaim(claim) => {
                ("room_for_claim", json!({ "claim": claim.to_string() }))
            }
            PoolReport::Alarm => ("alarm", json!({})),
            PoolReport::Ignored(_) => return None,
        };
        Some(self.event(event, (slot, instance), members))
    }

    /// Returns the event of an answer of the ledger: `held`, `refused` or `late`.
    pub fn of_lease(
        &self,
        (slot, instance): (&SlotId, Option<&str>),
        result: &'static str,
        shares: &[DeviceShare],
    ) -> Value {
        let shares = shares.iter();
        let shares: Vec<Value> = shares
            .map(|share| json!({ "device": share.device.as_str(), "mib": share.mib }))
            .collect();
        let members = json!({ "result": result, "shares": shares });
        self.event("lease", (slot, instance), members)
    }

    /// Returns the event of a configuration: what a replay needs of models and devices.
    pub fn of_host(&self, line: &HostLine) -> Value {
        self.host_event(HOST_EVENT, None, line)
    }

    /// Returns the event of the demand of a model.
    pub fn of_demand(&self, model: &ModelId, line: &DemandLine) -> Value {
        self.host_event(DEMAND_EVENT, Some(model), line)
    }

    /// Returns an event that is of no slot.
    fn host_event(&self, event: &str, model: Option<&ModelId>, line: &impl Serialize) -> Value {
        let mut object = self.head(event);
        if let Some(model) = model {
            object.insert("model".to_owned(), json!(model.as_str()));
        }
        if let Value::Object(members) = json!(line) {
            object.extend(members);
        }
        Value::Object(object)
    }

    fn head(&self, event: &str) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("at".to_owned(), json!(self.at));
        object.insert("ms".to_owned(), json!(self.now.0));
        object.insert("event".to_owned(), json!(event));
        object
    }

    fn event(
        &self,
        event: &'static str,
        (slot, instance): (&SlotId, Option<&str>),
        members: Value,
    ) -> Value {
        let mut object = self.head(event);
        object.insert("model".to_owned(), json!(slot.model.as_str()));
        object.insert("slot".to_owned(), json!(slot.to_string()));
        object.insert("instance".to_owned(), json!(instance));
        if let Value::Object(members) = members {
            object.extend(members);
        }
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::vram::{SlotState, SwapReason};

    use super::*;

    #[test]
    fn a_swap_names_challenger_victims_and_what_decided() {
        let slot = |model: &str| SlotId {
            model: model.into(),
            number: 0,
        };
        let moment = EventMoment {
            at: "2026-11-25T10:00:00.000Z".to_owned(),
            now: Millis(1500),
        };
        let swap = PoolReport::Swap {
            victims: vec![slot("b")],
            debt: 12.5,
            cost: 0.5,
            reason: SwapReason::TurnOver,
        };
        let own = slot("a");
        let event = moment.of_report((&own, None), &swap).unwrap();
        let expected = json!({
            "at": "2026-11-25T10:00:00.000Z", "ms": 1500, "event": "swap", "model": "a", "slot": "a#0",
            "instance": null, "challenger": "a#0", "victims": ["b#0"], "debt": 12.5, "cost": 0.5,
            "reason": SwapReason::TurnOver.name(),
        });
        assert_eq!(event, expected);
        let transition = PoolReport::Transition {
            from: SlotState::Cold,
            to: SlotState::Ready,
        };
        let event = moment
            .of_report((&own, Some("a#0-1")), &transition)
            .unwrap();
        assert_eq!(
            (&event["from"], &event["to"]),
            (&json!("cold"), &json!("ready"))
        );
        assert_eq!(event["instance"], "a#0-1");
    }

    #[test]
    fn the_demand_of_a_model_is_a_line_that_a_replay_reads() {
        let moment = EventMoment {
            at: "2026-11-25T10:00:00.000Z".to_owned(),
            now: Millis(1500),
        };
        let line = DemandLine {
            span_ms: 250,
            arrivals: 2,
            refused: 0,
            accounts: 1,
            priority: 5,
            service_ms: None,
            waiting: 1,
            waited_ms: 120,
            longest_wait_ms: 120,
        };
        let event = moment.of_demand(&ModelId::from("a"), &line);
        let expected = json!({
            "at": "2026-11-25T10:00:00.000Z", "ms": 1500, "event": "demand", "model": "a", "span_ms": 250,
            "arrivals": 2, "refused": 0, "accounts": 1, "priority": 5, "service_ms": null, "waiting": 1,
            "waited_ms": 120, "longest_wait_ms": 120,
        });
        assert_eq!(event, expected);
        let read: DemandLine = serde_json::from_value(event).unwrap();
        assert_eq!(read, line);
    }
}
