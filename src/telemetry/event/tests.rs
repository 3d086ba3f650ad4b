//! Text of an event: the fields of the contract, and the line against the rendering of serde.

mod reference;

use infergate_core::api::dialects::DIALECTS;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn line(event: &InferenceEvent) -> Value {
    let mut out = Vec::new();
    event.write_line("2026-11-20T10:00:00.000Z", &mut out);
    assert_eq!(out.pop(), Some(b'\n'));
    assert!(!out.contains(&b'\n'));
    serde_json::from_slice(&out).unwrap()
}

/// The names of docs/events.md in the order of the line: consumers may read columns.
const FIELDS: &[&str] = &[
    "time",
    "request_id",
    "account_id",
    "client_address",
    "client_id",
    "client_request_id",
    "model_id",
    "asked_model_id",
    "face",
    "node",
    "site",
    "status",
    "error_code",
    "reason",
    "outcome",
    "streamed",
    "queued",
    "request_time_ms",
    "queuing_time_ms",
    "inference_time_ms",
    "time_to_first_token_ms",
    "metrics",
    "metrics_source",
    "comparison",
    "neurons",
    "priced_by",
    "attempts",
    "upstream",
    "path",
    "local_queue_size",
    "source_site",
    "container_id",
    "cold_start",
    "load_wait_ms",
    "flags",
    "request_source",
    "plugins",
    "trace_id",
];

/// The marks in `flags`, in their order.
const FLAGS: &[&str] = &[
    "streamed",
    "beta",
    "external_endpoint",
    "queued_in_site",
    "unix_socket",
    "billing_fallback",
];

/// Asserts that the members of the object begin with `names`, in this order.
fn assert_order(names: &[&str], object: &str) {
    let mut rest = object;
    for name in names {
        let member = format!("\"{name}\":");
        rest = rest.split_once(&member).map(|(_, rest)| rest).expect(name);
    }
}

#[test]
fn a_line_has_every_field_of_the_contract_in_its_order() {
    let mut out = Vec::new();
    sample_event("r1").write_line("2026-11-20T10:00:00.000Z", &mut out);
    let text = String::from_utf8(out).unwrap();
    assert_order(FIELDS, &text);
    let line = line(&sample_event("r1"));
    assert_eq!(line.as_object().unwrap().len(), FIELDS.len());
    assert_order(FLAGS, text.split_once("\"flags\":").unwrap().1);
    assert_eq!(line["flags"].as_object().unwrap().len(), FLAGS.len());
    let page = include_str!("../../../docs/events.md");
    for name in FIELDS.iter().chain(FLAGS) {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/events.md lacks {name}"
        );
    }
    for unknown in ["container_id", "client_id", "neurons", "trace_id"] {
        assert_eq!(line[unknown], Value::Null, "{unknown}");
    }
    for unknown in ["beta", "unix_socket"] {
        assert_eq!(line["flags"][unknown], false, "{unknown}");
    }
    assert_eq!(line["request_source"], "rest");
}

#[test]
fn what_is_not_known_is_null_and_the_metrics_object_is_empty() {
    let line = line(&sample_event("r1"));
    for null in [
        "account_id",
        "client_id",
        "client_request_id",
        "model_id",
        "asked_model_id",
        "time_to_first_token_ms",
        "neurons",
        "priced_by",
        "comparison",
    ] {
        assert_eq!(line[null], Value::Null, "{null}");
    }
    assert_eq!(line["metrics"], json!({}));
    assert_eq!(line["metrics_source"], "none");
    assert_eq!(line["error_code"], "10000");
    assert_eq!(line["request_time_ms"], 0);
    assert_eq!(line["path"], json!(["fra/a1"]));
    assert_eq!(line["plugins"], json!([]));
}

