//! Checks of an input: without a session where no hook is active, and the same ones however the body came.

use bytes::Bytes;
use infergate_core::Refusal;
use serde_json::json;

use super::guests::Wat;
use super::stand::{TestHost, calling, user_of};
use crate::plugin::{PluginSnapshot, PluginSpec, TaskInput, TaskPayload, World};

/// Bits of a description: no hook, and `prepare`, `finish` and `events`.
const NO_HOOK: u8 = 0;
const ALL_HOOKS: u8 = 7;

/// A guest whose description has an input schema and active hooks.
fn guest(schema: &str, hooks: u8) -> Wat {
    let data = format!(
        "(data (i32.const 3500) \"{}\")",
        schema.replace('"', "\\22")
    );
    let describe = format!(
        "(call $clear) (i32.store8 (i32.const 1032) (i32.const 1)) (i32.store (i32.const 1036) (i32.const 3500))
         (i32.store (i32.const 1040) (i32.const {})) (i32.store8 (i32.const 1064) (i32.const {hooks})) (i32.const 1024)",
        schema.len()
    );
    Wat::of(World::TaskSchemaStreaming)
        .more(&data)
        .describe(&describe)
}

fn input(body: &Bytes, is_read: bool) -> TaskInput<'_> {
    TaskInput {
        model: "m",
        content_type: "application/json",
        body,
        is_read,
        is_checked: false,
        attributes: Vec::new(),
    }
}

fn check(
    plugins: &PluginSnapshot,
    spec: &PluginSpec,
    body: &Bytes,
) -> Result<TaskPayload, Refusal> {
    let slot = plugins.task(&user_of(spec));
    assert!(slot.is_active() && !slot.has_hooks());
    let of_client = slot.check(&input(body, false));
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() {
        assert_eq!(slot.check(&input(body, true)), of_client, "{body:?}");
    }
    of_client
}

#[test]
fn a_task_without_hooks_checks_as_a_session_does_and_copies_nothing() {
    let stand = TestHost::new();
    let schema = json!({ "type": "object", "required": ["prompt"], "properties": {
        "prompt": { "type": "string", "maxLength": 4 },
        "steps": { "type": "integer", "minimum": 1 }
    } });
    let quiet = stand.spec(
        "t",
        World::TaskSchemaStreaming,
        &guest(&schema.to_string(), NO_HOOK),
    );
    let plugins = stand.load(&quiet).unwrap();
    let hooked = stand.spec(
        "u",
        World::TaskSchemaStreaming,
        &guest(&schema.to_string(), ALL_HOOKS),
    );
    let with_hooks = stand.load(&hooked).unwrap();
    assert!(with_hooks.task(&user_of(&hooked)).has_hooks());

    let deep = format!(
        r#"{{"prompt":"x","deep":{}{}}}"#,
        "[".repeat(128),
        "]".repeat(128)
    );
    for body in [
        r#"{"prompt":"x"}"#,
        r#" { "prompt" : "\u0078" , "own" : [ 1 , {} ] } "#,
        "{}",
        "[]",
        "{",
        r#"{"prompt":"x","steps":0}"#,
        r#"{"prompt":"x","steps":1.5}"#,
        r#"{"prompt":"longer"}"#,
        r#"{"prompt":"x","prompt":"y"}"#,
        r#"{"prompt":"x","own":{"a":1,"a":2}}"#,
        &deep,
    ] {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let checked = check(&plugins, &quiet, &body);
        let slot = with_hooks.task(&user_of(&hooked));
        let mut session = calling("acme", |caller| slot.begin(caller));
        let prepared = session.prepare(input(&body, false));
        assert_eq!(checked.as_ref().err(), prepared.as_ref().err(), "{body:?}");
        if let Ok(payload) = checked {
            assert_eq!(payload.body.as_ptr(), body.as_ptr());
            assert!(!payload.changed && payload.backend_path.is_none());
        }
    }
}

#[test]
fn a_refusal_names_the_place_whichever_check_finds_it() {
    let stand = TestHost::new();
    let refused = |schema: &str, body: &'static str| {
        let spec = stand.spec("t", World::TaskSchemaStreaming, &guest(schema, NO_HOOK));
        let plugins = stand.load(&spec).unwrap();
        match check(&plugins, &spec, &Bytes::from_static(body.as_bytes())) {
            Err(Refusal::BadRequest { pointer, message }) => (pointer, message),
            other => panic!("{other:?}"),
        }
    };
    // The second has a keyword that one pass does not check.
    for schema in [
        r#"{"properties":{"n":{"maximum":3}}}"#,
        r#"{"properties":{"n":{"maximum":3},"s":{"pattern":"^a"}}}"#,
    ] {
        let expected = ("/n".to_owned(), "`n` must be at most 3".to_owned());
        assert_eq!(refused(schema, r#"{"s":"a","n":4}"#), expected);
    }
    let by_pattern = refused(r#"{"properties":{"s":{"pattern":"^a"}}}"#, r#"{"s":"b"}"#);
    assert_eq!(
        by_pattern,
        ("/s".to_owned(), "`s` must match `^a`".to_owned())
    );
}

#[test]
fn a_body_passes_at_once_only_where_its_check_would_pass_and_is_short() {
    let stand = TestHost::new();
    let schema = json!({ "type": "object", "required": ["prompt"], "properties": {
        "prompt": { "type": "string" }, "list": { "type": "array", "items": { "type": "integer" } }
    } });
    let slot_of = |name: &str, hooks: u8| {
        let world = World::TaskSchemaStreaming;
        let spec = stand.spec(name, world, &guest(&schema.to_string(), hooks));
        stand.load(&spec).unwrap().task(&user_of(&spec))
    };
    let slot = slot_of("t", NO_HOOK);
    let long = format!(r#"{{"prompt":"{}"}}"#, "word ".repeat(100_000));
    let list = |items: usize| format!(r#"{{"prompt":"x","list":[{}1]}}"#, "1,".repeat(items));
    let too_large = format!(r#"{{"prompt":"{}"}}"#, "word ".repeat(450_000));
    for (body, passes) in [
        (long.as_str(), true),
        (&list(1_000), true),
        (&list(100_000), false),
        (&too_large, false),
        (&long.replace("prompt", "other"), false),
        (r#"{"prompt":"x","prompt":"y"}"#, false),
        (r#"{"prompt":1}"#, false),
    ] {
        assert_eq!(slot.passes_at_once(body.as_bytes()), passes, "{body:.40}");
        let body = Bytes::copy_from_slice(body.as_bytes());
        let checked = slot.check(&input(&body, true));
        assert!(!passes || checked.is_ok(), "{body:.40?}");
        // What has passed is not read again, and is the payload.
        let passed = TaskInput {
            is_checked: true,
            ..input(&body, true)
        };
        assert!(
            slot.check(&passed)
                .is_ok_and(|payload| payload.body == body)
        );
    }
    // A hook for requests is to see the body.
    assert!(!slot_of("u", ALL_HOOKS).passes_at_once(long.as_bytes()));
}
