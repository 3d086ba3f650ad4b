//! Metrics as a scrape sees them.

use super::*;
use crate::telemetry::event::{
    Comparison, InferenceEvent, RequestOutcome, TokenUsage, sample_event,
};
use crate::telemetry::job_metrics::{EndedJob, JobLevels, JobQueueLevels, StoreCall};
use crate::telemetry::plugin_metrics::{CallResult, PluginHook, PluginLevels};
use infergate_core::admission::PermitClass;
use infergate_core::routing::{FallbackReason, Health};

fn metrics() -> Metrics {
    Metrics::new("0.1.0", "abc", 1_700_000_000.0)
}

fn metrics_of(models: &[&str]) -> Metrics {
    let metrics = metrics();
    for model in models {
        metrics.model(&(*model).into());
    }
    metrics
}

fn levels(model: &str, permits_used: u32) -> ModelLevels {
    let endpoint = EndpointLevels {
        url: "http://127.0.0.1:9001".into(),
        health: Health::Degraded,
        work: None,
    };
    ModelLevels {
        model: model.into(),
        permits_used,
        durable_permits_used: permits_used / 2,
        permits_limit: 4,
        queue_depth: 2,
        endpoints: vec![endpoint],
    }
}

fn node(models: Vec<ModelLevels>) -> Levels {
    Levels {
        models,
        ..Levels::default()
    }
}

fn served() -> InferenceEvent {
    InferenceEvent {
        status: 200,
        error_code: None,
        reason: None,
        outcome: RequestOutcome::Completed,
        attempts: 1,
        request_time_us: 200_000,
        queuing_time_us: 30_000,
        time_to_first_token_us: Some(80_000),
        metrics: TokenUsage {
            input_tokens: Some(7),
            output_tokens: Some(11),
            cached_tokens: None,
        },
        ..sample_event("r1")
    }
}

#[track_caller]
fn assert_has(text: &str, line: &str) {
    assert!(
        text.lines().any(|found| found == line),
        "no line `{line}` in:\n{text}"
    );
}