#[test]
fn a_streamed_answer_carries_its_times_in_ms_and_its_tokens() {
    let event = InferenceEvent {
        account_id: Some("acme".into()),
        client_id: Some("end\nuser \"7\"".into()),
        model_id: Some("@cf/meta/llama".into()),
        dialect: ApiDialect::WorkersAi,
        status: 200,
        error_code: None,
        reason: None,
        outcome: RequestOutcome::CutByClient,
        queued: true,
        request_time_us: 1_234_567,
        queuing_time_us: 1_999,
        time_to_first_token_us: Some(85_400),
        metrics: TokenUsage {
            input_tokens: Some(7),
            output_tokens: Some(0),
            cached_tokens: None,
        },
        metrics_source: MetricsSource::Reported,
        flags: EventFlags {
            streamed: true,
            queued_in_site: true,
            ..EventFlags::default()
        },
        ..sample_event("r2")
    };
    let line = line(&event);
    assert_eq!(line["face"], "workers-ai");
    assert_eq!(line["outcome"], "cut-by-client");
    assert_eq!(line["client_id"], "end\nuser \"7\"");
    assert_eq!(line["streamed"], true);
    assert_eq!(line["request_time_ms"], 1234);
    assert_eq!(line["queuing_time_ms"], 1);
    assert_eq!(line["time_to_first_token_ms"], 85);
    assert_eq!(
        line["metrics"],
        json!({ "input_tokens": 7, "output_tokens": 0 })
    );
    assert_eq!(line["flags"]["queued_in_site"], true);
    assert_eq!(line["error_code"], Value::Null);
}

#[test]
fn a_priced_answer_carries_every_metric_beside_its_tokens() {
    let compared = |metric: &str, reported, estimated, matches| Comparison {
        metric: metric.into(),
        reported,
        estimated,
        matches,
    };
    let event = InferenceEvent {
        metrics: TokenUsage {
            input_tokens: Some(7),
            ..TokenUsage::default()
        },
        extra_metrics: vec![
            ("image_steps".into(), 20.0),
            ("audio_seconds".into(), 1.5),
            ("input_tokens".into(), 9.0),
        ],
        comparison: vec![
            compared("output_tokens", Some(20.0), Some(20.0), Some(true)),
            compared("image_steps", Some(20.0), None, None),
        ],
        neurons: Some(0.075),
        priced_by: Some("tiered".into()),
        flags: EventFlags {
            billing_fallback: true,
            ..EventFlags::default()
        },
        ..sample_event("r3")
    };
    let line = line(&event);
    let metrics = r#"{"input_tokens":7,"image_steps":20,"audio_seconds":1.5}"#;
    assert_eq!(line["metrics"].to_string(), metrics);
    assert_eq!(
        line["comparison"],
        json!({
            "output_tokens": { "reported": 20, "estimated": 20, "match": true },
            "image_steps": { "reported": 20, "estimated": null, "match": null },
        })
    );
    assert_eq!(
        (&line["neurons"], &line["priced_by"]),
        (&json!(0.075), &json!("tiered"))
    );
    assert_eq!(line["flags"]["billing_fallback"], true);
}

#[test]
fn an_outcome_has_one_name_everywhere() {
    for outcome in RequestOutcome::ALL {
        assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
    }
}

/// Text with all that JSON escapes, around the bounds of eight bytes.
fn text() -> impl Strategy<Value = Arc<str>> {
    let strange = "(\\PC|[\u{0}-\u{9f}\"\\\\/é\u{2028}\u{1f600}]){0,24}";
    let plain = "[a-z0-9@/:._-]{0,40}";
    prop_oneof![strange, plain].prop_map(Arc::from)
}

fn float() -> impl Strategy<Value = f64> {
    let special = vec![
        0.0,
        -0.0,
        1e300,
        9_007_199_254_740_993.0,
        f64::NAN,
        f64::INFINITY,
    ];
    prop_oneof![
        any::<f64>(),
        prop::sample::select(special),
        (0.0..1e6_f64).prop_map(|number| (number * 1000.0).round() / 1000.0),
        (0_u64..1 << 54).prop_map(|number| number as f64),
    ]
}

fn plugins() -> impl Strategy<Value = Vec<PluginUse>> {
    let hook = prop::sample::select(vec!["prepare", "price"]);
    let used = (text(), text(), text(), hook).prop_map(|(name, sha256, config, hook)| PluginUse {
        plugin: Arc::new(PluginIdentity::new(name, sha256, config)),
        hook,
    });
    vec(used, 0..3)
}

fn comparison() -> impl Strategy<Value = Vec<Comparison>> {
    let one = (text(), of(float()), of(float()), any::<Option<bool>>());
    let one = one.prop_map(|(metric, reported, estimated, matches)| Comparison {
        metric,
        reported,
        estimated,
        matches,
    });
    vec(one, 0..3)
}

