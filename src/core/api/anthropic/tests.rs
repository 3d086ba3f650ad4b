//! The dialect as its clients and the model servers see it.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::descriptor::Anthropic;
use super::request::to_chat;
use super::response::Translator;
use crate::Refusal;
use crate::api::call::Operation;
use crate::api::dialect::{Dialect, NotTranslatable, RequestBody, ResponseTranslator};
use crate::api::sse;

fn chat(body: &Value) -> Value {
    let translated = to_chat(body.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&translated).unwrap()
}

fn refused(body: &Value) -> (String, String) {
    match to_chat(body.to_string().as_bytes()) {
        Err(Refusal::BadRequest { pointer, message }) => (pointer, message),
        other => panic!("unexpected {other:?}"),
    }
}

fn events(out: &[u8]) -> Vec<Value> {
    let mut events = Vec::new();
    let mut splitter = sse::EventSplitter::default();
    let split = splitter.push(out, &mut |event| {
        let data: Value = serde_json::from_slice(&sse::data(event).unwrap()).unwrap();
        assert_eq!(sse::name(event), data["type"].as_str());
        events.push(data);
    });
    split.unwrap();
    assert!(splitter.held().is_empty());
    events
}

fn chunk(delta: Value, finish_reason: Value) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish_reason });
    let chunk = json!({ "id": "c1", "model": "m", "choices": [choice] });
    format!("data: {chunk}\n\n")
}

#[test]
fn a_conversation_becomes_a_chat() {
    let body = json!({
        "model": "m", "max_tokens": 9, "temperature": 0.5, "top_k": 3, "x_priority": 2,
        "stop_sequences": ["a", "b"], "metadata": { "user_id": "u" }, "thinking": { "type": "enabled" },
        "system": [{ "type": "text", "text": "be" }, { "type": "text", "text": "kind\n" }],
        "messages": [
            { "role": "user", "content": "h\u{e9}llo" },
            { "role": "assistant", "content": [{ "type": "text", "text": "yes?" }] },
            { "role": "user", "content": [
                { "type": "text", "text": "what is it?" },
                { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "iVBO/+=" } },
                { "type": "image", "source": { "type": "url", "url": "https://x/y.png" } },
            ] },
        ],
    });
    assert_eq!(
        chat(&body),
        json!({
            "model": "m", "max_tokens": 9, "temperature": 0.5, "top_k": 3, "x_priority": 2,
            "stop": ["a", "b"], "user": "u",
            "messages": [
                { "role": "system", "content": "be\n\nkind\n" },
                { "role": "user", "content": "h\u{e9}llo" },
                { "role": "assistant", "content": "yes?" },
                { "role": "user", "content": [
                    { "type": "text", "text": "what is it?" },
                    { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBO/+=" } },
                    { "type": "image_url", "image_url": { "url": "https://x/y.png" } },
                ] },
            ],
        })
    );
}

