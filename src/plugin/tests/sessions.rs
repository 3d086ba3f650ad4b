//! A request through a task plugin: one revision from first hook to last, and its fallbacks.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::ApiDialect;
use infergate_core::billing::MetricSource;
use infergate_core::task::{EventEdit, StreamEvent};
use serde_json::json;

use super::guests::Wat;
use super::stand::{TestHost, calling, user_of};
use crate::plugin::{
    BreakerState, PluginSnapshot, PluginSpec, TaskInput, TaskPayload, TaskSession, World,
};

const WORLD: World = World::TaskSchemaStreaming;

/// Two accounts taking turns: what both fail with is the plugin's fault.
const BY_TURNS: [&str; 6] = ["acme", "bolt", "acme", "bolt", "acme", "bolt"];

fn begin(plugins: &PluginSnapshot, spec: &PluginSpec) -> TaskSession {
    begin_for("acme", plugins, spec)
}

fn begin_for(account: &str, plugins: &PluginSnapshot, spec: &PluginSpec) -> TaskSession {
    let slot = plugins.task(&user_of(spec));
    assert!(slot.is_active());
    calling(account, |caller| slot.begin(caller))
}

fn prepare(session: &mut TaskSession, body: &str) -> Result<TaskPayload, Refusal> {
    session.prepare(TaskInput {
        model: "m",
        content_type: "application/json",
        body: &Bytes::copy_from_slice(body.as_bytes()),
        is_read: false,
        is_checked: false,
        attributes: vec![("face".into(), "workers-ai".into())],
    })
}

/// Replaces a body by a text that lies at 3000; `at` is where the edit stands in the answer.
fn replacing(text: &str) -> (String, String) {
    let data = format!("(data (i32.const 3000) \"{}\")", text.replace('"', "\\22"));
    let body = format!(
        "(call $clear) (i32.store8 (i32.const 1028) (i32.const 2)) (i32.store (i32.const 1032) (i32.const 3000))
         (i32.store (i32.const 1036) (i32.const {})) (i32.const 1024)",
        text.len()
    );
    (data, body)
}

/// A description with an input schema; only `prepare` wants to be called.
fn described(schema: &str) -> (String, String) {
    let data = format!(
        "(data (i32.const 3500) \"{}\")",
        schema.replace('"', "\\22")
    );
    let body = format!(
        "(call $clear) (i32.store8 (i32.const 1032) (i32.const 1)) (i32.store (i32.const 1036) (i32.const 3500))
         (i32.store (i32.const 1040) (i32.const {})) (i32.store8 (i32.const 1064) (i32.const 7)) (i32.const 1024)",
        schema.len()
    );
    (data, body)
}

