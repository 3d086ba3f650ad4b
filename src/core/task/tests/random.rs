//! The hooks against whatever comes.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::task::{EventEdit, METRIC_MAX, STATE_MAX_BYTES, StreamEvent};

/// JSON made of the words that the tasks look for, so that it often is nearly right.
fn nearly() -> impl Strategy<Value = Value> {
    let words: Vec<&str> = vec![
        "response",
        "text",
        "prompt",
        "messages",
        "image",
        "images",
        "audio",
        "data",
        "shape",
        "label",
        "labels",
        "score",
        "scores",
        "box",
        "boxes",
        "xmin",
        "x",
        "y",
        "width",
        "height",
        "words",
        "word",
        "start",
        "end",
        "segments",
        "chunks",
        "timestamp",
        "choices",
        "delta",
        "message",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "index",
        "finish_reason",
        "usage",
        "prompt_tokens",
        "output_tokens",
        "token",
        "special",
        "details",
        "generated_tokens",
        "embedding",
        "embeddings",
        "result",
        "success",
        "error",
        "body",
        "num_steps",
        "steps",
        "target_lang",
        "input_text",
        "translated_text",
        "summary",
        "vtt",
        "word_count",
        "transcription_info",
        "duration",
        "AAEC",
        "data:;base64,AA",
        "",
        "a b",
        "\n",
        "-->",
        "\u{1F600}\"",
    ];
    let word = proptest::sample::select(words);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..300u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((word.clone(), inner), 0..6).prop_map(|all| {
                Value::Object(
                    all.into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => nearly().prop_map(|value| value.to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..60),
        1 => (nearly(), any::<proptest::sample::Index>()).prop_map(|(value, cut)| {
            let mut bytes = value.to_string().into_bytes();
            bytes.truncate(cut.index(bytes.len() + 1));
            bytes
        }),
    ]
}

fn task() -> impl Strategy<Value = Task> {
    proptest::sample::select(Task::ALL.to_vec())
}

fn assert_metrics(metrics: &[(String, f64)]) {
    assert!(metrics.len() <= 64);
    for (name, value) in metrics {
        assert!(
            name.len() <= 64 && *value > 0.0 && *value <= METRIC_MAX,
            "{name} {value}"
        );
    }
}

fn assert_json(edit: &BodyEdit) {
    if let BodyEdit::Replace(body) = edit {
        serde_json::from_slice::<Value>(body).expect("an edit is JSON");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_input_makes_prepare_panic_or_write_what_is_not_json(
        task in task(), body in bytes(), kind in proptest::sample::select(vec!["application/json", "image/png", "", "x"]),
    ) {
        match BuiltinTask::of(task).prepare(&request(kind, &body)) {
            Ok(prepared) => {
                assert_json(&prepared.edit);
                assert_metrics(&prepared.metrics);
                prop_assert!(prepared.state.len() <= STATE_MAX_BYTES);
                if let (BodyEdit::Replace(payload), "application/json") = (&prepared.edit, kind) {
                    // What is normal already stays as it is.
                    let again = BuiltinTask::of(task).prepare(&request(kind, payload)).unwrap();
                    prop_assert_eq!(&again.edit, &prepared.edit);
                }
            }
            Err(TaskError::Rejected(rejection)) => prop_assert!((400..500).contains(&rejection.status)),
            Err(TaskError::Broken(why)) => prop_assert!(false, "{}", why),
        }
    }

    #[test]
    fn no_answer_makes_finish_panic_or_write_what_is_not_json(
        task in task(), body in bytes(), kind in proptest::sample::select(vec!["application/json", "text/plain", "image/png"]),
    ) {
        let response = TaskResponse { content_type: kind.into(), ..response(&body) };
        if let Ok(finished) = BuiltinTask::of(task).finish(&response) {
            assert_json(&finished.edit);
            assert_metrics(&finished.metrics);
            if let (BodyEdit::Replace(result), "application/json") = (&finished.edit, kind) {
                // A documented result comes to itself.
                let again = BuiltinTask::of(task).finish(&super::response(result)).unwrap();
                prop_assert_eq!(json(&again.edit), json(&finished.edit));
            }
        }
    }

    #[test]
    fn no_events_make_a_stream_panic_or_lose_its_bounds(
        task in task(), events in proptest::collection::vec(bytes(), 0..8), state in proptest::collection::vec(any::<u8>(), 0..20),
        cut in any::<bool>(),
    ) {
        let builtin = BuiltinTask::of(task);
        let _ = builtin.push(&state, &[]);
        let events: Vec<StreamEvent> = events.into_iter().map(|data| StreamEvent { name: None, data }).collect();
        let mut state = Vec::new();
        for pair in events.chunks(2) {
            let Ok(step) = builtin.push(&state, pair) else { return Ok(()) };
            prop_assert_eq!(step.events.len(), pair.len());
            prop_assert!(step.state.len() <= STATE_MAX_BYTES);
            assert_metrics(&step.metrics);
            for out in &step.events {
                if let EventEdit::Replace(event) = out {
                    prop_assert!(!event.data.contains(&b'\n'));
                    prop_assert!(serde_json::from_slice::<Value>(&event.data).is_ok());
                }
            }
            state = step.state;
        }
        let closed = builtin.close(&state, cut).unwrap();
        prop_assert!(closed.events.len() <= 2);
    }
}
