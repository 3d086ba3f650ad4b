//! Answers of plain HTTP servers, each in the ways servers say it.

use serde_json::{Value, json};

use super::*;

/// Task, a server's response, the documented result.
pub(super) fn variants() -> Vec<(Task, Value, Value)> {
    let mut all = Vec::new();
    let mut same = |task: Task, answers: &[Value], result: Value| {
        for answer in answers {
            all.push((task, answer.clone(), result.clone()));
        }
    };
    for task in [Task::TextGeneration, Task::ImageTextToText] {
        same(
            task,
            &[
                json!({"response": "hi"}),
                json!({"text": "hi"}),
                json!({"generated_text": "hi"}),
                json!([{"generated_text": "hi"}]),
                json!({"output": ["h", "i"]}),
                json!("hi"),
                json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}),
                json!({"choices": [{"text": "hi"}]}),
                json!({"result": {"response": "hi"}, "success": true, "errors": [], "messages": []}),
            ],
            json!({"response": "hi"}),
        );
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7});
        let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}});
        same(
            task,
            &[
                json!({"choices": [{"message": {"content": null, "tool_calls": [call]}}], "usage": usage}),
                json!({"response": null, "tool_calls": [{"id": "a", "name": "f", "arguments": {"x": 1}}], "usage": usage}),
            ],
            json!({"response": null, "tool_calls": [{"id": "a", "name": "f", "arguments": {"x": 1}}], "usage": usage}),
        );
        same(
            task,
            &[json!({"response": {"a": [1]}})],
            json!({"response": {"a": [1]}}),
        );
    }
    let labels = json!([{"label": "a", "score": 0.9}, {"label": "b", "score": 0.1}]);
    for task in [Task::TextClassification, Task::ImageClassification] {
        same(
            task,
            &[
                labels.clone(),
                json!([labels.clone()]),
                json!({"labels": ["a", "b"], "scores": [0.9, 0.1]}),
                json!({"scores": labels.clone()}),
                json!({"predictions": [{"class": "a", "confidence": 0.9}, {"class": "b", "confidence": 0.1}]}),
            ],
            labels.clone(),
        );
        same(
            task,
            &[json!({"label": 3, "score": 1})],
            json!([{"label": "3", "score": 1}]),
        );
        same(task, &[json!([])], json!([]));
    }
    same(
        Task::ObjectDetection,
        &[
            json!([{"label": "cat", "score": 0.5, "box": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4.5}}]),
            json!({"boxes": [{"label": "cat", "score": 0.5, "box": [1, 2, 3, 4.5]}]}),
            json!({"detections": [{"class_name": "cat", "confidence": 0.5, "bbox": {"x": 1, "y": 2, "width": 2, "height": 2.5}}]}),
            json!({"labels": ["cat"], "scores": [0.5], "boxes": [[1, 2, 3, 4.5]]}),
        ],
        json!([{"label": "cat", "score": 0.5, "box": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4.5}}]),
    );
    for task in [Task::TextEmbeddings, Task::MultimodalEmbeddings] {
        same(
            task,
            &[
                json!({"shape": [2, 2], "data": [[0.5, 1], [2, 3]]}),
                json!({"embeddings": [[0.5, 1], [2, 3]]}),
                json!([[0.5, 1], [2, 3]]),
                json!({"data": [{"index": 1, "embedding": [2, 3]}, {"index": 0, "embedding": [0.5, 1]}], "usage": {"prompt_tokens": 2}}),
            ],
            json!({"shape": [2, 2], "data": [[0.5, 1], [2, 3]]}),
        );
        same(
            task,
            &[json!([0.5, 1]), json!({"embedding": [0.5, 1]})],
            json!({"shape": [1, 2], "data": [[0.5, 1]]}),
        );
    }
    same(
        Task::Translation,
        &[
            json!({"translated_text": "bonjour"}),
            json!({"translation": "bonjour"}),
            json!({"translation": ["bonjour"]}),
            json!([{"translation_text": "bonjour"}]),
            json!("bonjour"),
        ],
        json!({"translated_text": "bonjour"}),
    );
    same(
        Task::Summarization,
        &[
            json!({"summary": "s"}),
            json!([{"summary_text": "s"}]),
            json!({"text": "s"}),
        ],
        json!({"summary": "s"}),
    );
    same(
        Task::ImageToText,
        &[
            json!({"description": "a cat"}),
            json!({"caption": "a cat"}),
            json!([{"generated_text": "a cat"}]),
        ],
        json!({"description": "a cat"}),
    );
    same(
        Task::TextToImage,
        &[
            json!({"image": "AAEC"}),
            json!({"images": ["AAEC"]}),
            json!({"data": [{"b64_json": "AAEC"}]}),
            json!({"output": "data:image/png;base64,AAEC"}),
        ],
        json!({"image": "AAEC"}),
    );
    same(
        Task::TextToImage,
        &[json!({"images": ["AAEC", "AAAA"]})],
        json!({"image": "AAEC", "images": ["AAEC", "AAAA"]}),
    );
    same(
        Task::TextToSpeech,
        &[
            json!({"audio": "AAEC"}),
            json!({"audio": {"body": "AAEC"}, "duration": 2}),
        ],
        json!({"audio": "AAEC"}),
    );
    same(
        Task::AutomaticSpeechRecognition,
        &[json!({"text": "a b"}), json!({"transcription": "a b"})],
        json!({"text": "a b", "word_count": 2}),
    );
    let words =
        json!([{"word": "a", "start": 0, "end": 0.5}, {"word": "b", "start": 0.5, "end": 1.25}]);
    same(
        Task::AutomaticSpeechRecognition,
        &[
            json!({"text": "a b", "words": words.clone()}),
            json!({"text": "a b", "chunks": [{"text": " a", "timestamp": [0, 0.5]}, {"text": " b", "timestamp": [0.5, 1.25]}]}),
        ],
        json!({"text": "a b", "word_count": 2, "words": words, "vtt": "WEBVTT\n\n00:00.000 --> 00:01.250\na b\n"}),
    );
    same(
        Task::AutomaticSpeechRecognition,
        &[json!({"text": "a b", "word_count": 2, "vtt": "WEBVTT\n"})],
        json!({"text": "a b", "word_count": 2, "vtt": "WEBVTT\n"}),
    );
    all
}