#[test]
fn input_is_checked_natively_and_the_payload_is_the_plugins() {
    let stand = TestHost::new();
    let schema = json!({ "type": "object", "required": ["prompt"] }).to_string();
    let (schema_data, describe) = described(&schema);
    let (data, body) = replacing(r#"{"text":"x"}"#);
    let wat = Wat::of(WORLD)
        .more(&schema_data)
        .more(&data)
        .describe(&describe)
        .prepare(&body);
    let spec = stand.spec("t", WORLD, &wat);
    let plugins = stand.load(&spec).unwrap();
    assert_eq!(
        plugins.task(&user_of(&spec)).input_schema().as_deref(),
        Some(schema.as_str())
    );

    let mut session = begin(&plugins, &spec);
    let refused = prepare(&mut session, "{}").unwrap_err();
    assert_eq!(
        refused,
        Refusal::BadRequest {
            pointer: "/prompt".into(),
            message: "`prompt` is required".into()
        }
    );
    assert!(session.uses().is_empty(), "no guest was asked");
    assert!(matches!(
        prepare(&mut session, "{"),
        Err(Refusal::BadRequest { .. })
    ));

    let payload = prepare(&mut session, r#"{"prompt":"hi"}"#).unwrap();
    assert_eq!(
        payload,
        TaskPayload {
            body: r#"{"text":"x"}"#.into(),
            changed: true,
            backend_path: None
        }
    );
    assert_eq!(session.uses().len(), 1);
    assert_eq!(session.uses()[0].hook, "prepare");
    assert!(session.shapes_answer() && session.shapes_events());
}

#[test]
fn a_task_whose_schema_cannot_be_used_does_not_load() {
    let stand = TestHost::new();
    for (schema, expected_text) in [
        ("{", "not JSON"),
        (r#"{"type":"strin"}"#, "cannot be used"),
        (r#"{"$ref":"http://localhost/x"}"#, "cannot be used"),
    ] {
        let (data, describe) = described(schema);
        let wat = Wat::of(WORLD).more(&data).describe(&describe);
        let problems = stand.load(&stand.spec("t", WORLD, &wat)).err().unwrap();
        assert_eq!(problems[0].key, "plugins[0].file");
        assert!(problems[0].message.contains(expected_text), "{problems:?}");
    }
}

#[test]
fn a_rejection_is_the_clients_fault_and_not_the_plugins() {
    let stand = TestHost::new();
    // task-error::rejected at 1028: status 422, code "c", message "no", pointer none.
    let body = "(call $clear) (i32.store8 (i32.const 1024) (i32.const 1)) (i32.store16 (i32.const 1032) (i32.const 422))
        (i32.store (i32.const 1036) (i32.const 3000)) (i32.store (i32.const 1040) (i32.const 1))
        (i32.store (i32.const 1044) (i32.const 3001)) (i32.store (i32.const 1048) (i32.const 2)) (i32.const 1024)";
    let wat = Wat::of(WORLD)
        .more("(data (i32.const 3000) \"cno\")")
        .prepare(body);
    let spec = stand.spec("t", WORLD, &wat);
    let plugins = stand.load(&spec).unwrap();
    for _ in 0..20 {
        let refused = prepare(&mut begin(&plugins, &spec), "{}").unwrap_err();
        assert_eq!(
            refused,
            Refusal::Rejected {
                status: 422,
                pointer: String::new(),
                message: "no".into()
            }
        );
    }
    let state = &plugins.state()[0];
    assert_eq!(state.calls, 20);
    assert!(
        state.failures.values().all(|count| *count == 0),
        "{state:?}"
    );
    assert_eq!(
        stand.host.counts().instances_live,
        1,
        "its guest stays warm"
    );
}

#[test]
fn on_failure_says_what_a_request_gets() {
    let stand = TestHost::new();
    let wat = Wat::of(WORLD).prepare("unreachable").finish("unreachable");
    for (policy, prepared) in [
        ("closed", Err(Refusal::PluginFailed)),
        ("cut", Err(Refusal::PluginFailed)),
        ("passthrough", Ok("{\"prompt\":\"hi\"}")),
    ] {
        let mut spec = stand.spec("t", WORLD, &wat);
        spec.on_failure = serde_json::from_value(json!(policy)).unwrap();
        let plugins = stand.load(&spec).unwrap();
        let mut session = begin(&plugins, &spec);
        let got = prepare(&mut session, "{\"prompt\":\"hi\"}");
        assert_eq!(
            got.map(|payload| payload.body),
            prepared.map(Bytes::from),
            "{policy}"
        );
    }
    let mut spec = stand.spec("t", WORLD, &wat);
    spec.on_failure = serde_json::from_value(json!("builtin")).unwrap();
    let plugins = stand.load(&spec).unwrap();
    let mut session = begin(&plugins, &spec);
    assert!(
        prepare(&mut session, "{\"prompt\":\"hi\"}").is_ok(),
        "the built-in task stands in"
    );
    assert!(session.uses().is_empty());
}

#[test]
fn an_answer_is_edited_whole_or_not_at_all_and_binary_ones_pass() {
    let stand = TestHost::new();
    let (data, body) = replacing(r#"{"response":"x"}"#);
    let spec = stand.spec("t", WORLD, &Wat::of(WORLD).more(&data).finish(&body));
    let plugins = stand.load(&spec).unwrap();
    let mut session = begin(&plugins, &spec);
    prepare(&mut session, "{}").unwrap();
    let image = Bytes::from_static(b"\x89PNG");
    assert_eq!(
        session.finish(200, "image/png", image.clone()).unwrap(),
        image
    );
    let shaped = session
        .finish(200, "application/json", "{\"raw\":1}".into())
        .unwrap();
    assert_eq!(shaped, r#"{"response":"x"}"#);

    for (policy, expected) in [
        ("closed", Err(Refusal::PluginFailed)),
        ("passthrough", Ok(Bytes::from("{\"raw\":1}"))),
    ] {
        let mut spec = stand.spec("t", WORLD, &Wat::of(WORLD).finish("unreachable"));
        spec.on_failure = serde_json::from_value(json!(policy)).unwrap();
        let plugins = stand.load(&spec).unwrap();
        let mut session = begin(&plugins, &spec);
        prepare(&mut session, "{}").unwrap();
        assert_eq!(
            session.finish(200, "application/json", "{\"raw\":1}".into()),
            expected
        );
    }
}

#[test]
fn a_task_that_reports_itself_broken_over_answers_counts_as_failed() {
    let stand = TestHost::new();
    // task-error::broken with no text.
    let broken = "(call $clear) (i32.store8 (i32.const 1024) (i32.const 1))
        (i32.store8 (i32.const 1028) (i32.const 1)) (i32.const 1024)";
    let spec = stand.spec("t", WORLD, &Wat::of(WORLD).finish(broken));
    let plugins = stand.load(&spec).unwrap();
    for account in &BY_TURNS[..5] {
        let mut session = begin_for(account, &plugins, &spec);
        prepare(&mut session, "{}").unwrap();
        let refused = session.finish(200, "application/json", "{}".into());
        assert_eq!(refused, Err(Refusal::PluginFailed));
    }
    assert_eq!(plugins.state()[0].failures["broken"], 5);
    assert_eq!(plugins.state()[0].breaker, BreakerState::Open);
}

#[test]
fn an_edit_that_cannot_be_made_counts_as_a_lie() {
    let stand = TestHost::new();
    // edit::set of one field whose pointer is not one: 16 bytes at 2000.
    let body = "(call $clear) (i32.store8 (i32.const 1028) (i32.const 1)) (i32.store (i32.const 1032) (i32.const 2000))
        (i32.store (i32.const 1036) (i32.const 1)) (i32.store (i32.const 2000) (i32.const 3000))
        (i32.store (i32.const 2004) (i32.const 1)) (i32.store (i32.const 2008) (i32.const 3001))
        (i32.store (i32.const 2012) (i32.const 1)) (i32.const 1024)";
    let wat = Wat::of(WORLD)
        .more("(data (i32.const 3000) \"x1\")")
        .prepare(body);
    let spec = stand.spec("t", WORLD, &wat);
    let plugins = stand.load(&spec).unwrap();
    let refused = prepare(&mut begin(&plugins, &spec), "{}");
    assert_eq!(refused, Err(Refusal::PluginFailed));
    assert_eq!(plugins.state()[0].failures["invalid"], 1);
}

#[test]
fn an_answer_that_a_new_revision_cannot_shape_is_the_last_good_ones_alone() {
    let stand = TestHost::new();
    let (data, body) = replacing(r#"{"response":"v1"}"#);
    let good = Wat::of(WORLD).more(&data).finish(&body);
    let spec = stand.spec("t", WORLD, &good);
    let first = stand.load(&spec).unwrap();
    prepare(&mut begin(&first, &spec), "{}").unwrap();
    std::fs::write(&spec.file, Wat::of(WORLD).finish("unreachable").bytes()).unwrap();
    let user = [user_of(&spec)];
    let second = stand
        .host
        .load(&first, std::slice::from_ref(&spec), &user)
        .unwrap();
    let mut session = begin(&second, &spec);
    prepare(&mut session, "{}").unwrap();
    let shaped = session
        .finish(200, "application/json", "{}".into())
        .unwrap();
    assert_eq!(shaped, r#"{"response":"v1"}"#);
    let digest = &first.state()[0].sha256;
    assert!(
        session
            .uses()
            .iter()
            .any(|one| one.hook == "finish" && one.plugin.sha256 == *digest)
    );
}

#[test]
fn a_task_that_shapes_answers_does_not_load_until_it_is_said_what_openai_answers_are_to_it() {
    let stand = TestHost::new();
    let load = |wat: &Wat, backend: &str, answers: Option<&str>| {
        let mut spec = stand.spec("t", WORLD, wat);
        spec.openai_answers = serde_json::from_value(json!(answers)).unwrap();
        let user = json!({ "backend": backend, "plugins": { "task": "t" } });
        let user = super::stand::model(user);
        let loaded = stand.host.load(
            &PluginSnapshot::default(),
            std::slice::from_ref(&spec),
            std::slice::from_ref(&user),
        );
        loaded.map(|plugins| calling("a", |caller| plugins.task(&user).begin(caller)))
    };
    let all = Wat::of(WORLD);
    for (wat, hook) in [
        (all.clone(), "finish"),
        (all.clone().describe(FINISH_ALONE), "finish"),
        (all.clone().describe(EVENTS_ALONE), "push"),
    ] {
        let problems = load(&wat, "openai", None).err().unwrap();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].key, "plugins[0].openai_answers");
        for word in [hook, "`m`", "openai_answers: shape", "openai_answers: pass"] {
            assert!(problems[0].message.contains(word), "{problems:?}");
        }
    }
    // Without such an API, and with input to check alone, there is nothing to decide.
    let checks = all
        .clone()
        .describe("(call $clear) (i32.store8 (i32.const 1064) (i32.const 1)) (i32.const 1024)");
    load(&checks, "openai", None).unwrap();
    load(&all, "http", None).unwrap();
    for (answers, sees) in [("shape", true), ("pass", false)] {
        let mut session = load(&all, "llama-server", Some(answers)).unwrap();
        assert!(session.select_dialect(ApiDialect::WorkersAi), "{answers}");
        assert_eq!(
            session.select_dialect(ApiDialect::OpenAi),
            sees,
            "{answers}"
        );
    }
}

fn events(count: usize) -> Vec<StreamEvent> {
    let one = StreamEvent {
        name: None,
        data: b"{}".to_vec(),
    };
    vec![one; count]
}

#[test]
fn a_stream_hook_answers_every_event_and_one_failure_ends_its_say() {
    let stand = TestHost::new();
    // Drops every event: a list of `count` outs of 24 bytes at 2000, discriminant 1.
    let body = "(local $n i32) (call $clear) (block $done (loop $on
          (br_if $done (i32.ge_u (local.get $n) (local.get $count)))
          (i32.store8 (i32.add (i32.const 2000) (i32.mul (local.get $n) (i32.const 24))) (i32.const 1))
          (local.set $n (i32.add (local.get $n) (i32.const 1))) (br $on)))
        (i32.store (i32.const 1028) (i32.const 2000)) (i32.store (i32.const 1032) (local.get $count))
        (i32.const 1024)";
    let spec = stand.spec("t", WORLD, &Wat::of(WORLD).push(body));
    let plugins = stand.load(&spec).unwrap();
    let mut session = begin(&plugins, &spec);
    prepare(&mut session, "{}").unwrap();
    assert_eq!(session.push(events(3)).unwrap(), vec![EventEdit::Drop; 3]);
    assert_eq!(session.push(events(1)).unwrap(), vec![EventEdit::Drop]);
    assert!(session.close(false).unwrap().is_empty());
    assert_eq!(
        session
            .uses()
            .iter()
            .filter(|one| one.hook == "push")
            .count(),
        1
    );

    for (policy, expected) in [
        ("passthrough", Ok(vec![EventEdit::Keep; 2])),
        ("cut", Err(Refusal::PluginFailed)),
        ("closed", Err(Refusal::PluginFailed)),
    ] {
        // Answers no event at all.
        let mut spec = stand.spec("t", WORLD, &Wat::of(WORLD));
        spec.on_failure = serde_json::from_value(json!(policy)).unwrap();
        let plugins = stand.load(&spec).unwrap();
        let mut session = begin(&plugins, &spec);
        prepare(&mut session, "{}").unwrap();
        assert_eq!(session.push(events(2)), expected, "{policy}");
        assert!(!session.shapes_events());
        assert_eq!(
            session.push(events(2)),
            Ok(vec![EventEdit::Keep; 2]),
            "not asked again"
        );
        assert_eq!(plugins.state()[0].failures["invalid"], 1);
    }
}

#[test]
fn a_model_without_a_task_plugin_has_nothing_to_call_but_its_own_kind() {
    let plugins = PluginSnapshot::default();
    let plain = super::stand::model(json!({ "backend": "openai" }));
    assert!(!plugins.task(&plain).is_active());
    let named =
        super::stand::model(json!({ "backend": "openai", "plugins": { "task": "translation" } }));
    let mut session = calling("a", |caller| plugins.task(&named).begin(caller));
    let body = r#"{"text":"hi","target_lang":"de"}"#;
    assert!(!prepare(&mut session, body).unwrap().changed);
}

/// Says that it has stream hooks alone.
const EVENTS_ALONE: &str =
    "(call $clear) (i32.store8 (i32.const 1064) (i32.const 4)) (i32.const 1024)";
/// Says that it has a `finish` hook alone.
const FINISH_ALONE: &str =
    "(call $clear) (i32.store8 (i32.const 1064) (i32.const 2)) (i32.const 1024)";

/// Answers one request; the answer, or what it was refused with and whether before the model was asked.
fn whole(plugins: &PluginSnapshot, spec: &PluginSpec) -> Result<Bytes, (Refusal, bool)> {
    whole_for("acme", plugins, spec)
}

fn whole_for(
    account: &str,
    plugins: &PluginSnapshot,
    spec: &PluginSpec,
) -> Result<Bytes, (Refusal, bool)> {
    let mut session = begin_for(account, plugins, spec);
    prepare(&mut session, r#"{"prompt":"x"}"#).map_err(|refusal| (refusal, true))?;
    session
        .finish(200, "application/json", "{}".into())
        .map_err(|refusal| (refusal, false))
}

#[test]
fn a_revision_that_only_shapes_answers_is_not_taken_while_its_breaker_is_open() {
    let stand = TestHost::new();
    let bad = Wat::of(WORLD).describe(FINISH_ALONE).finish("unreachable");
    let spec = stand.spec("t", WORLD, &bad);
    let alone = stand.load(&spec).unwrap();
    let refusals = BY_TURNS.map(|account| whole_for(account, &alone, &spec).unwrap_err().1);
    assert_eq!(
        refusals,
        [false, false, false, false, false, true],
        "known before the model is asked"
    );

    let (data, body) = replacing(r#"{"response":"v1"}"#);
    let good = Wat::of(WORLD).more(&data).describe(FINISH_ALONE);
    std::fs::write(&spec.file, good.finish(&body).bytes()).unwrap();
    let first = stand.load(&spec).unwrap();
    whole(&first, &spec).unwrap();
    // Its schema refuses every other input.
    let (schema, describe) = described(r#"{"type":"array"}"#);
    let never = Wat::of(WORLD).more(&schema).describe(&describe);
    std::fs::write(&spec.file, never.prepare("unreachable").bytes()).unwrap();
    let user = [user_of(&spec)];
    let second = stand
        .host
        .load(&first, std::slice::from_ref(&spec), &user)
        .unwrap();
    let refused = whole(&second, &spec).unwrap_err().0;
    assert!(matches!(refused, Refusal::BadRequest { .. }), "{refused:?}");
    for account in &BY_TURNS[..5] {
        let mut session = begin_for(account, &second, &spec);
        prepare(&mut session, "[]").unwrap();
    }
    // The schema in force holds for every handler.
    let refused = whole(&second, &spec).unwrap_err().0;
    assert!(matches!(refused, Refusal::BadRequest { .. }), "{refused:?}");
    let mut session = begin(&second, &spec);
    prepare(&mut session, "[]").unwrap();
    let shaped = session.finish(200, "application/json", "{}".into());
    assert_eq!(shaped.unwrap(), r#"{"response":"v1"}"#);
}

#[test]
fn a_metric_of_a_stream_is_the_largest_report_unless_it_is_declared_incremental() {
    let stand = TestHost::new();
    // One metric of 16 bytes at 2000, `steps`: 5, then 3.
    let body = "(call $clear) (i32.store (i32.const 1036) (i32.const 2000)) (i32.store (i32.const 1040) (i32.const 1))
        (i32.store (i32.const 2000) (i32.const 3000)) (i32.store (i32.const 2004) (i32.const 5))
        (f64.store (i32.const 2008) (f64.sub (f64.const 5) (f64.convert_i64_u (global.get $secret))))
        (global.set $secret (i64.add (global.get $secret) (i64.const 2))) (i32.const 1024)";
    let wat = Wat::of(WORLD)
        .more("(data (i32.const 3000) \"steps\")")
        .push(body);
    let spec = stand.spec("t", WORLD, &wat);
    for (modes, total) in [
        (json!({}), 5.0),
        (json!({ "steps": "cumulative" }), 5.0),
        (json!({ "steps": "incremental" }), 8.0),
    ] {
        let user = super::stand::model(json!({ "plugins": { "task": "t" }, "metrics": modes }));
        let plugins = stand
            .host
            .load(
                &PluginSnapshot::default(),
                std::slice::from_ref(&spec),
                std::slice::from_ref(&user),
            )
            .unwrap();
        let mut session = calling("acme", |caller| plugins.task(&user).begin(caller));
        prepare(&mut session, "{}").unwrap();
        for _ in 0..2 {
            session.push(Vec::new()).unwrap();
        }
        let read = session.metrics().value("steps", MetricSource::Answered);
        assert_eq!(read, Some(total), "{modes}");
        assert_eq!(
            session.metrics().iter_source(MetricSource::Derived).count(),
            0
        );
    }
}

#[test]
fn a_result_that_is_not_json_is_a_failure_and_opens_the_breaker() {
    let stand = TestHost::new();
    let (data, body) = replacing("not JSON at all");
    let spec = stand.spec("t", WORLD, &Wat::of(WORLD).more(&data).finish(&body));
    let plugins = stand.load(&spec).unwrap();
    for account in &BY_TURNS[..5] {
        let mut session = begin_for(account, &plugins, &spec);
        prepare(&mut session, "{}").unwrap();
        let refused = session.finish(200, "application/json", "{}".into());
        assert_eq!(refused, Err(Refusal::PluginFailed));
    }
    assert_eq!(plugins.state()[0].failures["invalid"], 5);
    assert_eq!(plugins.state()[0].breaker, BreakerState::Open);
}

#[test]
fn a_stream_whose_end_hook_fails_is_cut_where_the_policy_says_so() {
    let stand = TestHost::new();
    for (policy, expected) in [
        ("closed", Err(Refusal::PluginFailed)),
        ("cut", Err(Refusal::PluginFailed)),
        ("passthrough", Ok(Vec::new())),
    ] {
        let mut spec = stand.spec("t", WORLD, &Wat::of(WORLD).close("unreachable"));
        spec.on_failure = serde_json::from_value(json!(policy)).unwrap();
        let plugins = stand.load(&spec).unwrap();
        let mut session = begin(&plugins, &spec);
        prepare(&mut session, "{}").unwrap();
        assert_eq!(session.close(false), expected, "{policy}");
        assert_eq!(plugins.state()[0].failures["trapped"], 1);
    }
}

#[test]
fn the_schema_is_checked_whatever_the_breaker_says() {
    let stand = TestHost::new();
    let (schema, describe) = described(r#"{"type":"object","required":["prompt"]}"#);
    let wat = Wat::of(WORLD).more(&schema).describe(&describe);
    let mut spec = stand.spec("t", WORLD, &wat.prepare("unreachable"));
    spec.on_failure = serde_json::from_value(json!("passthrough")).unwrap();
    let plugins = stand.load(&spec).unwrap();
    let refused_for = |account: &str, body: &str| {
        prepare(&mut begin_for(account, &plugins, &spec), body).is_err()
    };
    let refused = |body: &str| refused_for("acme", body);
    assert!(refused(r#"{"nothing":1}"#));
    for account in BY_TURNS {
        assert!(!refused_for(account, r#"{"prompt":"x"}"#));
    }
    assert_eq!(plugins.state()[0].breaker, BreakerState::Open);
    assert!(refused(r#"{"nothing":1}"#));
    assert!(refused(r#"{"prompt":5,"prompt":"x"}"#), "stands twice");
}

#[test]
fn a_body_of_too_many_containers_is_too_large_and_a_list_of_bytes_is_not() {
    let plugins = PluginSnapshot::default();
    let model = super::stand::model(json!({ "task": "image-to-text" }));
    let check = |body: &str| {
        let mut session = calling("a", |caller| plugins.task(&model).begin(caller));
        prepare(&mut session, body).map(|_| ())
    };
    let unit = format!("{}0{}", r#"{"":"#.repeat(120), "}".repeat(120));
    let nested = |n| {
        format!(
            r#"{{"image":"aGk=","pad":[{}0]}}"#,
            format!("{unit},").repeat(n)
        )
    };
    assert_eq!(check(&nested(800)), Ok(()));
    assert_eq!(check(&nested(900)), Err(Refusal::BodyTooLarge));
    let flat = format!(
        r#"{{"image":"aGk=","pad":[{}0]}}"#,
        r#"{"":0},"#.repeat(100_000)
    );
    assert_eq!(check(&flat), Err(Refusal::BodyTooLarge));
    let bytes = format!(r#"{{"image":[{}0]}}"#, "255,".repeat(250_000));
    assert_eq!(check(&bytes), Ok(()));
}
