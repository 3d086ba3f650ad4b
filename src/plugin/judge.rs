//! Compares an answer in JSON with the expected one, and with the host's rules.
//!
//! Runs nothing. The same rules as on the request path, applied to what a fixture's call answered.

use infergate_core::billing::{
    CHARGE_MAX_NEURONS, Charge, ChargeLine, Metric, MetricSource, UsageReport,
};
use infergate_core::model::Trust;
use infergate_core::task::{Rejection, STATE_MAX_BYTES};
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use super::fixture::PluginFixture;
use super::{check, pointer};

/// Numbers this close, relatively, are one: a fixture is written by people.
const TOLERANCE: f64 = 1e-9;

/// A failure as `expect-error` spells it.
pub fn failure(failure: &Failure) -> Value {
    match failure {
        Failure::Rejected(said) => json!({
            "class": "rejected", "status": said.status, "code": said.code,
            "message": said.message, "pointer": said.pointer,
        }),
        Failure::Invalid(rule) => json!({ "class": "invalid", "rule": rule }),
        Failure::Broken(said) => json!({ "class": "broken", "message": said }),
        other => json!({ "class": other.class() }),
    }
}

/// A place where an answer is not the expected one.
#[derive(Clone, Debug, PartialEq)]
pub struct FixtureDifference {
    /// RFC 6901, empty for the whole answer.
    pub at: String,
    /// Value in the fixture.
    pub expected: Value,
    /// Value in the answer; null where there is none.
    pub got: Value,
}

impl std::fmt::Display for FixtureDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match self.at.as_str() {
            "" => "the answer",
            at => at,
        };
        write!(f, "{place}: expected {}, got {}", self.expected, self.got)
    }
}

/// Every difference, in the order of what is expected. Keys that are not expected are not compared.
pub fn differences(expected: &Value, happened: &Value) -> Vec<FixtureDifference> {
    let mut found = Vec::new();
    compare(expected, happened, String::new(), &mut found);
    found
}

fn compare(expected: &Value, happened: &Value, at: String, found: &mut Vec<FixtureDifference>) {
    let same = match (expected, happened) {
        (Value::Object(expected), Value::Object(got)) => {
            // A body may be written as JSON or as its text: compared as JSON.
            if let Some((json, text)) = expected.get("json").zip(got.get("text")) {
                let parsed = serde_json::from_str(text.as_str().unwrap_or_default());
                return compare(json, &parsed.unwrap_or(Value::Null), at, found);
            }
            for (key, value) in expected {
                let below = format!("{at}/{}", pointer::escape(key));
                compare(value, got.get(key).unwrap_or(&Value::Null), below, found);
            }
            return;
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            for (n, (expected, got)) in expected.iter().zip(got).enumerate() {
                compare(expected, got, format!("{at}/{n}"), found);
            }
            return;
        }
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap_or(0.0), other.as_f64().unwrap_or(0.0));
            (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
        }
        (expected, got) => expected == got,
    };
    if !same {
        found.push(FixtureDifference {
            at,
            expected: expected.clone(),
            got: happened.clone(),
        });
    }
}

/// An answer that the host would take, or the failure that it would make of it.
pub fn validated(
    fixture: &PluginFixture,
    answer: Value,
    output_max: usize,
) -> Result<Value, Failure> {
    let Some(said) = answer.get("ok") else {
        return match answer.get("err") {
            Some(error) => Err(error_failure(error)),
            None => Ok(answer),
        };
    };
    let verdict = match fixture.hook.as_str() {
        "price" => charge(said, fixture),
        "rank" => rank(said, fixture),
        "estimate" => metrics(said),
        _ => shaped(fixture, said, output_max),
    };
    match verdict {
        Ok(()) => Ok(said.clone()),
        Err(rule) => Err(Failure::Invalid(rule)),
    }
}

fn error_failure(error: &Value) -> Failure {
    #[derive(Deserialize)]
    struct RejectionJson {
        status: u16,
        code: String,
        message: String,
        pointer: Option<String>,
    }
    if let Some(rejected) = error.get("rejected")
        && let Ok(said) = RejectionJson::deserialize(rejected)
    {
        return Failure::Rejected(check::sanitize(Rejection {
            status: said.status,
            code: said.code,
            message: said.message,
            pointer: said.pointer,
        }));
    }
    let text = match error {
        Value::String(text) => text.clone(),
        Value::Object(case) => case.values().next().map_or_else(String::new, |text| {
            text.as_str()
                .map_or_else(|| text.to_string(), str::to_owned)
        }),
        other => other.to_string(),
    };
    Failure::Broken(text)
}

