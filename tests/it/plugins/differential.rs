//! Built-in roles against the shipped Wasm guests: 100,000 random cases a role, equal to the bit.
//!
//! Both come from one source, `infergate_tasks`, so this does not compare two writings of a rule. Equality proves
//! that the guest as compiled, its SDK's conversions and the host's, settings included, give the native result. No
//! field is lost or swapped, and floats agree on both targets. Does not prove a rule right: the core's own tests do.
//! Both go through the same facade, checks and edits included. A case that differs is printed whole.

use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use infergate::parts::{Caller, PluginSnapshot, TaskInput, TaskSession};
use infergate_core::billing::{BillingOutcome, Metric, MetricSource, UsageReport};
use infergate_core::model::{ModelSpec, Tariff, Task, Trust};
use infergate_core::routing::{Candidate, Health, Hints};
use infergate_core::task::StreamEvent;
use infergate_core::{AccountId, Refusal};
use serde_json::{Map, Value, json};

use super::fixtures::{loaded, model, shipped};

const CASES: usize = 100_000;
/// Random cases of all tasks between valid ones: far fewer than a slow machine makes in the ten seconds after which a plugin
/// without a usable result is bypassed.
const CASES_BETWEEN_VALID: usize = 1000;

fn on_behalf<T>(body: impl FnOnce(Caller<'_>) -> T) -> T {
    let account = AccountId::from("acme");
    body(Caller {
        account: &account,
        request_id: "r",
    })
}

/// Asserts that no call failed: equal results prove little if the built-in had produced both.
fn assert_asked(plugins: &PluginSnapshot, calls: u64) {
    for mut state in plugins.state() {
        // Random answers of model servers are often such that no result can be made of them.
        if state.world.role() == "task" {
            state.failures.remove("broken");
        }
        assert!(
            state.failures.values().all(|count| *count == 0),
            "{state:#?}"
        );
    }
    let all: u64 = plugins.state().iter().map(|state| state.calls).sum();
    assert!(all >= calls, "{all} calls");
}

#[test]
fn the_wasm_formula_charges_what_the_built_in_one_charges() {
    let models = [
        model(json!({ "id": "native" })),
        model(json!({ "id": "wasm", "plugins": { "billing": "wasm-neurons" } })),
    ];
    let (_host, plugins) = loaded(&[shipped("neurons", "billing-formula")], &models);
    let slots = models.each_ref().map(|model| plugins.billing(model));
    let mut rng = Rng::with_seed(1);
    for case in 0..CASES {
        let (tariff, metrics) = (tariff(&mut rng), metrics(&mut rng));
        let report = UsageReport {
            model: "m",
            trust: Trust::Trust,
            ending: BillingOutcome::Completed,
            streamed: rng.bool(),
            metrics: &metrics,
            queue_ms: rng.u64(..1000),
            infer_ms: rng.u64(..1000),
        };
        let priced = slots
            .each_ref()
            .map(|slot| on_behalf(|caller| slot.price(caller, &tariff, &report)));
        assert!(!priced[1].fell_back, "case {case}: {tariff:?} {metrics:?}");
        assert_eq!(
            priced[0].charge, priced[1].charge,
            "case {case}: {tariff:?} {metrics:?}"
        );
        let bits = priced
            .each_ref()
            .map(|priced| priced.charge.total.to_bits());
        assert_eq!(bits[0], bits[1], "case {case}: {tariff:?} {metrics:?}");
    }
    assert_asked(&plugins, CASES as u64);
}

const NAMES: [&str; 6] = [
    "input_tokens",
    "output_tokens",
    "image_steps",
    "tiles",
    "audio_seconds",
    "ä",
];

fn tariff(rng: &mut Rng) -> Tariff {
    let mut tariff = Tariff {
        cost_per_infer: [0.0, 0.1, rng.f64()][rng.usize(..3)],
        ..Tariff::default()
    };
    for name in NAMES {
        if rng.bool() {
            continue;
        }
        tariff
            .coefficients
            .insert(name.into(), rng.f64() * [1e-6, 1.0, 1e3][rng.usize(..3)]);
    }
    tariff
}

fn metrics(rng: &mut Rng) -> Vec<Metric> {
    let mut names: Vec<&str> = NAMES.iter().copied().filter(|_| rng.bool()).collect();
    rng.shuffle(&mut names);
    let metric = |name: &str| Metric {
        name: name.into(),
        value: [0.0, 1.0, f64::from(rng.u32(..1 << 24)), rng.f64() * 1e6][rng.usize(..4)],
        source: MetricSource::Reported,
    };
    names.into_iter().map(metric).collect()
}

#[test]
fn every_wasm_policy_ranks_as_the_built_in_one_does() {
    let names = [
        "latency",
        "random",
        "forced-site",
        "resource-flow",
        "affinity",
    ];
    let mut models = Vec::new();
    for name in names {
        models.push(model(json!({ "id": name, "plugins": { "routing": name } })));
        let wasm = format!("wasm-{name}");
        models.push(model(json!({ "id": wasm, "plugins": { "routing": wasm } })));
    }
    let specs = names.map(|name| shipped(name, "routing-policy"));
    let (_host, plugins) = loaded(&specs, &models);
    let slots: Vec<_> = models.iter().map(|model| plugins.routing(model)).collect();
    let mut rng = Rng::with_seed(2);
    for case in 0..CASES {
        let at = case % names.len() * 2;
        let (hints, candidates) = (hints(&mut rng), candidates(&mut rng));
        let ranked = [&slots[at], &slots[at + 1]]
            .map(|slot| on_behalf(|caller| slot.rank(Some(caller), &hints, &candidates)));
        assert_eq!(ranked[1].uses.len(), 1, "case {case}");
        assert_eq!(
            ranked[0].choices,
            ranked[1].choices,
            "case {case}, {}: {hints:?} {candidates:?}",
            names[at / 2]
        );
    }
    assert_asked(&plugins, CASES as u64);
}

fn hints(rng: &mut Rng) -> Hints {
    Hints {
        model: rng.u32(..4),
        source_site: rng.u32(..4),
        body_bytes: rng.u32(..1 << 20),
        attempt: rng.u8(..3),
        streaming: rng.bool(),
        priority: rng.u8(..10),
        deadline_ms: rng.bool().then(|| rng.u32(..)),
        lora: rng.bool().then(|| rng.u32(..3)),
        forced_site: rng.bool().then(|| rng.u32(..5)),
        seed: rng.u64(..),
    }
}

fn candidates(rng: &mut Rng) -> Vec<Candidate> {
    let health = [
        Health::Healthy,
        Health::Degraded,
        Health::Ejected,
        Health::Draining,
        Health::Down,
    ];
    let count = rng.u32(..12);
    let mut one = |id| Candidate {
        id,
        site: rng.u32(..4),
        node: rng.bool().then(|| rng.u32(..4)),
        health: health[if rng.bool() { 0 } else { rng.usize(..5) }],
        permits_free: rng.u32(..5),
        permits_total: rng.u32(..9),
        queue_len: rng.u32(..9),
        rtt_us: [0, rng.u32(..200_000), rng.u32(..)][rng.usize(..3)],
        ttft_us: [0, rng.u32(..2_000_000), rng.u32(..)][rng.usize(..3)],
        latency_us: [0, rng.u32(..), u32::MAX][rng.usize(..3)],
        error_ppm: rng.u32(..1_000_001),
        lora_affinity: [0, 1000, rng.u16(..1001)][rng.usize(..3)],
        prefix_affinity: rng.u16(..1001),
        tier: rng.u8(..3),
        ooc: rng.u8(..4),
    };
    (0..count).map(&mut one).collect()
}

#[test]
fn every_wasm_task_takes_shapes_and_refuses_what_the_built_in_one_does() {
    let mut models = Vec::new();
    for task in Task::ALL {
        let slug = task.slug();
        models.push(model(json!({ "id": slug, "task": slug })));
        let wasm = format!("wasm-{slug}");
        models.push(model(
            json!({ "id": wasm, "task": slug, "plugins": { "task": wasm } }),
        ));
    }
    let specs = Task::ALL.map(|task| match task {
        Task::TextGeneration | Task::ImageTextToText => {
            shipped(task.slug(), "task-schema-streaming")
        }
        _ => shipped(task.slug(), "task-schema"),
    });
    let (_host, plugins) = loaded(&specs, &models);
    for pair in models.chunks(2) {
        let [native, wasm] = [&pair[0], &pair[1]].map(|model| plugins.task(model));
        assert_eq!(native.input_schema(), wasm.input_schema(), "{}", pair[0].id);
        assert_eq!(
            native.output_schema(),
            wasm.output_schema(),
            "{}",
            pair[0].id
        );
    }
    let mut rng = Rng::with_seed(3);
    for case in 0..CASES {
        if case % CASES_BETWEEN_VALID == 0 {
            for pair in models.chunks(2) {
                finish_well(&plugins, &pair[1]);
            }
        }
        let at = case % Task::ALL.len() * 2;
        compare_task(case, &plugins, [&models[at], &models[at + 1]], &mut rng);
    }
    assert_asked(&plugins, CASES as u64 / 10);
}

/// Makes a call whose result is valid, so that the breaker stays closed.
///
/// Random results often fit no task, and a plugin without a usable one for ten seconds is bypassed.
fn finish_well(plugins: &PluginSnapshot, model: &Arc<ModelSpec>) {
    let input = json!({ "prompt": "x", "text": "x", "input_text": "x", "target_lang": "fr",
                        "image": [1, 2], "audio": [1, 2] });
    let answer = match model.task {
        Task::TextClassification | Task::ImageClassification => {
            json!([{ "label": "cat", "score": 0.5 }])
        }
        Task::ObjectDetection => json!([{ "label": "cat", "score": 0.5,
            "box": { "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2 } }]),
        Task::TextEmbeddings | Task::MultimodalEmbeddings => json!([[0.5, 1.0]]),
        _ => json!({ "response": "x", "generated_text": "x", "text": "x", "translation_text": "x",
                     "summary_text": "x", "image": "iVBORw0KGgo=", "audio": "AAAA" }),
    };
    let mut session: TaskSession = on_behalf(|caller| plugins.task(model).begin(caller));
    let body = Bytes::from(input.to_string());
    let prepared = session.prepare(TaskInput {
        model: "m",
        content_type: "application/json",
        body: &body,
        is_read: false,
        is_checked: false,
        attributes: Vec::new(),
    });
    assert!(prepared.is_ok(), "{}: {prepared:?}", model.id);
    let answer = Bytes::from(answer.to_string());
    let finished = session.finish(200, "application/json", answer);
    assert!(finished.is_ok(), "{}: {finished:?}", model.id);
}

fn compare_task(
    case: usize,
    plugins: &PluginSnapshot,
    models: [&Arc<ModelSpec>; 2],
    rng: &mut Rng,
) {
    let mut sessions: [TaskSession; 2] =
        models.map(|model| on_behalf(|caller| plugins.task(model).begin(caller)));
    let slug = models[0].id.as_str();
    let is_bytes = models[0].task.takes_bytes() && rng.u8(..4) == 0;
    let (content_type, body) = match is_bytes {
        true => ("image/png", Bytes::from(vec![rng.u8(..); rng.usize(..40)])),
        false => ("application/json", Bytes::from(input(rng).to_string())),
    };
    let attributes = vec![("face".to_owned(), "workers-ai".to_owned())];
    let prepared = sessions.each_mut().map(|session| {
        session.prepare(TaskInput {
            model: "m",
            content_type,
            body: &body,
            is_read: false,
            is_checked: false,
            attributes: attributes.clone(),
        })
    });
    assert_eq!(prepared[0], prepared[1], "case {case}, {slug}: {body:?}");
    if prepared[0].is_err() {
        return;
    }
    if rng.u8(..4) == 0 && sessions[0].shapes_events() {
        let events: Vec<StreamEvent> = (0..rng.usize(..4))
            .map(|_| StreamEvent {
                name: None,
                data: output(rng).to_string().into_bytes(),
            })
            .collect();
        let outs = sessions
            .each_mut()
            .map(|session| session.push(events.clone()).map_err(unfit_as_failed));
        assert_eq!(outs[0], outs[1], "case {case}, {slug}: {events:?}");
        let cut = rng.bool();
        let closed = sessions
            .each_mut()
            .map(|session| session.close(cut).map_err(unfit_as_failed));
        assert_eq!(closed[0], closed[1], "case {case}, {slug}");
    } else {
        let answer = Bytes::from(output(rng).to_string());
        let status = [200, 200, 200, 400, 500][rng.usize(..5)];
        let finished = sessions.each_mut().map(|session| {
            let finished = session.finish(status, "application/json", answer.clone());
            finished.map_err(unfit_as_failed)
        });
        assert_eq!(
            finished[0], finished[1],
            "case {case}, {slug}: {status} {answer:?}"
        );
    }
    let reported = sessions.each_ref().map(|session| {
        let of = |source| session.metrics().iter_source(source).cloned();
        let sources = [MetricSource::Derived, MetricSource::Answered].into_iter();
        sources.flat_map(of).collect::<Vec<Metric>>()
    });
    assert_eq!(reported[0], reported[1], "case {case}, {slug}: {body:?}");
}

/// Replaces the refusal of an unfit answer: no plugin is blamed where none is, the one difference.
fn unfit_as_failed(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::InvalidResponse => Refusal::PluginFailed,
        other => other,
    }
}

/// Keys that tasks know, with values that they may or may not take.
fn input(rng: &mut Rng) -> Value {
    const KEYS: [&str; 24] = [
        "prompt",
        "messages",
        "text",
        "image",
        "audio",
        "target_lang",
        "source_lang",
        "input_text",
        "max_length",
        "steps",
        "num_steps",
        "width",
        "height",
        "seed",
        "stream",
        "max_tokens",
        "temperature",
        "lang",
        "raw",
        "lora",
        "guidance",
        "n",
        "negative_prompt",
        "unknown",
    ];
    if rng.u8(..50) == 0 {
        return anything(rng, 2);
    }
    let mut body = Map::new();
    for _ in 0..rng.usize(1..6) {
        // The first eight are those that tasks require.
        let key = KEYS[if rng.bool() {
            rng.usize(..8)
        } else {
            rng.usize(..KEYS.len())
        }];
        body.insert(key.into(), fitting(key, rng));
    }
    Value::Object(body)
}

/// Mostly what the key is for.
fn fitting(key: &str, rng: &mut Rng) -> Value {
    if rng.u8(..6) == 0 {
        return anything(rng, 2);
    }
    match key {
        "messages" => json!([{ "role": "user", "content": "hi" }]),
        "image" | "audio" => match rng.u8(..3) {
            0 => json!("aGVsbG8="),
            1 => json!([137, 80, 78, 71]),
            _ => json!("not base64!"),
        },
        "text" if rng.bool() => json!(["a", "bc"]),
        "stream" | "raw" => json!(rng.bool()),
        "temperature" | "guidance" => json!(rng.f64() * 5.0),
        "steps" | "num_steps" | "width" | "height" | "seed" | "max_tokens" | "max_length" | "n" => {
            json!([0, 1, 8, 20, 512, 4096][rng.usize(..6)])
        }
        _ => json!(["x", "hello world", "", "en", "ü"][rng.usize(..5)]),
    }
}

/// Keys that model servers answer with.
fn output(rng: &mut Rng) -> Value {
    const KEYS: [&str; 16] = [
        "response",
        "generated_text",
        "choices",
        "text",
        "label",
        "score",
        "box",
        "data",
        "shape",
        "translated_text",
        "translation_text",
        "summary",
        "summary_text",
        "description",
        "image",
        "usage",
    ];
    match rng.u8(..8) {
        0 => return anything(rng, 3),
        1 => {
            return json!([{ "label": "cat", "score": rng.f64() }, { "label": "dog", "score": 0.5 }]);
        }
        2 => return json!([[0.5, 1.0, -2.0], [rng.f64(), 0.0, 1.0]]),
        3 => {
            return json!({ "choices": [{ "delta": { "content": "hi" }, "message": { "content": "hi" } }],
                           "usage": { "prompt_tokens": 3, "completion_tokens": 4 } });
        }
        _ => {}
    }
    let mut body = Map::new();
    for _ in 0..rng.usize(1..4) {
        body.insert(KEYS[rng.usize(..KEYS.len())].into(), anything(rng, 2));
    }
    Value::Object(body)
}

fn anything(rng: &mut Rng, depth: u32) -> Value {
    match rng.u8(..if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i32(..)),
        3 => json!(rng.f64() * 1e3),
        4 => json!(["", "x", "hello", "\u{0}\n\"", "ü"][rng.usize(..5)]),
        5 => json!(rng.u64(..)),
        6 => (0..rng.usize(..4))
            .map(|_| anything(rng, depth - 1))
            .collect(),
        _ => {
            let keys = ["role", "content", "label", "score", "xmin", "text", "a/b~c"];
            let count = rng.usize(..4);
            let pair = |rng: &mut Rng| (keys[rng.usize(..7)].to_owned(), anything(rng, depth - 1));
            Value::Object((0..count).map(|_| pair(rng)).collect())
        }
    }
}
