//! Cost of one call: fresh and warm, each world, small and large bodies; beside the native cost.
//!
//! Warm is what an account's second request pays, fresh what its first one pays, or every one under
//! `instance: fresh`.

use std::hint::black_box;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use infergate::parts::{Outline, PluginSnapshot, Schema, TaskInput};
use infergate_core::AccountId;
use infergate_core::billing::{BillingOutcome, Metric, MetricSource, UsageReport};
use infergate_core::model::{ModelSpec, Tariff, Trust};
use infergate_core::routing::{Candidate, Choice, Health, Hints};
use infergate_core::task::StreamEvent;
use serde_json::json;

use crate::kit::{calling, cpu_us, loaded, shipped, spec, user};

/// Prints the table.
pub fn run(quick: bool) {
    let calls = if quick { 200 } else { 5_000 };
    println!("\n{:<52} {:>9} {:>9}", "CPU of a call, µs", "fresh", "warm");
    let both = |name: &str, file: &str, world: &str, role: &str, task: &str, call: &Call<'_>| {
        let figures = ["fresh", "auto"].map(|instance| {
            let model = user(role, task);
            let (_host, plugins) = loaded(&spec(&shipped(file), world, instance), &model);
            let figure = cpu_us(calls, || call(&plugins, &model));
            assert!(
                plugins.state()[0]
                    .failures
                    .values()
                    .all(|count| *count == 0),
                "{name} failed"
            );
            figure
        });
        println!("{name:<52} {:>9.2} {:>9.2}", figures[0], figures[1]);
    };
    both(
        "billing-formula: price, 4 metrics",
        "neurons",
        "billing-formula",
        "billing",
        "text-generation",
        &price,
    );
    both(
        "routing-policy: rank, 8 candidates",
        "latency",
        "routing-policy",
        "routing",
        "text-generation",
        &|p, m| rank(p, m, 8),
    );
    both(
        "routing-policy: rank, 64 candidates",
        "latency",
        "routing-policy",
        "routing",
        "text-generation",
        &|p, m| rank(p, m, 64),
    );
    for (size, bytes) in [("2 KB", 2 << 10), ("64 KB", 64 << 10)] {
        let generation = "text-generation";
        let input = Bytes::from(json!({ "prompt": "x".repeat(bytes) }).to_string());
        let answer = Bytes::from(json!({ "response": "x".repeat(bytes) }).to_string());
        let world = "task-schema-streaming";
        both(
            &format!("{world}: schema and prepare, {size}"),
            generation,
            world,
            "task",
            generation,
            &|p, m| {
                prepare(p, m, &input);
            },
        );
        both(
            &format!("{world}: the same and finish, {size}"),
            generation,
            world,
            "task",
            generation,
            &|p, m| {
                prepare_and_finish(p, m, &input, &answer);
            },
        );
        schema(size, &input, calls);
    }
    both(
        "task-schema-streaming: prepare and push of 1 event",
        "text-generation",
        "task-schema-streaming",
        "task",
        "text-generation",
        &push,
    );
    cached(calls);
}

/// Makes so many price calls of two metrics on a warm guest, and prints nothing: for an instruction counter.
/// The difference between two counts is exact, since all else is the same.
pub fn price_only(calls: u32) {
    let model = user("billing", "text-generation");
    let spec = spec(&shipped("neurons"), "billing-formula", "auto");
    let (_host, plugins) = loaded(&spec, &model);
    let names = ["input_tokens", "output_tokens"];
    let tariff = Tariff {
        coefficients: names.iter().map(|name| (Arc::from(*name), 0.02)).collect(),
        ..Tariff::default()
    };
    let account = AccountId::from("acme");
    let slot = plugins.billing(&model);
    for call in 0..calls {
        let metrics = names.map(|name| Metric {
            name: name.into(),
            value: f64::from(call % 512),
            source: MetricSource::Reported,
        });
        let report = UsageReport {
            model: "@cf/meta/llama-3.1-8b-instruct",
            trust: Trust::Trust,
            ending: BillingOutcome::Completed,
            streamed: false,
            metrics: &metrics,
            queue_ms: 1,
            infer_ms: 2,
        };
        let priced = calling(&account, |caller| slot.price(caller, &tariff, &report));
        assert!(!black_box(priced).fell_back);
    }
}

type Call<'a> = dyn Fn(&PluginSnapshot, &ModelSpec) + 'a;