fn float(value: &Value) -> f64 {
    match value.as_str() {
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        Some(_) => f64::NAN,
        None => value.as_f64().unwrap_or(f64::NAN),
    }
}

fn charge(said: &Value, fixture: &PluginFixture) -> Result<(), &'static str> {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value.as_str().unwrap_or_default().into();
    let usage = fixture.args.get("usage").unwrap_or(&Value::Null);
    let given: Vec<Metric> = items(&usage["metrics"])
        .iter()
        .map(|metric| Metric {
            name: name(&metric["name"]),
            value: float(&metric["value"]),
            source: MetricSource::Reported,
        })
        .collect();
    let charge = Charge {
        total: float(&said["total"]),
        base: float(&said["base"]),
        lines: items(&said["lines"])
            .iter()
            .map(|line| ChargeLine {
                metric: name(&line["metric"]),
                quantity: float(&line["quantity"]),
                neurons: float(&line["neurons"]),
            })
            .collect(),
        visible: items(&said["visible"]).iter().map(name).collect(),
    };
    let report = UsageReport {
        model: "",
        trust: Trust::Trust,
        ending: infergate_core::billing::BillingOutcome::Completed,
        streamed: false,
        metrics: &given,
        queue_ms: 0,
        infer_ms: 0,
    };
    // Made-up tariffs and metrics come to sums that no request costs; requests are held to the limit.
    charge.validate(&report, CHARGE_MAX_NEURONS)
}

/// Stricter than the request path, which repairs: an author wants to know.
fn rank(said: &Value, fixture: &PluginFixture) -> Result<(), &'static str> {
    let ids = |list: &Value| -> Vec<u64> {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|one| one["id"].as_u64()).collect()
    };
    let known = ids(fixture.args.get("candidates").unwrap_or(&Value::Null));
    let mut named = ids(said);
    if named.len() > known.len() {
        return Err("rank-length");
    }
    if !named.iter().all(|id| known.contains(id)) {
        return Err("rank-unknown-id");
    }
    let all = named.len();
    named.sort_unstable();
    named.dedup();
    if named.len() < all {
        Err("rank-repeated-id")
    } else {
        Ok(())
    }
}

fn metrics(list: &Value) -> Result<(), &'static str> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let metrics: Vec<(String, f64)> = list
        .iter()
        .map(|pair| {
            (
                pair[0].as_str().unwrap_or_default().to_owned(),
                float(&pair[1]),
            )
        })
        .collect();
    check::metrics(&metrics)
}

fn shaped(fixture: &PluginFixture, said: &Value, output_max: usize) -> Result<(), &'static str> {
    metrics(&said["metrics"])?;
    let state = &said["state"];
    let kept = state["text"]
        .as_str()
        .or(state["base64"].as_str())
        .map_or(0, str::len);
    // Base64 is a third longer than the bytes.
    let kept = if state["base64"].is_string() {
        kept / 4 * 3
    } else {
        kept
    };
    if kept > STATE_MAX_BYTES {
        return Err("state-size");
    }
    if said.to_string().len() > output_max.saturating_mul(2) {
        return Err("output-size");
    }
    if fixture.hook == "push" {
        let count = |list: &Value| list.as_array().map_or(0, Vec::len);
        let given = fixture.args.get("events").map_or(0, count);
        if count(&said["events"]) != given {
            return Err("event-count");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named_by_its_place() {
        let expected =
            json!({ "edit": { "replace": { "json": { "a": 1.0 } } }, "state": { "text": "" } });
        let same = json!({ "edit": { "replace": { "text": "{\"a\":1}" } }, "state": { "text": "" }, "metrics": [] });
        assert_eq!(differences(&expected, &same), []);
        let other =
            json!({ "edit": { "replace": { "text": "{\"a\":2}" } }, "state": { "text": "" } });
        let said = differences(&expected, &other)[0].to_string();
        assert!(
            said.starts_with("/edit/replace/a: expected 1.0, got 2"),
            "{said}"
        );
        assert_eq!(differences(&json!([1]), &json!([1, 2])).len(), 1);
        assert_eq!(differences(&json!(["a", "b"]), &json!(["b", "a"])).len(), 2);
    }
}