#[test]
fn tools_their_calls_and_their_results_are_translated() {
    let schema = json!({ "type": "object", "properties": {} });
    let body = json!({
        "model": "m", "max_tokens": 9, "stream": true,
        "tools": [{ "name": "f", "description": "d", "input_schema": schema }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "go" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": "\"x\"" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": [
                    { "type": "text", "text": "one" },
                    { "type": "image", "source": { "type": "url", "url": "https://x/z.png" } },
                ] },
                { "type": "tool_result", "tool_use_id": "t2", "content": "two", "is_error": true },
                { "type": "text", "text": "and now?" },
            ] },
        ],
    });
    let translated = chat(&body);
    let function = json!({ "name": "f", "description": "d", "parameters": schema });
    assert_eq!(
        translated["tools"],
        json!([{ "type": "function", "function": function }])
    );
    assert_eq!(translated["tool_choice"], "required");
    assert_eq!(translated["parallel_tool_calls"], false);
    assert_eq!(
        translated["stream_options"],
        json!({ "include_usage": true })
    );
    let call = json!({ "name": "f", "arguments": r#"{"a":"\"x\""}"# });
    assert_eq!(
        translated["messages"],
        json!([
            { "role": "user", "content": "go" },
            { "role": "assistant", "content": null,
              "tool_calls": [{ "id": "t1", "type": "function", "function": call }] },
            { "role": "tool", "tool_call_id": "t1", "content": "one" },
            { "role": "tool", "tool_call_id": "t2", "content": "two" },
            { "role": "user", "content": [
                { "type": "image_url", "image_url": { "url": "https://x/z.png" } },
                { "type": "text", "text": "and now?" },
            ] },
        ])
    );
    let named = |choice: Value| {
        let messages = json!([{ "role": "user", "content": "a" }]);
        let tools = json!([{ "name": "f" }]);
        let body = json!({ "messages": messages, "tools": tools, "tool_choice": choice });
        chat(&body)["tool_choice"].clone()
    };
    let function = json!({ "type": "function", "function": { "name": "f" } });
    assert_eq!(named(json!({ "type": "tool", "name": "f" })), function);
    assert_eq!(named(json!({ "type": "auto" })), "auto");
    assert_eq!(named(json!({ "type": "none" })), "none");
}

#[test]
fn a_schema_for_the_answer_becomes_a_response_format() {
    let schema = json!({ "type": "object" });
    let format = json!({ "type": "json_schema", "schema": schema });
    let messages = json!([{ "role": "user", "content": "a" }]);
    let expected =
        json!({ "type": "json_schema", "json_schema": { "name": "output", "schema": schema } });
    for body in [
        json!({ "messages": messages, "output_config": { "format": format, "effort": "low" } }),
        json!({ "messages": messages, "output_format": format }),
    ] {
        assert_eq!(chat(&body)["response_format"], expected);
    }
}

#[test]
fn a_fault_is_named_by_its_place_in_the_clients_body() {
    let content = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let place = |body: &Value| refused(body).0;
    assert_eq!(place(&json!([])), "");
    assert_eq!(place(&json!({})), "/messages");
    assert_eq!(place(&json!({ "messages": "a" })), "/messages");
    assert_eq!(place(&json!({ "messages": ["a"] })), "/messages/0");
    assert_eq!(place(&content(json!(5))), "/messages/0/content");
    assert_eq!(
        place(&json!({ "messages": [{ "role": "tool", "content": [] }] })),
        "/messages/0/role"
    );
    for (block, expected) in [
        (json!({ "type": "text" }), "/text"),
        (json!({ "type": "document", "source": {} }), "/type"),
        (
            json!({ "type": "image", "source": { "type": "file", "file_id": "f" } }),
            "/source/type",
        ),
        (
            json!({ "type": "image", "source": { "type": "base64" } }),
            "/source",
        ),
        (
            json!({ "type": "tool_result", "content": "a" }),
            "/tool_use_id",
        ),
        (
            json!({ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "x" }] }),
            "/content/0/type",
        ),
        (
            json!({ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "image" }] }),
            "/content/0/source",
        ),
    ] {
        let body = content(json!([{ "type": "text", "text": "a" }, block]));
        assert_eq!(place(&body), format!("/messages/0/content/1{expected}"));
    }
    let messages = json!([{ "role": "user", "content": "a" }]);
    let with = |name: &str, value: Value| json!({ "messages": messages, name: value });
    let server_tool = json!([{ "type": "web_search_20250305", "name": "web_search" }]);
    assert_eq!(place(&with("tools", server_tool)), "/tools/0/type");
    assert_eq!(
        place(&with("tools", json!([{ "input_schema": {} }]))),
        "/tools/0/name"
    );
    assert_eq!(
        place(&with("tool_choice", json!({ "type": "x" }))),
        "/tool_choice/type"
    );
    assert_eq!(place(&with("system", json!(5))), "/system");
    assert_eq!(
        place(&with("metadata", json!({ "user_id": 5 }))),
        "/metadata/user_id"
    );
    assert_eq!(
        place(&with("mcp_servers", json!([{ "url": "x" }]))),
        "/mcp_servers"
    );
    let long = content(json!([{ "type": "x".repeat(1 << 20) }]));
    assert!(refused(&long).1.len() < 200);
    let twice = br#"{"messages":[],"messages":[]}"#;
    assert!(matches!(to_chat(twice), Err(Refusal::BadRequest { .. })));
}

