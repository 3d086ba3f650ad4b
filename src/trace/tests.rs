//! Traces as they are collected, kept and rendered, without a socket.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::admission::{ClassChoice, ClassTurn, PermitClass, PermitRequest};
use infergate_core::api::ApiDialect;
use infergate_core::deadline::DeadlineRule;
use infergate_core::model::ModelSpec;
use infergate_core::routing::AttemptFailure;
use infergate_core::{Millis, ModelId, Refusal};
use serde_json::{Value, json};

use super::record::*;
use super::{NodeInfo, TraceStore};
use crate::telemetry::{AttemptResult, Clock, RequestOutcome, TokenUsage};
use crate::upstream::{AdmissionGate, GateEntry, Target};

const RULE: DeadlineRule = DeadlineRule {
    profile_secs: None,
    model_floor_secs: 30,
    ceiling_secs: 240,
};

fn started() -> TraceBuilder {
    let mut draft = TraceBuilder::new(1_000_000);
    draft.begin(3, None);
    draft
}

/// The end of a request with this id that was refused for its key.
fn summary(request_id: &str) -> TraceSummary {
    TraceSummary {
        at_us: 0,
        request_id: request_id.into(),
        client_address: None,
        account: None,
        model: None,
        asked_model: None,
        dialect: ApiDialect::OpenAi,
        outcome: RequestOutcome::Refused,
        status: 401,
        code: Some(10000),
        streamed: false,
        queued_us: 0,
        load_wait_us: None,
        first_byte_us: None,
        neurons: None,
        quota: None,
        plugins: Vec::new(),
        operation: "chat",
        usage: TokenUsage::default(),
    }
}

/// The trace of a request with this id that came to nothing.
fn trace(request_id: &str) -> Box<RequestTrace> {
    let mut draft = started();
    draft.finish(|_| summary(request_id));
    draft.take().unwrap()
}

fn render(draft: &mut TraceBuilder) -> Value {
    draft.take().unwrap().to_json(NodeInfo {
        clock: Clock::start(),
        node: "a1",
        site: "fra",
    })
}

fn model() -> ModelSpec {
    serde_json::from_value(json!({
        "id": "m",
        "task": "text-generation",
        "backend": "openai",
        "endpoints": [{ "url": "http://127.0.0.1:1", "max_concurrent_requests": 1 }],
        "queue": { "algorithm": "fifo", "capacity": 1 },
    }))
    .unwrap()
}

fn target() -> Arc<Target> {
    let spec = &model().endpoints[0];
    Arc::new(Target::new(spec, "m", Duration::from_secs(1)).unwrap())
}

fn ask() -> PermitRequest {
    PermitRequest {
        account: "a".into(),
        weight: 1,
        priority: 5,
        is_warm: false,
        tokens: 1,
        deadline: Millis::MAX,
        no_wait: false,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: false,
        has_alternative: false,
        client: None,
        class: PermitClass::Live,
    }
}

#[test]
fn the_ring_keeps_the_last_traces_and_no_more() {
    let store = TraceStore::with_capacity(4);
    assert!(store.newest(10).is_empty());
    let ids = |count: usize| {
        let newest = store.newest(count);
        let ids = newest.iter().map(|trace| trace.request_id().to_owned());
        ids.collect::<Vec<_>>()
    };
    for number in 0..10 {
        store.keep(trace(&format!("r{number}")));
        let oldest = (number + 1_i32).saturating_sub(4).max(0);
        let kept: Vec<String> = (oldest..=number).rev().map(|n| format!("r{n}")).collect();
        assert_eq!(ids(10), kept);
    }
    assert_eq!(ids(2), ["r9", "r8"]);
    assert!(store.find("r5").is_none());
    assert_eq!(store.find("r6").unwrap().request_id(), "r6");
    assert!(store.find("").is_none());
}

#[test]
fn of_two_traces_with_one_id_the_newer_is_found() {
    let store = TraceStore::with_capacity(4);
    store.keep(trace("r"));
    let mut second = started();
    second.record_refusal(&Refusal::QuotaUsed);
    second.finish(|_| summary("r"));
    store.keep(second.take().unwrap());
    assert!(store.find("r").unwrap().refusal.is_some());
}

