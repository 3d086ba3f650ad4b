//! Answers of plain HTTP servers, and what a model's task makes of any response in its dialect.

use infergate_core::AccountId;
use infergate_core::model::ModelSpec;
use serde_json::{Value, json};

use super::*;
use crate::plugin::{Caller, PluginSnapshot, TaskInput};

fn spec(task: Task, more: Value) -> ModelSpec {
    let mut spec = json!({ "id": "m", "task": task.slug(), "backend": "http" });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

/// A task's session after its input, and the response it is for.
fn with_task(answer: ResponseTransformer, task: Task, input: Value) -> ResponseTransformer {
    let spec = spec(task, json!({}));
    let account = AccountId::from("a");
    let mut session = PluginSnapshot::default().task(&spec).begin(Caller {
        account: &account,
        request_id: "r",
    });
    let body = Bytes::from(input.to_string());
    session
        .prepare(TaskInput {
            model: "m",
            content_type: "application/json",
            body: &body,
            is_read: false,
            is_checked: false,
            attributes: Vec::new(),
        })
        .unwrap();
    answer.for_model(&spec, Some(session))
}

fn posted(task: Task) -> ResponseTransformer {
    let call = run_call(r#"{"prompt":"a","stream":true}"#);
    backend("http").unwrap().decoder(&call, task)
}

fn begin(answer: &mut ResponseTransformer, kind: Option<&str>) {
    answer.begin(200, |name| {
        kind.filter(|_| name == "content-type").map(str::as_bytes)
    });
}

fn result(got: &Got) -> Value {
    assert_eq!(got.result, Ok(()), "{}", got.text);
    serde_json::from_str::<Value>(&got.text).unwrap()["result"].clone()
}

#[test]
fn json_is_collected_into_the_envelope_with_its_usage() {
    for kind in [
        "application/json",
        "application/vnd.x+json; charset=utf-8",
        "APPLICATION/JSON",
    ] {
        let body = br#" {"a":[1], "usage":{"prompt_tokens":3}} "#;
        let got = relay(posted(Task::Translation), Some(kind), body.chunks(7));
        assert_eq!(
            result(&got),
            json!({ "a": [1], "usage": { "prompt_tokens": 3 } }),
            "{kind}"
        );
        assert_eq!(got.usage.unwrap().input_tokens, 3);
    }
    for body in ["", "{", "a", "{} {}"] {
        let got = relay(posted(Task::Translation), OBJECT, [body.as_bytes()]);
        assert_eq!(
            (got.result, &*got.text),
            (Err(ResponseError::Malformed), ""),
            "{body}"
        );
    }
}

#[test]
fn what_is_neither_json_nor_events_passes_untouched() {
    for kind in [Some("image/png"), Some("text/html"), None] {
        let mut answer = posted(Task::TextToImage);
        begin(&mut answer, kind);
        assert!(answer.passes_length() && !answer.is_stream() && !answer.is_collected());
        let content_type = answer.content_type(kind.map(str::as_bytes));
        assert_eq!(
            content_type,
            kind.unwrap_or("application/octet-stream").as_bytes()
        );
        let got = relay(
            posted(Task::TextToImage),
            kind,
            [&b"\0"[..], b"{\"usage\":", b"data: "],
        );
        assert_eq!(got.result, Ok(()));
        assert_eq!(got.usage, None);
    }
    for kind in [OBJECT, EVENTS] {
        let mut answer = posted(Task::DumbPipe);
        begin(&mut answer, kind);
        assert!(answer.passes_length() && !answer.is_stream());
        assert_eq!(
            answer.content_type(kind.map(str::as_bytes)),
            kind.unwrap().as_bytes()
        );
    }
}

#[test]
fn a_stream_ends_with_its_message_and_gets_its_end_mark() {
    for (sent, expected) in [
        (
            "data: {\"response\":\"a\"}\n\n",
            "data: {\"response\":\"a\"}\n\ndata: [DONE]\n\n",
        ),
        (
            "data: {\"response\":\"a\"}\n\ndata: [DONE]\n\n",
            "data: {\"response\":\"a\"}\n\ndata: [DONE]\n\n",
        ),
        (
            "data: {\"response\":\"a\"}",
            "data: {\"response\":\"a\"}\n\ndata: [DONE]\n\n",
        ),
        ("", "data: [DONE]\n\n"),
    ] {
        for size in [1, 5, 100] {
            let got = relay(
                posted(Task::TextGeneration),
                EVENTS,
                sent.as_bytes().chunks(size),
            );
            assert_eq!(
                (got.result, &*got.text),
                (Ok(()), expected),
                "{sent:?} by {size}"
            );
            assert!(got.done);
        }
    }
    let failed = "data: {\"response\":\"a\"}\n\ndata: {\"error\":\"x\"}\n\n";
    let got = relay(posted(Task::TextGeneration), EVENTS, [failed.as_bytes()]);
    assert_eq!(got.result, Err(ResponseError::BackendFailed));
}

#[test]
fn the_task_shapes_a_result_whatever_server_it_came_from() {
    let image = json!({ "image": [1] });
    let body = [&br#"[{"generated_text":"a cat"}]"#[..]];
    let answer = with_task(posted(Task::ImageToText), Task::ImageToText, image.clone());
    assert_eq!(
        result(&relay(answer, OBJECT, body)),
        json!({ "description": "a cat" })
    );
    let native = answer_of("openai", &run_call(r#"{"prompt":"a"}"#));
    let chat = [&br#"{"choices":[{"message":{"content":"a dog"}}]}"#[..]];
    let answer = with_task(native, Task::ImageToText, image.clone());
    assert_eq!(
        result(&relay(answer, OBJECT, chat)),
        json!({ "description": "a dog" })
    );
    // What is none of the task's is not the server's fault alone, and is not passed on.
    let answer = with_task(posted(Task::ImageToText), Task::ImageToText, image);
    let got = relay(answer, OBJECT, [&b"{\"x\":1}"[..]]);
    let refused = ResponseError::Refused(Box::new(Refusal::InvalidResponse));
    assert_eq!((got.result, &*got.text), (Err(refused), ""));
}

#[test]
fn an_openai_answer_is_not_the_tasks() {
    let sent = r#"{"choices":[{"message":{"content":"a"}}]}"#;
    let native = answer_of("openai", &chat(""));
    let answer = with_task(native, Task::ImageToText, json!({ "image": [1] }));
    let got = relay(answer, OBJECT, [sent.as_bytes()]);
    assert_eq!((got.result, &*got.text), (Ok(()), sent));
}

#[test]
fn events_are_shaped_and_comments_and_the_end_mark_keep_their_place() {
    let sent = ": one\n\ndata: {\"token\":{\"text\":\"a\"}}\n\n: two\n\nevent: x\ndata: {\"text\":\"b\"}\n\ndata: [DONE]\n\n";
    let expected = ": one\n\ndata: {\"response\":\"a\"}\n\n: two\n\ndata: {\"response\":\"b\"}\n\ndata: [DONE]\n\n";
    for size in [1, 9, 1000] {
        let input = json!({ "prompt": "a" });
        let answer = with_task(posted(Task::TextGeneration), Task::TextGeneration, input);
        let got = relay(answer, EVENTS, sent.as_bytes().chunks(size));
        assert_eq!((got.result, &*got.text), (Ok(()), expected), "by {size}");
    }
}

#[test]
fn tool_calls_that_the_task_has_kept_come_before_the_end_mark() {
    let call = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}}]}"#;
    let sent = format!("data: {call}\n\ndata: [DONE]\n\n");
    let input = json!({ "prompt": "a" });
    let answer = with_task(posted(Task::TextGeneration), Task::TextGeneration, input);
    let got = relay(answer, EVENTS, [sent.as_bytes()]);
    let events: Vec<&str> = got.text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].contains(r#""name":"f""#), "{events:?}");
    assert_eq!(events[1], "data: [DONE]");
}

#[test]
fn what_is_generated_on_a_stream_counts_by_its_text_and_not_by_its_events() {
    let chunk = |delta: &str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
    let stream = [
        chunk(r#"{"role":"assistant","content":""}"#),
        chunk(r#"{"reasoning_content":"hm hm "}"#),
        chunk(r#"{"content":"one two three four five"}"#),
        chunk(r#"{"content": " b \"content\":\"\" "}"#),
        chunk(r#"{"content":"\n字\u0061 é\\"}"#),
        chunk(r#"{"content":""}"#),
        chunk("{}"),
        chunk(r#"{"tool_calls":[{"index":0,"function":{"name":" f","arguments":"{\"x\":"}}]}"#),
        chunk(r#"{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#),
        chunk(r#"{"content":" c"}"#),
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":5}}\n\n".into(),
        chunk(r#"{"content":" and more"}"#),
        ": comment\n\n".into(),
        "data: [DONE]\n\n".into(),
    ]
    .concat();
    for trust in ["trust", "compare"] {
        let spec = spec(Task::TextGeneration, json!({ "metrics_trust": trust }));
        for (call, size) in [
            (chat(STREAM), 3),
            (chat(STREAM), 4096),
            (run_call(r#"{"prompt":"a","stream":true}"#), 50),
        ] {
            let mut answer = answer_of("openai", &call).for_model(&spec, None);
            begin(&mut answer, EVENTS);
            let mut out = BytesMut::new();
            for piece in stream.as_bytes().chunks(size) {
                let _ = answer.push(piece, &mut out).unwrap();
            }
            let mut text = TextCount::default();
            text.push("hm hm one two three four five b \"content\":\"\" \n字a é\\ f{\"x\":1} c");
            let reported = text.tokens();
            text.push(" and more");
            let expected = (text.tokens(), text.tokens() - reported);
            let counted = (answer.generated_tokens(), answer.unreported_tokens());
            assert_eq!(counted, expected, "{trust} by {size}");
            assert_eq!(answer.usage().unwrap().output_tokens, 5);
            assert_eq!(answer.output().is_some(), trust == "compare");
        }
    }
}

#[test]
fn output_is_kept_where_the_servers_count_is_not_believed() {
    let estimated = spec(Task::TextGeneration, json!({ "metrics_trust": "estimate" }));
    let output = |call: &Call, kind, sent: &str| {
        let mut answer = answer_of("openai", call).for_model(&estimated, None);
        begin(&mut answer, kind);
        let mut out = BytesMut::new();
        for piece in sent.as_bytes().chunks(11) {
            let _ = answer.push(piece, &mut out).unwrap();
        }
        answer.finish(&mut out).unwrap();
        String::from_utf8(answer.output().unwrap().into_owned()).unwrap()
    };
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"one t\"}}]}\n\n\
                  data: {\"choices\":[{\"delta\":{\"content\":\"wo\"}}]}\n\ndata: [DONE]\n\n";
    let texts = r#"["one t","wo"]"#;
    assert_eq!(output(&chat(STREAM), EVENTS, stream), texts);
    assert_eq!(
        output(&run_call(r#"{"prompt":"a","stream":true}"#), EVENTS, stream),
        texts
    );
    let whole = r#"{"choices":[{"message":{"content":"one two"}}]}"#;
    assert_eq!(output(&chat(""), OBJECT, whole), whole);
    let result = r#"{"response":"one two"}"#;
    assert_eq!(
        output(&run_call(r#"{"prompt":"a"}"#), OBJECT, whole),
        result
    );
    let believed =
        answer_of("openai", &chat(STREAM)).for_model(&spec(Task::TextGeneration, json!({})), None);
    assert!(believed.output().is_none());
}

#[test]
fn an_unfinished_whole_answer_is_not_counted_a_finished_one_is() {
    let whole = r#"{"choices":[{"message":{"content":"one two"}}]}"#;
    for call in [chat(""), run_call(r#"{"prompt":"a"}"#)] {
        let mut answer = answer_of("openai", &call);
        begin(&mut answer, OBJECT);
        let mut out = BytesMut::new();
        let _ = answer.push(whole.as_bytes(), &mut out).unwrap();
        assert!(answer.output().is_none());
        answer.finish(&mut out).unwrap();
        assert!(answer.output().is_some_and(|kept| !kept.is_empty()));
    }
}

#[test]
fn a_byte_order_mark_hides_no_usage() {
    let whole = format!("\u{feff}{COMPLETION}");
    let call = chat("");
    let got = relay_cut_anywhere(|| answer_of("openai", &call), OBJECT, &whole);
    assert_eq!((&*got.text, got.usage), (&*whole, Some(tokens(7, 2))));
    let call = run_call(r#"{"prompt":"a"}"#);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), OBJECT, &whole);
    assert_eq!(got.usage, Some(tokens(7, 2)));
}

#[test]
fn everything_a_delta_can_carry_counts_and_reasoning_reaches_a_run() {
    let delta = |delta: Value| {
        let event = json!({ "choices": [{ "index": 0, "delta": delta }] });
        format!("data: {event}\n\n")
    };
    let function = json!({ "name": "f", "arguments": "x y z" });
    for (what, expected) in [
        (json!({ "content": "a b c d e" }), 6),
        (json!({ "reasoning_content": "a b c d e" }), 6),
        (json!({ "reasoning": "a b c d e" }), 6),
        (json!({ "refusal": "a b c d e" }), 6),
        (
            json!({ "tool_calls": [{ "index": 0, "function": function }] }),
            4,
        ),
        (json!({ "function_call": function }), 4),
    ] {
        for call in [chat(STREAM), run_call(r#"{"prompt":"a","stream":true}"#)] {
            let mut answer = answer_of("openai", &call);
            begin(&mut answer, EVENTS);
            let mut out = BytesMut::new();
            let pushed = answer.push(delta(what.clone()).as_bytes(), &mut out);
            assert!(pushed.is_ok());
            let counted = answer.generated_tokens();
            assert!(counted.abs_diff(expected) <= 1, "{what}: {counted}");
            assert!(answer.has_token());
        }
    }
    let mut answer = answer_of("openai", &chat(STREAM));
    begin(&mut answer, EVENTS);
    let sound = json!({ "audio": { "data": "A".repeat(64_000), "transcript": "a b c" } });
    let pushed = answer.push(delta(sound).as_bytes(), &mut BytesMut::new());
    assert!(pushed.is_ok());
    assert_eq!(answer.generated_tokens(), 20 + 4);

    let thinking = delta(json!({ "reasoning_content": "hm" }));
    let call = run_call(r#"{"prompt":"a","stream":true}"#);
    let got = relay(
        answer_of("openai", &call),
        EVENTS,
        [thinking.as_bytes(), b"data: [DONE]\n\n"],
    );
    assert!(
        got.text
            .starts_with("data: {\"response\":\"\",\"reasoning_content\":\"hm\"}\n\n"),
        "{}",
        got.text
    );
}

#[test]
fn reports_on_a_stream_add_up_as_the_model_is_configured() {
    let report = |tokens: u32| {
        format!(
            "data: {{\"response\":\"a\",\"usage\":{{\"prompt_tokens\":2,\"completion_tokens\":{tokens}}}}}\n\n"
        )
    };
    let stream = [report(1), report(1), report(2)].concat();
    for (modes, expected) in [
        (json!({}), 2),
        (json!({ "output_tokens": "incremental" }), 4),
    ] {
        let spec = spec(Task::TextGeneration, json!({ "metrics": modes }));
        let answer = posted(Task::TextGeneration).for_model(&spec, None);
        let got = relay(answer, EVENTS, stream.as_bytes().chunks(30));
        let usage = got.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens), (2, expected));
    }
}