#[test]
fn a_served_request_is_counted_by_face_and_outcome_with_its_times_and_tokens() {
    let metrics = metrics();
    metrics.model(&"m".into()).record_request(&served());
    let text = metrics.render(&node(vec![levels("m", 3)]));
    assert_has(
        &text,
        r#"infergate_requests_total{face="openai",outcome="completed",model="m"} 1"#,
    );
    assert_has(
        &text,
        r#"infergate_requests_total{face="openai",outcome="failed",model="m"} 0"#,
    );
    assert_has(
        &text,
        r#"infergate_request_duration_seconds_bucket{model="m",le="0.25"} 1"#,
    );
    assert_has(
        &text,
        r#"infergate_request_duration_seconds_bucket{model="m",le="0.1"} 0"#,
    );
    assert_has(&text, r#"infergate_queue_wait_seconds_sum{model="m"} 0.03"#);
    assert_has(
        &text,
        r#"infergate_time_to_first_token_seconds_count{model="m"} 1"#,
    );
    assert_has(&text, r#"infergate_output_tokens_total{model="m"} 11"#);
    assert_has(&text, r#"infergate_permits_used{model="m"} 3"#);
}

#[test]
fn permits_and_waits_are_told_apart_by_class() {
    let metrics = metrics();
    let model = metrics.model(&"m".into());
    model.record_class_wait(PermitClass::Durable, 2_000_000);
    let text = metrics.render(&node(vec![levels("m", 3)]));
    for line in [
        r#"infergate_permits_used_by_class{class="live",model="m"} 2"#,
        r#"infergate_permits_used_by_class{class="durable",model="m"} 1"#,
        r#"infergate_class_wait_seconds_sum{class="durable",model="m"} 2"#,
        r#"infergate_class_wait_seconds_count{class="live",model="m"} 0"#,
    ] {
        assert_has(&text, line);
    }
}

#[test]
fn a_price_a_fallback_and_a_comparison_are_counted_and_a_price_that_is_none_is_not() {
    let metrics = metrics();
    let model = metrics.model(&"m".into());
    let compared = |matches| Comparison {
        metric: "output_tokens".into(),
        reported: Some(2.0),
        estimated: Some(3.0),
        matches,
    };
    let mut priced = InferenceEvent {
        neurons: Some(0.25),
        comparison: vec![compared(Some(false)), compared(None)],
        ..served()
    };
    priced.flags.billing_fallback = true;
    model.record_request(&priced);
    for broken in [f64::NAN, f64::INFINITY, -1.0] {
        priced.neurons = Some(broken);
        model.record_request(&priced);
    }
    let text = metrics.render(&Levels::default());
    assert_has(&text, r#"infergate_neurons_total{model="m"} 0.25"#);
    assert_has(&text, r#"infergate_billing_fallbacks_total{model="m"} 4"#);
    assert_has(
        &text,
        r#"infergate_metric_comparisons_total{result="mismatch",model="m"} 4"#,
    );
    assert_has(
        &text,
        r#"infergate_metric_comparisons_total{result="match",model="m"} 0"#,
    );
}

#[test]
fn a_refusal_is_counted_by_reason_and_code_and_leaves_the_durations_alone() {
    let metrics = metrics();
    metrics.no_model().record_request(&sample_event("r1"));
    let text = metrics.render(&Levels::default());
    assert_has(
        &text,
        r#"infergate_refusals_total{reason="invalid_api_key",model="(none)"} 1"#,
    );
    assert_has(
        &text,
        r#"infergate_errors_total{code="10000",model="(none)"} 1"#,
    );
    assert!(!text.contains("infergate_request_duration_seconds_count"));
    assert!(!text.contains("infergate_queue_wait_seconds_count"));
    // Nor does a model that is none repeat every series of those that are.
    let nameless = |line: &&str| line.contains(NO_MODEL);
    assert!(
        text.lines()
            .filter(nameless)
            .all(|line| !line.ends_with(" 0"))
    );
}

#[test]
fn a_model_that_leaves_the_configuration_loses_its_series() {
    let metrics = metrics();
    let stays = metrics.model(&"stays".into());
    stays.record_attempt(AttemptResult::ConnectFailed);
    stays.record_fallback(FallbackReason::Unhealthy);
    metrics.model(&"goes".into());
    assert!(
        metrics
            .render(&Levels::default())
            .contains(r#"model="goes""#)
    );
    metrics.retain(&["stays".into()]);
    let text = metrics.render(&Levels::default());
    assert!(!text.contains(r#"model="goes""#));
    assert_has(
        &text,
        r#"infergate_upstream_attempts_total{result="connect-failed",model="stays"} 1"#,
    );
    assert_has(
        &text,
        r#"infergate_fallbacks_total{reason="unhealthy",model="stays"} 1"#,
    );
    assert!(Arc::ptr_eq(&stays, &metrics.model(&"stays".into())));
    // Whoever looked just before it left brings nothing back.
    metrics.sample(&[levels("goes", 1)]);
    let text = metrics.render(&node(vec![levels("goes", 1)]));
    assert!(!text.contains(r#"model="goes""#));
}

#[test]
fn an_endpoint_that_is_gone_is_gone_from_the_next_scrape() {
    let metrics = metrics_of(&["m"]);
    let text = metrics.render(&node(vec![levels("m", 0)]));
    let endpoint = r#"endpoint="http://127.0.0.1:9001""#;
    let state = |health: &str, value| {
        format!(r#"infergate_endpoint_health{{{endpoint},health="{health}",model="m"}} {value}"#)
    };
    assert_has(&text, &state("degraded", 1));
    assert_has(&text, &state("healthy", 0));
    let gone = ModelLevels {
        endpoints: Vec::new(),
        ..levels("m", 0)
    };
    assert!(!metrics.render(&node(vec![gone])).contains(endpoint));
}

#[test]
fn the_window_is_in_the_scrape_as_the_sampler_left_it() {
    let metrics = metrics_of(&["m"]);
    metrics.sample(&[levels("m", 4)]);
    metrics.sample(&[levels("m", 0)]);
    let text = metrics.render(&node(vec![levels("m", 0)]));
    assert_has(&text, r#"infergate_full_fraction{model="m"} 0.5"#);
    assert_has(&text, r#"infergate_mean_used_permits{model="m"} 2"#);
    assert_has(&text, r#"infergate_mean_queue_size{model="m"} 2"#);
    assert_has(&text, r#"infergate_total_permits{model="m"} 4"#);
}

#[test]
fn counts_kept_elsewhere_show_as_counters() {
    let metrics = metrics();
    metrics.record_reload(ReloadResult::Applied);
    metrics.record_reload(ReloadResult::Refused);
    metrics.record_accepted_connection();
    metrics.record_refused_connection("per-client-limit");
    let events = EventCounts {
        written: 9,
        dropped_overrun: 2,
        ..EventCounts::default()
    };
    let levels = Levels {
        events,
        connections: 3,
        config_generation: 2,
        ..Levels::default()
    };
    metrics.render(&levels);
    let text = metrics.render(&levels);
    assert_has(&text, "infergate_config_reload_total 2");
    assert_has(&text, "infergate_config_reload_failed_total 1");
    assert_has(&text, "infergate_config_generation 2");
    assert_has(&text, "infergate_connections 3");
    assert_has(
        &text,
        r#"infergate_connections_refused_total{reason="per-client-limit"} 1"#,
    );
    assert_has(&text, "infergate_events_written_total 9");
    assert_has(
        &text,
        r#"infergate_events_dropped_total{cause="overrun"} 2"#,
    );
    assert_has(
        &text,
        r#"infergate_build_info{revision="abc",version="0.1.0"} 1"#,
    );
}

#[test]
fn a_family_stands_once_with_all_its_models() {
    let metrics = metrics_of(&["a", "b"]);
    let text = metrics.render(&node(vec![levels("a", 1), levels("b", 2)]));
    for family in ["infergate_permits_used", "infergate_requests_total"] {
        let heads = text.lines().filter(|line| {
            *line == format!("# TYPE {family} gauge") || *line == format!("# TYPE {family} counter")
        });
        assert_eq!(heads.count(), 1, "{family}");
    }
}

#[test]
fn a_plugin_has_series_of_the_hooks_it_was_called_by_until_it_leaves() {
    let metrics = metrics();
    let plugin = metrics.plugins().plugin("neurons");
    plugin.record_call(PluginHook::Price, CallResult::Answered, 12);
    plugin.record_call(PluginHook::Price, CallResult::Unavailable, 0);
    let instances = [plugin.live_instance(), plugin.live_instance()];
    let [_live, gone] = instances;
    drop(gone);
    plugin.counter("unknown_metric").add(3);
    plugin.record_failed_reload("digest");
    let levels = Levels {
        plugins: PluginLevels {
            ticks_missed: 7,
            cache_rejected: 1,
            breakers: vec![("neurons".into(), true)],
            ..PluginLevels::default()
        },
        ..Levels::default()
    };
    metrics.render(&levels);
    let text = metrics.render(&levels);
    for line in [
        r#"infergate_plugin_calls_total{hook="price",result="answered",plugin="neurons"} 1"#,
        r#"infergate_plugin_calls_total{hook="price",result="trapped",plugin="neurons"} 0"#,
        r#"infergate_plugin_call_duration_seconds_count{hook="price",plugin="neurons"} 1"#,
        r#"infergate_plugin_call_duration_seconds_bucket{hook="price",plugin="neurons",le="0.001"} 1"#,
        r#"infergate_plugin_instances_live{plugin="neurons"} 1"#,
        r#"infergate_plugin_breaker_open{plugin="neurons"} 1"#,
        r#"infergate_plugin_counter_total{counter="unknown_metric",plugin="neurons"} 3"#,
        r#"infergate_plugin_reload_failed_total{stage="digest",plugin="neurons"} 1"#,
        "infergate_plugin_missed_ticks_total 7",
        r#"infergate_plugin_cache_lookups_total{result="rejected"} 1"#,
    ] {
        assert_has(&text, line);
    }
    assert!(!text.contains(r#"hook="rank""#));
    metrics.plugins().retain(|_| None);
    assert!(
        !metrics
            .render(&Levels::default())
            .contains("plugin=\"neurons\"")
    );
}

#[test]
fn every_family_of_a_scrape_is_documented() {
    let metrics = metrics_of(&["m"]);
    let plugin = metrics.plugins().plugin("p");
    plugin.record_call(PluginHook::Rank, CallResult::Trapped, 1);
    plugin.counter("c").add(1);
    plugin.record_failed_reload("read");
    metrics.no_model().record_request(&sample_event("r1"));
    metrics.record_refused_connection("per-client-limit");
    let jobs = metrics.jobs();
    jobs.record_submitted(&"m".into(), "prediction", "replicate");
    jobs.record_end(EndedJob {
        model: &"m".into(),
        deployable: "vp-a",
        kind: "prediction",
        status: "failed",
        reason: Some("timeout"),
        run_ms: None,
    });
    jobs.record_released("drain", 1);
    jobs.record_refused_write("finish");
    jobs.record_batch(1);
    jobs.record_call(StoreCall {
        verb: "take",
        secs: 0.1,
        error: Some("timeout"),
    });
    metrics.retain(&["m".into()]);
    let queue = JobQueueLevels {
        model: "m".into(),
        deployable: "vp-a".into(),
        queued: [1; 4],
        running: 1,
        oldest_ms: 1,
    };
    let levels = Levels {
        jobs: Some(JobLevels {
            queues: vec![queue],
            is_up: true,
            is_accepting: true,
            memory_ratio: 0.1,
            files: ("local", 1),
        }),
        ..node(vec![levels("m", 1)])
    };
    let text = metrics.render(&levels);
    assert!(text.contains("infergate_jobs_queued") && text.contains("infergate_store_up"));
    let page = include_str!("../../../docs/metrics.md");
    for line in text.lines() {
        let Some(head) = line.strip_prefix("# HELP ") else {
            continue;
        };
        let name = head.split(' ').next().unwrap();
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/metrics.md does not name {name}"
        );
    }
}