#[test]
fn a_request_without_a_trace_collects_nothing() {
    let mut draft = TraceBuilder::default();
    draft.set_requested_model("m", None);
    draft.begin_attempt(0, &target());
    draft.record_refusal(&Refusal::Unauthenticated);
    draft.finish(|_| summary("r"));
    assert!(draft.take().is_none());
}

#[test]
fn a_trace_stops_growing_and_later_steps_change_nothing_in_it() {
    let mut draft = started();
    let gate = AdmissionGate::new(&model(), vec![target()], Clock::start());
    for number in 0..32_u16 {
        let (found, entry) = gate.request_permit(ask());
        draft.record_admission(found, &entry);
        let trace = AttemptTrace {
            status: number,
            ..AttemptTrace::default()
        };
        draft.begin_attempt(u64::from(number), &target());
        draft.update_attempt(&trace);
    }
    let rendered = render(&mut draft);
    let steps = rendered["steps"].as_array().unwrap();
    assert_eq!(
        (steps.len(), &rendered["steps_left_out"]),
        (STEPS_MAX, &json!(24))
    );
    assert_eq!(steps.last().unwrap()["status"], 19);
}

#[test]
fn of_many_requests_that_nothing_happens_to_some_are_kept_and_of_the_others_all() {
    let store = TraceStore::with_capacity(8);
    let now_us = 5_000_000;
    let kept = (0..1000).filter(|_| store.admit_plain(now_us)).count();
    assert_eq!(kept, 256);
    assert!(!store.admit_plain(now_us + 19_999));
    assert!(store.admit_plain(now_us + 20_000));
    assert!(!store.admit_plain(now_us + 20_000));

    let gate = AdmissionGate::new(&model(), vec![target()], Clock::start());
    let plain = |again: bool| {
        let mut draft = started();
        let (found, entry) = gate.request_permit(ask());
        draft.record_admission(found, &entry);
        draft.begin_attempt(0, &target());
        draft.update_attempt(&AttemptTrace {
            result: Some(AttemptResult::Answered),
            ..AttemptTrace::default()
        });
        if again {
            draft.record_retry_decision(RetryDecision {
                kept_for_next: false,
                pause: None,
                proven: false,
                failure: None,
                allowed: false,
                tries: 1,
                model_left: 0,
            });
        }
        draft.finish(|_| TraceSummary {
            outcome: RequestOutcome::Completed,
            status: 200,
            ..summary("r")
        });
        draft.take().unwrap().is_plain()
    };
    assert!(plain(false));
    assert!(!plain(true));
}

#[test]
fn the_usual_steps_need_no_memory_of_their_own_and_all_have_a_bound() {
    let mut draft = started();
    for _ in 0..STEPS_USUAL {
        draft.begin_attempt(0, &target());
    }
    assert!(!draft.recorded.as_ref().unwrap().steps.spilled());
    assert!(size_of::<TraceStep>() <= 256, "{}", size_of::<TraceStep>());
    assert!(
        size_of::<RequestTrace>() <= 1024,
        "{}",
        size_of::<RequestTrace>()
    );
}

#[test]
fn the_name_that_was_asked_for_is_kept_where_it_says_more_and_cut_between_characters() {
    let asked = |name: &str, found: Option<&str>| {
        let mut draft = started();
        draft.set_requested_model(name, found.map(ModelId::from).as_ref());
        draft
            .take()
            .unwrap()
            .requested_model
            .map(|asked| asked.len())
    };
    assert_eq!(asked("m", Some("m")), None);
    assert_eq!(asked("alias", Some("m")), Some(5));
    assert_eq!(
        asked(&"x".repeat(1000), None),
        Some(REQUESTED_MODEL_BYTES_MAX)
    );
    assert_eq!(
        asked(&"€".repeat(1000), None),
        Some(REQUESTED_MODEL_BYTES_MAX - 2)
    );
}