fn price(plugins: &PluginSnapshot, model: &ModelSpec) {
    let names = [
        "audio_seconds",
        "image_steps",
        "input_tokens",
        "output_tokens",
    ];
    let tariff = Tariff {
        cost_per_infer: 0.5,
        coefficients: names.iter().map(|name| (Arc::from(*name), 0.02)).collect(),
        ..Tariff::default()
    };
    let metrics = names.map(|name| Metric {
        name: name.into(),
        value: 512.0,
        source: MetricSource::Reported,
    });
    let report = UsageReport {
        model: "m",
        trust: Trust::Trust,
        ending: BillingOutcome::Completed,
        streamed: false,
        metrics: &metrics,
        queue_ms: 1,
        infer_ms: 2,
    };
    let account = AccountId::from("acme");
    black_box(calling(&account, |caller| {
        plugins.billing(model).price(caller, &tariff, &report)
    }));
}

fn candidates(count: u32) -> Vec<Candidate> {
    let one = |id: u32| Candidate {
        id,
        site: id % 4,
        node: None,
        health: Health::Healthy,
        permits_free: id % 3,
        permits_total: 4,
        queue_len: id % 5,
        rtt_us: 100 * id,
        ttft_us: 1000 * id,
        latency_us: 10_000 * id,
        error_ppm: 0,
        lora_affinity: 0,
        prefix_affinity: 0,
        tier: 0,
        ooc: 0,
    };
    (0..count).map(one).collect()
}

fn rank(plugins: &PluginSnapshot, model: &ModelSpec, count: u32) {
    let account = AccountId::from("acme");
    let candidates = candidates(count);
    let slot = plugins.routing(model);
    black_box(calling(&account, |caller| {
        slot.rank(Some(caller), &Hints::default(), &candidates)
    }));
}

fn input<'a>(body: &'a Bytes) -> TaskInput<'a> {
    TaskInput {
        model: "m",
        content_type: "application/json",
        body,
        is_read: true,
        is_checked: false,
        attributes: vec![("face".into(), "workers-ai".into())],
    }
}

fn prepare(plugins: &PluginSnapshot, model: &ModelSpec, body: &Bytes) {
    let account = AccountId::from("acme");
    let mut session = calling(&account, |caller| plugins.task(model).begin(caller));
    black_box(session.prepare(input(body)).unwrap());
}

fn prepare_and_finish(plugins: &PluginSnapshot, model: &ModelSpec, body: &Bytes, answer: &Bytes) {
    let account = AccountId::from("acme");
    let mut session = calling(&account, |caller| plugins.task(model).begin(caller));
    session.prepare(input(body)).unwrap();
    black_box(
        session
            .finish(200, "application/json", answer.clone())
            .unwrap(),
    );
}

fn push(plugins: &PluginSnapshot, model: &ModelSpec) {
    let account = AccountId::from("acme");
    let mut session = calling(&account, |caller| plugins.task(model).begin(caller));
    session
        .prepare(input(&Bytes::from_static(b"{\"prompt\":\"x\"}")))
        .unwrap();
    let data = br#"{"choices":[{"index":0,"delta":{"content":"hello"}}]}"#.to_vec();
    black_box(
        session
            .push(vec![StreamEvent { name: None, data }])
            .unwrap(),
    );
}

fn schema(size: &str, body: &Bytes, calls: u32) {
    let model = user("task", "text-generation");
    let mut plain = (*model).clone();
    plain.plugins.task = None;
    let Some(text) = PluginSnapshot::default().task(&plain).input_schema() else {
        return;
    };
    let schema = Schema::compile(&text).unwrap();
    let text = bytes::Bytes::copy_from_slice(body);
    let parse = cpu_us(calls, || {
        black_box(Outline::read(text.clone()).unwrap());
    });
    let outline = Outline::read(text.clone()).unwrap();
    let check = cpu_us(calls, || schema.check(black_box(&outline)).unwrap());
    println!(
        "{:<52} {:>9} {parse:>9.2}",
        format!("native: reading {size}"),
        ""
    );
    println!(
        "{:<52} {:>9} {check:>9.2}",
        format!("native: schema of {size}, read"),
        ""
    );
}

fn cached(calls: u32) {
    let choices: Vec<Choice> = (0..8)
        .map(|id| Choice {
            id,
            step: (id / 2) as u8,
        })
        .collect();
    let table = ArcSwap::from_pointee(choices);
    let figure = cpu_us(calls.saturating_mul(10), || {
        black_box(table.load().first().map(|choice| choice.id));
    });
    println!(
        "{:<52} {:>9} {figure:>9.3}",
        "native: reading a cached ranking", ""
    );
}
