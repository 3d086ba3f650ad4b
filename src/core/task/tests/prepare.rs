//! Payloads for plain HTTP servers.

use serde_json::{Value, json};

use super::*;
use crate::model::Payload;
use crate::task::TaskHooks;

#[test]
fn hooks_that_would_do_nothing_are_not_active() {
    let hooks = |task| BuiltinTask::of(task).description().active;
    let all = TaskHooks {
        prepare: true,
        finish: true,
        events: true,
    };
    assert_eq!(
        hooks(Task::TextGeneration),
        TaskHooks {
            prepare: false,
            ..all
        }
    );
    assert_eq!(
        hooks(Task::TextEmbeddings),
        TaskHooks {
            prepare: false,
            events: false,
            ..all
        }
    );
    assert_eq!(hooks(Task::ImageTextToText), all);
    assert_eq!(
        hooks(Task::Translation),
        TaskHooks {
            events: false,
            ..all
        }
    );
    assert_eq!(hooks(Task::DumbPipe), TaskHooks::default());
    for task in Task::ALL {
        let native = BuiltinTask::for_payload(task, Payload::Protocol).description();
        assert_eq!(native.active, TaskHooks::default());
        assert_eq!(
            native.input_schema,
            BuiltinTask::of(task).description().input_schema
        );
    }
}

#[test]
fn text_to_image_gets_its_defaults_and_its_steps_under_one_name() {
    let prepared = prepare(Task::TextToImage, json!({"prompt": "a cat", "steps": 4, "width": 1025, "seed": null, "options": {"rejectIfBusy": true}, "x_client_id": "c", "style": "oil"})).unwrap();
    assert_eq!(
        json(&prepared.edit),
        json!({"prompt": "a cat", "num_steps": 4, "width": 1025, "style": "oil", "height": 1024, "guidance": 7.5})
    );
    assert_eq!(prepared.backend_path.as_deref(), Some("/run"));
    let expected = [
        ("image_steps", 4.0),
        ("image_tiles", 6.0),
        ("input_characters", 5.0),
    ];
    for (name, value) in expected {
        assert_eq!(metric(&prepared.metrics, name), Some(value), "{name}");
    }
    let both = prepare(
        Task::TextToImage,
        json!({"prompt": "x", "steps": 4, "num_steps": 9}),
    )
    .unwrap();
    assert_eq!(json(&both.edit)["num_steps"], 9);
    assert_eq!(json(&both.edit).get("steps"), None);
}

#[test]
fn a_file_comes_to_base64_whatever_its_form() {
    let forms = [
        json!("AAEC"),
        json!("AA\nEC\n"),
        json!("data:audio/wav;base64,AAEC"),
        json!([0, 1, 2]),
        json!([0.0, 1, 2e0]),
        json!({"body": [0, 1, 2], "contentType": "audio/wav"}),
        json!({"body": "AAEC"}),
    ];
    for form in forms {
        let prepared = prepare(Task::AutomaticSpeechRecognition, json!({"audio": form})).unwrap();
        assert_eq!(json(&prepared.edit)["audio"], "AAEC");
        assert_eq!(metric(&prepared.metrics, "audio_bytes"), Some(3.0));
    }
    let short = prepare(Task::ImageClassification, json!({"image": "AA"})).unwrap();
    assert_eq!(json(&short.edit), json!({"image": "AA=="}));
    let many = prepare(
        Task::MultimodalEmbeddings,
        json!({"image": ["AAEC", "AA=="], "text": ["a", "bc"]}),
    )
    .unwrap();
    assert_eq!(json(&many.edit)["image"], json!(["AAEC", "AA=="]));
    assert_eq!(metric(&many.metrics, "input_images"), Some(2.0));
    assert_eq!(metric(&many.metrics, "input_characters"), Some(3.0));
}