#[test]
fn a_whole_answer_becomes_a_message() {
    let call = json!({ "id": "t1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } });
    let broken = json!({ "type": "function", "function": { "name": "g", "arguments": "{\"a\":" } });
    let answer = json!({
        "id": "c1", "model": "m", "object": "chat.completion",
        "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "h\u{e9}", "reasoning_content": "hm", "tool_calls": [call, broken],
        } }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": { "cached_tokens": 3 } },
    });
    let mut out = BytesMut::new();
    Translator::new(7)
        .whole(answer.to_string().as_bytes(), &mut out)
        .unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&out).unwrap(),
        json!({
            "id": "msg_c1", "type": "message", "role": "assistant", "model": "m",
            "content": [
                { "type": "text", "text": "h\u{e9}" },
                { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } },
                { "type": "tool_use", "id": "toolu_1", "name": "g", "input": { "arguments": "{\"a\":" } },
            ],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {
                "input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
                "output_tokens": 4,
            },
        })
    );
    let none = Translator::new(1).whole(b"{\"choices\":[]}", &mut out);
    assert_eq!(none, Err(NotTranslatable));
}

#[test]
fn the_reason_of_the_end_is_translated() {
    let reason = |finish: Value, stop: Value| {
        let choice =
            json!({ "finish_reason": finish, "stop_reason": stop, "message": { "content": "a" } });
        let mut out = BytesMut::new();
        let answer = json!({ "choices": [choice] }).to_string();
        Translator::new(1)
            .whole(answer.as_bytes(), &mut out)
            .unwrap();
        let message: Value = serde_json::from_slice(&out).unwrap();
        (
            message["stop_reason"].clone(),
            message["stop_sequence"].clone(),
        )
    };
    let null = Value::Null;
    assert_eq!(
        reason(json!("stop"), null.clone()),
        (json!("end_turn"), null.clone())
    );
    assert_eq!(
        reason(json!("stop"), json!("END")),
        (json!("stop_sequence"), json!("END"))
    );
    assert_eq!(
        reason(json!("stop"), json!(128)),
        (json!("end_turn"), null.clone())
    );
    assert_eq!(
        reason(json!("length"), null.clone()),
        (json!("max_tokens"), null.clone())
    );
    assert_eq!(
        reason(json!("content_filter"), null.clone()),
        (json!("refusal"), null.clone())
    );
    assert_eq!(reason(null.clone(), null.clone()), (null.clone(), null));
}

/// The reason and the sequence that a whole message and the end of a stream have for this choice.
fn stops(choice: &Value) -> [(Value, Value); 2] {
    let part = |name: &str| {
        let mut part = choice.clone();
        part[name] = json!({ "content": "a" });
        json!({ "choices": [part] })
    };
    let reason = |end: &Value| (end["stop_reason"].clone(), end["stop_sequence"].clone());
    let mut out = BytesMut::new();
    let body = part("message").to_string();
    Translator::new(1).whole(body.as_bytes(), &mut out).unwrap();
    let whole = reason(&serde_json::from_slice(&out).unwrap());
    out.clear();
    let stream = format!("data: {}\n\ndata: [DONE]\n\n", part("delta"));
    let streamed = Translator::new(1).events(stream.as_bytes(), 1, &mut out);
    streamed.unwrap();
    let seen = events(&out);
    [whole, reason(&seen[seen.len() - 2]["delta"])]
}

#[test]
fn a_stop_sequence_is_named_by_either_server_that_reports_it() {
    let ended = |more: Value| {
        let mut choice = json!({ "finish_reason": "stop" });
        choice
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        stops(&choice)
    };
    let by = |sequence: &str| (json!("stop_sequence"), json!(sequence));
    for more in [
        json!({ "matched_stop": "END" }),
        json!({ "stop_reason": "END", "matched_stop": 7 }),
        json!({ "stop_reason": 7, "matched_stop": "END" }),
        json!({ "stop_reason": null, "matched_stop": "END" }),
    ] {
        assert_eq!(ended(more.clone()), [by("END"), by("END")], "{more}");
    }
    let turn = (json!("end_turn"), Value::Null);
    for matched in [json!(151_645), Value::Null] {
        let more = json!({ "matched_stop": matched });
        assert_eq!(ended(more), [turn.clone(), turn.clone()]);
    }
    let cut = (json!("max_tokens"), Value::Null);
    let length = stops(&json!({ "finish_reason": "length", "matched_stop": "END" }));
    assert_eq!(length, [cut.clone(), cut]);
}