prop_compose! {
    fn flags()(bits in any::<[bool; 6]>()) -> EventFlags {
        let [streamed, beta, external_endpoint, queued_in_site, unix_socket, billing_fallback] = bits;
        EventFlags {
            streamed,
            beta,
            external_endpoint,
            queued_in_site,
            unix_socket,
            billing_fallback,
        }
    }
}

prop_compose! {
    /// Names of an event, and what came of it.
    fn named_event()(
        names in vec(text(), 3),
        optional in vec(of(text()), 8),
        load_wait_us in any::<Option<u64>>(),
        path in vec(text(), 0..3),
        outcome in prop::sample::select(RequestOutcome::ALL.to_vec()),
        dialect in prop::sample::select(DIALECTS.map(|dialect| dialect.id()).to_vec()),
        reason in prop::sample::select(vec![None, Some("invalid_api_key")]),
        request_source in prop::sample::select(vec!["rest", "job"]),
        trace_id in of(any::<[u64; 2]>()),
    ) -> InferenceEvent {
        let id = |at: usize| optional[at].as_deref();
        InferenceEvent {
            account_id: id(0).map(AccountId::from),
            client_id: optional[1].clone(),
            client_request_id: optional[2].clone(),
            model_id: id(3).map(ModelId::from),
            asked_model_id: id(4).map(ModelId::from),
            priced_by: optional[5].clone(),
            upstream: optional[6].clone(),
            container_id: optional[7].clone(),
            load_wait_us,
            dialect,
            node: names[0].clone(),
            site: names[1].clone(),
            source_site: names[2].clone(),
            path: path.into(),
            outcome,
            reason,
            request_source,
            trace_id: trace_id.map(TraceId::from_random),
            ..sample_event("r")
        }
    }
}

prop_compose! {
    /// An event with any numbers, flags and plugins.
    fn event()(
        names in named_event(),
        request_id in text(),
        times in any::<([u64; 3], Option<u64>)>(),
        counts in any::<(u16, Option<u32>, u32, u32, bool)>(),
        tokens in any::<[Option<u64>; 3]>(),
        extra_metrics in vec((prop_oneof![text(), Just("input_tokens".into())], float()), 0..3),
        source in 0..3_usize,
        comparison in comparison(),
        neurons in of(float()),
        flags in flags(),
        plugins in plugins(),
    ) -> InferenceEvent {
        let ([request_time_us, queuing_time_us, inference_time_us], time_to_first_token_us) = times;
        let (status, error_code, attempts, local_queue_size, queued) = counts;
        let [input_tokens, output_tokens, cached_tokens] = tokens;
        InferenceEvent {
            request_id,
            status,
            error_code,
            attempts,
            local_queue_size,
            queued,
            request_time_us,
            queuing_time_us,
            inference_time_us,
            time_to_first_token_us,
            metrics: TokenUsage { input_tokens, output_tokens, cached_tokens },
            extra_metrics,
            metrics_source: [
                MetricsSource::Reported,
                MetricsSource::Estimated,
                MetricsSource::None,
            ][source],
            comparison,
            neurons,
            flags,
            plugins,
            ..names
        }
    }
}

proptest! {
    #[test]
    fn a_line_is_the_rendering_of_serde_byte_for_byte(event in event(), time in text()) {
        let mut written = b"before".to_vec();
        event.write_line(&time, &mut written);
        let rendered = reference::line(&event, &time);
        prop_assert_eq!(String::from_utf8(written).unwrap(), format!("before{rendered}\n"));
    }
}

#[test]
fn every_character_is_escaped_as_serde_does_at_each_place_of_a_text() {
    for length in 1..18 {
        for place in 0..length {
            for byte in 0..=0xff_u8 {
                let character = |at| if at == place { char::from(byte) } else { 'a' };
                let text: String = (0..length).map(character).collect();
                let mut written = Vec::new();
                sample_event(&text).write_line("", &mut written);
                let rendered = format!("\"request_id\":{},", json!(text));
                let written = String::from_utf8(written).unwrap();
                assert!(
                    written.contains(&rendered),
                    "{byte:#x} at {place} of {length}"
                );
            }
        }
    }
}