#[test]
fn a_body_that_is_the_file_itself_stands_under_its_key() {
    let bytes = [0u8, 1, 2, 255];
    let cases = [
        (Task::ImageClassification, "image/png", "image"),
        (Task::ObjectDetection, "application/octet-stream", "image"),
        (Task::ImageToText, "image/jpeg", "image"),
        (Task::AutomaticSpeechRecognition, "audio/wav", "audio"),
    ];
    for (task, kind, key) in cases {
        assert!(task.takes_bytes());
        let prepared = BuiltinTask::of(task)
            .prepare(&request(kind, &bytes))
            .unwrap();
        assert_eq!(json(&prepared.edit)[key], "AAEC/w==", "{task:?}");
    }
    let prepared = BuiltinTask::of(Task::ImageToText)
        .prepare(&request("image/png", &bytes))
        .unwrap();
    assert_eq!(
        json(&prepared.edit)["prompt"],
        "Generate a caption for this image"
    );
    assert_eq!(json(&prepared.edit)["max_tokens"], 512);
}

#[test]
fn other_names_are_brought_back_to_the_documented_ones() {
    let speech = prepare(Task::TextToSpeech, json!({"prompt": "hé", "voice": "v"})).unwrap();
    assert_eq!(
        json(&speech.edit),
        json!({"text": "hé", "speaker": "v", "lang": "en"})
    );
    assert_eq!(metric(&speech.metrics, "input_characters"), Some(2.0));
    let prepared = prepare(
        Task::AutomaticSpeechRecognition,
        json!({"audio": "AAEC", "source": "de", "source_lang": "fr"}),
    )
    .unwrap();
    assert_eq!(
        json(&prepared.edit),
        json!({"audio": "AAEC", "language": "fr", "task": "transcribe", "vad_filter": false})
    );
    let translated = prepare(
        Task::Translation,
        json!({"text": "hi", "target_lang": "fr"}),
    )
    .unwrap();
    assert_eq!(json(&translated.edit)["source_lang"], "en");
}

#[test]
fn what_is_no_file_is_the_callers_fault() {
    let cases = [
        (
            json!({"image": "http://example.com/cat.png"}),
            "/image",
            "bad_base64",
        ),
        (json!({"image": "AAA=A"}), "/image", "bad_base64"),
        (json!({"image": "A"}), "/image", "bad_base64"),
        (json!({"image": [1, 256]}), "/image", "invalid_input"),
        (json!({"image": [1.0, 256.0]}), "/image", "invalid_input"),
        (json!({"image": [1, 1.5]}), "/image", "invalid_input"),
        (json!({"image": [-1.0]}), "/image", "invalid_input"),
        (json!({"image": 7}), "/image", "invalid_input"),
        (json!({"image": null}), "", "invalid_input"),
        (json!([]), "", "invalid_input"),
    ];
    for (body, pointer, code) in cases {
        let Err(TaskError::Rejected(rejection)) = prepare(Task::ImageClassification, body.clone())
        else {
            panic!("{body} was taken");
        };
        assert_eq!(rejection.status, 400);
        assert_eq!(
            (rejection.pointer.as_deref(), &*rejection.code),
            (Some(pointer), code),
            "{body}"
        );
    }
    let opaque = BuiltinTask::of(Task::Translation).prepare(&request("text/plain", b"hi"));
    assert!(matches!(opaque, Err(TaskError::Rejected(_))));
    let list = prepare(Task::MultimodalEmbeddings, json!({"image": ["AAEC", "?"]}));
    let Err(TaskError::Rejected(rejection)) = list else {
        panic!()
    };
    assert_eq!(rejection.pointer.as_deref(), Some("/image/1"));
}

#[test]
fn of_a_repeated_member_the_last_value_reaches_the_server_as_it_reached_the_schema() {
    let body = br#"{"prompt":"x","num_steps":5,"num_steps":50}"#;
    let prepared = BuiltinTask::of(Task::TextToImage)
        .prepare(&request("application/json", body))
        .unwrap();
    let BodyEdit::Replace(payload) = &prepared.edit else {
        panic!()
    };
    assert_eq!(
        std::str::from_utf8(payload)
            .unwrap()
            .matches("num_steps")
            .count(),
        1
    );
    let seen: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(json(&prepared.edit)["num_steps"], seen["num_steps"]);
}

#[test]
fn a_pipe_changes_nothing() {
    let pipe = BuiltinTask::of(Task::DumbPipe);
    let prepared = pipe.prepare(&request("x/y", b"\xff")).unwrap();
    assert_eq!(prepared.edit, BodyEdit::Keep);
    assert_eq!(prepared.backend_path.as_deref(), Some(""));
    assert_eq!(
        pipe.finish(&response(b"\xff")).unwrap().edit,
        BodyEdit::Keep
    );
}