#[test]
fn admission_tells_what_it_found_what_it_said_and_how_the_wait_ended() {
    let clock = Clock::start();
    let gate = AdmissionGate::new(&model(), vec![target()], clock);
    let mut draft = started();
    let (found, leased) = gate.request_permit(ask());
    draft.record_admission(found, &leased);
    let (found, queued) = gate.request_permit(ask());
    let at_us = found.at_us;
    draft.record_admission(found, &queued);
    draft.end_wait(at_us + 1500, WaitEnd::Refused("deadline-passed"));
    let (found, full) = gate.request_permit(ask());
    draft.record_admission(found, &full);
    let rendered = render(&mut draft);
    let [leased, queued, full] = rendered["steps"].as_array().unwrap().as_slice() else {
        panic!("{rendered}");
    };
    let seen = |step: &Value| {
        let words = [
            "result",
            "position",
            "waited_ms",
            "ended",
            "cause",
            "waiting",
        ];
        words.map(|word| step.get(word).cloned().unwrap_or_default())
    };
    let null = Value::Null;
    assert_eq!(
        seen(leased),
        [
            json!("leased"),
            null.clone(),
            null.clone(),
            null.clone(),
            null.clone(),
            json!(0)
        ]
    );
    let late = json!("deadline-passed");
    assert_eq!(
        seen(queued),
        [
            json!("queued"),
            json!(1),
            json!(1.5),
            late,
            null.clone(),
            json!(1)
        ]
    );
    assert_eq!(
        seen(full),
        [
            json!("full"),
            null.clone(),
            null.clone(),
            null,
            json!("queue-full"),
            json!(1)
        ]
    );
    let candidate = json!({
        "endpoint": "http://127.0.0.1:1",
        "rank": 0,
        "health": "healthy",
        "permits": { "used": 1, "limit": 1 },
        "tried_before": false,
    });
    assert_eq!(full["candidates"], json!([candidate]));
    assert_eq!(full["permits"], json!({ "used": 1, "limit": 1 }));
}

#[test]
fn a_wait_that_a_permit_ended_says_which_class_was_served_and_why() {
    let gate = AdmissionGate::new(&model(), vec![target()], Clock::start());
    let _held = gate.request_permit(ask());
    let turn = ClassTurn {
        class: PermitClass::Durable,
        choice: ClassChoice::StarvationBound,
    };
    for (end, ended, shown) in [
        (
            WaitEnd::Granted(turn),
            "granted",
            [json!("durable"), json!("starvation-bound")],
        ),
        (WaitEnd::Forwarded, "forwarded", [Value::Null, Value::Null]),
    ] {
        let mut draft = started();
        let (found, queued) = gate.request_permit(ask());
        draft.record_admission(found, &queued);
        draft.end_wait(2_000_000, end);
        let step = render(&mut draft)["steps"][0].clone();
        assert_eq!(step["ended"], ended);
        assert_eq!(["class", "turn"].map(|name| step[name].clone()), shown);
    }
}

#[test]
fn a_permit_from_before_the_request_says_which_class_was_served_and_how_long_it_took() {
    let gate = AdmissionGate::new(&model(), vec![target()], Clock::start());
    let (_, Ok(GateEntry::Leased(mut permit))) = gate.request_permit(ask()) else {
        panic!("a permit is free");
    };
    permit.waited_us = 1500;
    let mut draft = started();
    draft.record_permit(1_002_000, &permit);
    let expected = json!({
        "step": "permit",
        "at_ms": 2.0,
        "class": "live",
        "turn": "only-waiting",
        "waited_before_ms": 1.5,
    });
    assert_eq!(render(&mut draft)["steps"][0], expected);
}

#[test]
fn a_wait_that_a_departure_ended_says_so_and_one_that_never_ended_was_cut_off() {
    let gate = AdmissionGate::new(&model(), vec![target()], Clock::start());
    let _held = gate.request_permit(ask());
    for (left, ended) in [(true, "client-gone"), (false, "cut-off")] {
        let mut draft = started();
        let (found, queued) = gate.request_permit(ask());
        draft.record_admission(found, &queued);
        if left {
            draft.record_refusal(&Refusal::ClientGone);
            draft.end_wait(0, WaitEnd::Aborted);
        }
        assert_eq!(render(&mut draft)["steps"][0]["ended"], ended);
    }
}

