//! Streams of text.

use serde_json::{Value, json};

use super::*;
use crate::task::{EventEdit, StreamEvent, StreamResult};

fn event(data: impl ToString) -> StreamEvent {
    StreamEvent {
        name: None,
        data: data.to_string().into_bytes(),
    }
}

fn text(out: &EventEdit) -> String {
    match out {
        EventEdit::Replace(event) => String::from_utf8(event.data.clone()).unwrap(),
        EventEdit::Keep => "keep".into(),
        EventEdit::Drop => "drop".into(),
    }
}

fn push(state: &[u8], events: &[StreamEvent]) -> StreamResult {
    let step = BuiltinTask::of(Task::TextGeneration)
        .push(state, events)
        .unwrap();
    assert_eq!(step.events.len(), events.len());
    step
}

#[test]
fn every_usual_event_becomes_a_response() {
    let events = [
        (
            json!({"token": {"id": 1, "text": " hi", "special": false}, "generated_text": null}),
            r#"{"response":" hi"}"#,
        ),
        (
            json!({"token": {"id": 2, "text": "</s>", "special": true}, "generated_text": null}),
            "drop",
        ),
        (json!({"response": "hi"}), r#"{"response":"hi"}"#),
        (json!({"text": "hi"}), r#"{"response":"hi"}"#),
        (
            json!({"choices": [{"index": 0, "delta": {"content": "hi"}}], "usage": null}),
            r#"{"response":"hi"}"#,
        ),
        (
            json!({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}),
            "drop",
        ),
        (
            json!({"choices": [{"index": 0, "text": "hi"}]}),
            r#"{"response":"hi"}"#,
        ),
        (json!("hi"), r#"{"response":"hi"}"#),
        (json!({"error": {"message": "lost"}}), "keep"),
        (json!({"progress": 5}), "keep"),
        (json!(null), "keep"),
    ];
    for (data, expected) in events {
        let step = push(b"", &[event(&data)]);
        assert_eq!(text(&step.events[0]), expected, "{data}");
        assert_eq!(step.state, b"");
    }
    assert_eq!(
        push(b"", &[event("[DONE]"), event("ping")]).events,
        [EventEdit::Keep, EventEdit::Keep]
    );
}

#[test]
fn usage_is_shown_and_counted() {
    let step = push(
        b"",
        &[event(
            json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
        )],
    );
    assert_eq!(
        text(&step.events[0]),
        r#"{"response":"","usage":{"prompt_tokens":3,"completion_tokens":4}}"#
    );
    assert_eq!(
        step.metrics,
        [
            ("input_tokens".to_owned(), 3.0),
            ("output_tokens".to_owned(), 4.0)
        ]
    );
    let last = json!({"token": {"text": "!", "special": false}, "generated_text": "hi!", "details": {"generated_tokens": 2, "input_length": 1}});
    let step = push(b"", &[event(last)]);
    assert_eq!(metric(&step.metrics, "output_tokens"), Some(2.0));
}

fn call(index: u32, id: Value, name: &str, arguments: &str) -> StreamEvent {
    event(
        json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}}]}),
    )
}

#[test]
fn tool_calls_are_put_together_across_calls_and_shown_when_their_choice_is_over() {
    let first = push(
        b"",
        &[
            call(0, json!("a"), "f", "{\"x\""),
            call(0, json!(null), "", ":1}"),
        ],
    );
    assert_eq!(first.events, [EventEdit::Drop, EventEdit::Drop]);
    assert!(!first.state.is_empty());
    let over =
        event(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
    let last = push(&first.state, &[over, event("[DONE]")]);
    assert_eq!(
        text(&last.events[0]),
        r#"{"response":"","tool_calls":[{"id":"a","name":"f","arguments":{"x":1}}]}"#
    );
    assert_eq!(last.events[1], EventEdit::Keep);
    assert_eq!(last.state, b"");
}

#[test]
fn tool_calls_without_an_end_of_choice_come_before_the_end_mark_or_not_at_all() {
    let builtin = BuiltinTask::of(Task::TextGeneration);
    let pending = push(b"", &[call(0, json!("a"), "f", "{}")]);
    let done = push(&pending.state, &[event("[DONE]")]);
    assert!(text(&done.events[0]).contains("tool_calls"));
    let closed = builtin.close(&done.state, false).unwrap();
    assert_eq!(
        closed.events.iter().map(text).collect::<Vec<_>>(),
        ["[DONE]"]
    );
    let closed = builtin.close(&pending.state, false).unwrap();
    assert!(text(&closed.events[0]).contains("tool_calls"));
    assert_eq!(
        builtin.close(&pending.state, true).unwrap(),
        StreamResult::default()
    );
    assert_eq!(builtin.close(b"", false).unwrap(), StreamResult::default());
}

#[test]
fn the_state_has_a_bound_and_a_foreign_one_is_an_error() {
    let builtin = BuiltinTask::of(Task::TextGeneration);
    let long = call(0, json!("a"), "f", &"x".repeat(5000));
    assert!(builtin.push(b"", &[long]).is_err());
    assert!(builtin.push(b"?", &[]).is_err());
    assert!(
        builtin
            .push(b"", &[call(4_000_000, json!("a"), "f", "")])
            .is_err()
    );
}

#[test]
fn tasks_that_do_not_stream_keep_every_event() {
    let step = BuiltinTask::of(Task::Translation)
        .push(b"x", &[event("{}"), event("y")])
        .unwrap();
    assert_eq!(step.events, [EventEdit::Keep, EventEdit::Keep]);
}