#[test]
fn an_answer_that_the_server_gave_up_is_not_a_message() {
    for reason in ["abort", "error"] {
        let choice = json!({ "finish_reason": reason, "message": { "content": "a" } });
        let body = json!({ "choices": [choice] }).to_string();
        let mut out = BytesMut::new();
        let whole = Translator::new(1).whole(body.as_bytes(), &mut out);
        assert_eq!(whole, Err(NotTranslatable), "{reason}");
        assert!(out.is_empty());
        let last = chunk(json!({ "content": "b" }), json!(reason));
        let stream = format!("{last}data: [DONE]\n\n");
        let streamed = Translator::new(1).events(stream.as_bytes(), 1, &mut out);
        assert_eq!(streamed, Err(NotTranslatable), "{reason}");
        let seen = events(&out);
        // The text arrives; the end of the message does not.
        let last = seen.last().unwrap();
        assert_eq!(last["delta"], json!({ "type": "text_delta", "text": "b" }));
    }
}

#[test]
fn a_stream_is_a_message_of_blocks_with_usage_at_its_end() {
    let call = |index: usize, id: Value, name: Value, arguments: &str| json!({ "tool_calls": [{ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }] });
    let usage = json!({ "id": "c1", "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 6 } });
    let stream = [
        ": queued\n\n".to_owned(),
        chunk(json!({ "role": "assistant", "content": "" }), Value::Null),
        chunk(json!({ "content": "a" }), Value::Null),
        chunk(json!({ "content": "\u{e9}" }), Value::Null),
        chunk(call(0, json!("t1"), json!("f"), ""), Value::Null),
        chunk(call(0, Value::Null, Value::Null, "{\"x\":"), Value::Null),
        chunk(call(0, Value::Null, Value::Null, "1}"), Value::Null),
        chunk(call(1, json!("t2"), json!("g"), "{}"), Value::Null),
        chunk(json!({}), json!("tool_calls")),
        format!("data: {usage}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ];
    let mut out = BytesMut::new();
    let mut translator = Translator::new(4);
    for events in &stream {
        translator.events(events.as_bytes(), 99, &mut out).unwrap();
    }
    let seen = events(&out);
    let kinds: Vec<_> = seen
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "ping",
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let message = &seen[1]["message"];
    assert_eq!(
        (&message["id"], &message["model"]),
        (&json!("msg_c1"), &json!("m"))
    );
    assert_eq!(
        (&message["content"], &message["usage"]["input_tokens"]),
        (&json!([]), &json!(4))
    );
    assert_eq!(
        seen[5]["delta"],
        json!({ "type": "text_delta", "text": "\u{e9}" })
    );
    let tool = json!({ "type": "tool_use", "id": "t1", "name": "f", "input": {} });
    assert_eq!(
        (&seen[7]["index"], &seen[7]["content_block"]),
        (&json!(1), &tool)
    );
    let json_delta = json!({ "type": "input_json_delta", "partial_json": "{\"x\":" });
    assert_eq!(seen[8]["delta"], json_delta);
    assert_eq!(
        (&seen[11]["index"], &seen[13]["index"]),
        (&json!(2), &json!(2))
    );
    let delta = json!({ "stop_reason": "tool_use", "stop_sequence": null });
    assert_eq!(seen[14]["delta"], delta);
    let usage = &seen[14]["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&json!(5), &json!(6))
    );
}

#[test]
fn usage_that_no_server_reports_is_the_gateways_own_count() {
    let mut out = BytesMut::new();
    let mut translator = Translator::new(4);
    let text = chunk(json!({ "content": "a" }), json!("stop"));
    translator.events(text.as_bytes(), 1, &mut out).unwrap();
    translator.events(b"data: [DONE]\n\n", 3, &mut out).unwrap();
    let seen = events(&out);
    let usage = &seen[seen.len() - 2]["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&json!(4), &json!(3))
    );
}

#[test]
fn the_estimate_of_a_whole_answer_counts_generated_text_alone() {
    let answer = json!({
        "id": "c".repeat(400), "model": "m",
        "choices": [{ "finish_reason": "stop", "message": { "content": "ok" } }],
    });
    let mut out = BytesMut::new();
    let body = answer.to_string();
    Translator::new(4).whole(body.as_bytes(), &mut out).unwrap();
    let message: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(message["usage"]["output_tokens"], 1);
}

#[test]
fn arguments_that_are_an_object_reach_the_client_of_a_stream() {
    let mut out = BytesMut::new();
    let function = json!({ "name": "f", "arguments": { "a": "b" } });
    let call = json!({ "tool_calls": [{ "index": 0, "id": "t", "function": function }] });
    let text = chunk(call, json!("tool_calls"));
    let mut translator = Translator::new(4);
    translator.events(text.as_bytes(), 1, &mut out).unwrap();
    let seen = events(&out);
    let delta = seen
        .iter()
        .find(|event| event["type"] == "content_block_delta");
    assert_eq!(delta.unwrap()["delta"]["partial_json"], r#"{"a":"b"}"#);
}

#[test]
fn an_empty_list_of_tools_is_as_none() {
    let messages = json!([{ "role": "user", "content": "a" }]);
    let plain = json!({ "messages": messages });
    for tools in [json!([]), Value::Null] {
        let with = |choice: Value| {
            chat(&json!({ "messages": messages, "tools": tools, "tool_choice": choice }))
        };
        assert_eq!(with(Value::Null), plain);
        for kind in ["auto", "none"] {
            let choice = json!({ "type": kind, "disable_parallel_tool_use": true });
            assert_eq!(with(choice), plain, "{kind}");
        }
        // A call that cannot be made is the server's to refuse.
        assert_eq!(with(json!({ "type": "any" }))["tool_choice"], "required");
    }
}

#[test]
fn a_member_is_not_written_beside_its_name_in_a_chat() {
    let format = json!({ "type": "json_schema", "schema": {} });
    let parallel = json!({ "type": "auto", "disable_parallel_tool_use": true });
    for (twin, name, value) in [
        ("stop", "stop_sequences", json!(["a"])),
        ("user", "metadata", json!({ "user_id": "u" })),
        ("response_format", "output_format", format.clone()),
        (
            "response_format",
            "output_config",
            json!({ "format": format }),
        ),
        ("parallel_tool_calls", "tool_choice", parallel),
    ] {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "a" }], "tools": [{ "name": "f" }],
        });
        body[twin] = json!("x");
        assert_eq!(chat(&body)[twin], "x");
        body[name] = value;
        let (pointer, message) = refused(&body);
        assert_eq!(pointer, format!("/{twin}"));
        assert!(message.contains(name), "{message}");
        body[twin] = Value::Null;
        assert!(chat(&body).get(twin).is_some());
    }
}

#[test]
fn the_billing_line_of_a_client_is_not_part_of_the_prompt() {
    let system = |system: Value| {
        let messages = json!([{ "role": "user", "content": "a" }]);
        let translated = chat(&json!({ "messages": messages, "system": system }));
        let first = &translated["messages"][0];
        (first["role"] == "system").then(|| first["content"].as_str().unwrap().to_owned())
    };
    let block = |text: &str| json!({ "type": "text", "text": text });
    let line = "x-anthropic-billing-header: cc_version=2.1; cch=0\\n\"a\";";
    let prompt = || Some("be kind".to_owned());
    assert_eq!(system(json!([block(line), block("be kind")])), prompt());
    assert_eq!(
        system(json!([block(&format!("{line}\nbe kind"))])),
        prompt()
    );
    assert_eq!(system(json!(format!("{line}\nbe kind"))), prompt());
    assert_eq!(system(json!([block(line)])), None);
    assert_eq!(system(json!(line)), None);
    let quoted = format!("be kind\n{line}");
    assert_eq!(system(json!(quoted)), Some(quoted.clone()));
    assert_eq!(system(json!([block(&quoted)])), Some(quoted));
}

#[test]
fn the_input_of_a_tool_is_nested_no_deeper_than_a_body() {
    let deep = "[".repeat(1_000) + &"]".repeat(1_000);
    let call = format!(r#"{{"type":"tool_use","id":"t","name":"f","input":{{"a":{deep}}}}}"#);
    let body = format!(r#"{{"messages":[{{"role":"assistant","content":[{call}]}}]}}"#);
    let request = RequestBody {
        operation: Operation::Chat,
        path_model: None,
        task: None,
        content_type: None,
        path: "",
        json_bytes: None,
        body: body.into(),
        length: None,
    };
    let refused = Anthropic.parse(request);
    assert!(matches!(
        refused,
        Err(Refusal::Rejected { status: 413, .. })
    ));
}

#[test]
fn an_event_of_another_shape_is_not_passed_on() {
    let mut out = BytesMut::new();
    let translated = Translator::new(1).events(b"data: [1]\n\n", 0, &mut out);
    assert_eq!(translated, Err(NotTranslatable));
}