fn finish(task: Task, answer: &Value) -> Result<super::super::FinishResult, TaskError> {
    BuiltinTask::of(task).finish(&response(answer.to_string().as_bytes()))
}

#[test]
fn the_common_ways_to_say_it_come_to_the_documented_result() {
    for (task, answer, result) in variants() {
        let finished = finish(task, &answer).unwrap_or_else(|e| panic!("{task:?} {answer}: {e:?}"));
        let found = json(&finished.edit);
        // 1 and 1.0 are one number.
        assert_eq!(as_floats(&found), as_floats(&result), "{task:?} {answer}");
    }
}

fn as_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(all) => all.iter().map(as_floats).collect(),
        Value::Object(all) => {
            Value::Object(all.iter().map(|(k, v)| (k.clone(), as_floats(v))).collect())
        }
        other => other.clone(),
    }
}

#[test]
fn what_an_answer_tells_is_counted() {
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 4});
    let cases = [
        (
            Task::TextGeneration,
            json!({"response": "hé", "usage": usage}),
            vec![
                ("output_characters", 2.0),
                ("input_tokens", 3.0),
                ("output_tokens", 4.0),
            ],
        ),
        (
            Task::TextGeneration,
            json!({"generated_text": "x", "details": {"generated_tokens": 9}}),
            vec![("output_tokens", 9.0)],
        ),
        (
            Task::TextToImage,
            json!({"images": ["AAEC", "AAAA"]}),
            vec![("output_images", 2.0)],
        ),
        (
            Task::TextToSpeech,
            json!({"audio": "AAEC", "duration_seconds": 1.5}),
            vec![("audio_seconds", 1.5)],
        ),
        (
            Task::AutomaticSpeechRecognition,
            json!({"text": "a", "transcription_info": {"duration": 61}}),
            vec![("audio_seconds", 61.0)],
        ),
        (
            Task::Translation,
            json!({"translated_text": "abc"}),
            vec![("output_characters", 3.0)],
        ),
    ];
    for (task, answer, expected) in cases {
        let finished = finish(task, &answer).unwrap();
        for (name, value) in expected {
            assert_eq!(
                metric(&finished.metrics, name),
                Some(value),
                "{task:?} {name}"
            );
        }
    }
}