#[test]
fn a_try_tells_its_moments_and_why_there_is_another_one_or_none() {
    let mut draft = started();
    draft.begin_attempt(1_000_500, &target());
    let trace = AttemptTrace {
        head_us: 1_004_000,
        status: 503,
        result: Some(AttemptResult::Rejected),
        failed_us: 1_004_250,
        ..AttemptTrace::default()
    };
    draft.update_attempt(&trace);
    draft.record_retry_decision(RetryDecision {
        kept_for_next: false,
        pause: None,
        proven: false,
        failure: Some(AttemptFailure::Failed),
        allowed: true,
        tries: 1,
        model_left: 4,
    });
    let tried = render(&mut draft)["steps"][0].clone();
    assert_eq!(
        tried,
        json!({
            "step": "attempt",
            "at_ms": 0.5,
            "endpoint": "http://127.0.0.1:1",
            "instance": null,
            "model": "m",
            "connection": null,
            "connected_at_ms": null,
            "sent_at_ms": null,
            "head_at_ms": 4.0,
            "failed_at_ms": 4.25,
            "status": 503,
            "result": "rejected",
            "retry": {
                "allowed": true,
                "why": "the server has not begun to work",
                "counted": true,
                "pause_ms": null,
                "attempts_left": 2,
                "model_retries_left": 4,
            },
        })
    );
}

#[test]
fn only_retries_that_load_another_server_count_for_the_whole_model() {
    let again = |failure, allowed, tries| {
        let decision = RetryDecision {
            kept_for_next: false,
            pause: None,
            proven: false,
            failure,
            allowed,
            tries,
            model_left: 0,
        };
        (
            decision.is_counted(),
            decision.attempts_left(),
            decision.reason(),
        )
    };
    let failed = Some(AttemptFailure::Failed);
    let started = (false, 2, "the server may have begun to work");
    assert_eq!(again(None, false, 1), started);
    let unseen = (false, 1, "no server has seen the request");
    assert_eq!(again(Some(AttemptFailure::NotConnected), true, 2), unseen);
    let spent = (false, 2, "the model's retries are used up");
    assert_eq!(again(failed, false, 1), spent);
    let last = (false, 0, "the request has used its attempts");
    assert_eq!(again(failed, false, 3), last);
}

#[test]
fn the_end_is_that_of_the_summary_and_the_deadline_names_its_source() {
    let mut draft = started();
    draft.set_requested_model("unseen", None);
    draft.set_client_profile(&"tagger*".into());
    draft.set_deadline(RULE, 1, Some(Millis(500)));
    draft.record_refusal(&Refusal::QuotaUsed);
    let quota = QuotaHold {
        neurons: 2.5,
        per_day: 10,
        granted: false,
    };
    draft.times.end(1_010_000);
    draft.finish(|times| TraceSummary {
        at_us: times.end_us(),
        account: Some("acme".into()),
        status: 429,
        code: Some(3036),
        quota: Some(quota),
        ..summary("r1")
    });
    let rendered = render(&mut draft);
    for (name, value) in [
        ("request_id", json!("r1")),
        ("node", json!("a1")),
        ("site", json!("fra")),
        ("config_generation", json!(3)),
        ("account", json!("acme")),
        ("model", Value::Null),
        ("requested_model", json!("unseen")),
        ("client_profile", json!("tagger*")),
        ("face", json!("openai")),
        ("steps", json!([])),
        ("outcome", json!("refused")),
        ("status", json!(429)),
        ("error_code", json!("3036")),
        ("total_ms", json!(10.0)),
        ("first_byte_at_ms", Value::Null),
        ("neurons", Value::Null),
        ("plugins", json!([])),
    ] {
        assert_eq!(rendered[name], value, "{name}");
    }
    assert_eq!(
        rendered["deadline"],
        json!({
            "after_ms": 500,
            "from": "caller",
            "model_secs": 1,
            "floor_secs": 30,
            "ceiling_secs": 240,
            "profile_secs": null,
            "caller_ms": 500,
        })
    );
    assert_eq!(
        rendered["quota"],
        json!({ "neurons": 2.5, "per_day": 10, "settlement": "refused" })
    );
    assert_eq!(rendered["refusal"]["cause"], "quota-used");
    assert_eq!(rendered["refusal"]["reason"], "insufficient_quota");
}