#[test]
fn an_answer_in_no_known_shape_is_the_servers_fault() {
    let broken = [
        (Task::TextGeneration, json!({"error": "out of memory"})),
        (Task::TextGeneration, json!({"foo": 1})),
        (Task::TextGeneration, json!([])),
        (Task::TextGeneration, json!(7)),
        (Task::TextClassification, json!([{"label": "a"}])),
        (
            Task::ObjectDetection,
            json!([{"label": "a", "score": 1, "box": [1, 2, 3]}]),
        ),
        (Task::TextEmbeddings, json!([[1, 2], [3]])),
        (Task::TextEmbeddings, json!([["a"]])),
        (Task::TextEmbeddings, json!({})),
        (Task::TextToImage, json!({"image": "not base64!"})),
        (Task::TextToImage, json!({"images": []})),
        (Task::TextToSpeech, json!({})),
        (Task::AutomaticSpeechRecognition, json!({"words": []})),
        (Task::Translation, json!({"translated_text": 7})),
        (Task::Summarization, json!([])),
    ];
    for (task, answer) in broken {
        let found = finish(task, &answer);
        assert!(
            matches!(found, Err(TaskError::Broken(_))),
            "{task:?} {answer}: {found:?}"
        );
    }
    let cut = BuiltinTask::of(Task::TextGeneration).finish(&response(br#"{"response":"hi"#));
    assert!(matches!(cut, Err(TaskError::Broken(_))));
}

#[test]
fn a_failure_is_kept_and_a_plain_text_is_a_text() {
    let builtin = BuiltinTask::of(Task::Translation);
    let failed = TaskResponse {
        status: 500,
        ..response(b"oops")
    };
    assert_eq!(builtin.finish(&failed).unwrap().edit, BodyEdit::Keep);
    let plain = TaskResponse {
        content_type: "text/plain; charset=utf-8".into(),
        ..response(b"bonjour")
    };
    assert_eq!(
        json(&builtin.finish(&plain).unwrap().edit),
        json!({"translated_text": "bonjour"})
    );
    let image = TaskResponse {
        content_type: "image/png".into(),
        ..response(b"\x89PNG")
    };
    assert!(matches!(builtin.finish(&image), Err(TaskError::Broken(_))));
}

#[test]
fn subtitles_break_at_pauses_and_after_ten_words() {
    let word = |at: u32, start: f64| json!({"word": format!("w{at}"), "start": start, "end": start + 0.25});
    let mut words: Vec<Value> = (0..11).map(|at| word(at, f64::from(at) * 0.25)).collect();
    words.push(word(11, 3605.5));
    let finished = finish(
        Task::AutomaticSpeechRecognition,
        &json!({"text": "t", "words": words}),
    )
    .unwrap();
    assert_eq!(
        json(&finished.edit)["vtt"],
        "WEBVTT\n\n00:00.000 --> 00:02.500\nw0 w1 w2 w3 w4 w5 w6 w7 w8 w9\n\n00:02.500 --> 00:02.750\nw10\n\n01:00:05.500 --> 01:00:05.750\nw11\n"
    );
}
