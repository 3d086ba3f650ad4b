//! Requests of the passed APIs: what is read in them, what they are sent as, and what they may be billed by.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::api::wav;

fn read(api: PassedApi, body: &Value) -> Result<Call, Refusal> {
    parse(api, None, Bytes::from(body.to_string()), None)
}

fn sent(call: &Call, model: &str) -> Value {
    serde_json::from_slice(&call.openai_body(model)).unwrap()
}

fn known(call: &Call, name: &str) -> Option<f64> {
    let metrics = PassedMetrics::of(call).unwrap();
    let found = metrics.known.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

#[test]
fn a_json_body_passes_with_the_servers_name_of_the_model() {
    let body = json!({ "model": "m", "prompt": "a cat", "n": 2, "size": "1024x600", "steps": 8, "stream": true,
                       "x_priority": 1 });
    let call = read(PassedApi::Images, &body).unwrap();
    assert!(call.stream);
    let expected = json!({ "model": "sdxl", "prompt": "a cat", "n": 2, "size": "1024x600", "steps": 8, "stream": true });
    assert_eq!(sent(&call, "sdxl"), expected);
    assert_eq!(known(&call, "image_steps"), Some(16.0));
    assert_eq!(known(&call, "image_tiles"), Some(8.0));
    assert_eq!(known(&call, "input_characters"), Some(5.0));
    assert_eq!(PassedMetrics::of(&call).unwrap().images, 2);
}

#[test]
fn steps_of_an_image_are_the_most_that_a_server_may_take_and_never_none() {
    let counted = |more: Value| {
        let mut body = json!({ "model": "m", "prompt": "a cat", "n": 2 });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let call = read(PassedApi::Images, &body).unwrap();
        let estimated = PassedMetrics::of(&call).unwrap().estimated;
        (known(&call, "image_steps"), estimated)
    };
    for (named, steps) in [
        (json!({ "num_inference_steps": 50.0 }), 100.0),
        (json!({ "num_inference_steps": "50" }), 100.0),
        (json!({ "num_inference_steps": 1, "steps": 50 }), 100.0),
        (
            json!({ "num_inference_steps": 30.0, "num_steps": 50, "steps": null }),
            100.0,
        ),
        (json!({ "steps": 2.5 }), 6.0),
    ] {
        assert_eq!(counted(named.clone()), (Some(steps), vec![]), "{named}");
    }
    for unnamed in [
        json!({}),
        json!({ "steps": null }),
        json!({ "steps": 0 }),
        json!({ "steps": [50] }),
    ] {
        let guessed = vec![("image_steps", 40.0)];
        assert_eq!(counted(unnamed.clone()), (None, guessed), "{unnamed}");
    }
}

#[test]
fn a_response_in_the_background_is_refused_before_a_server_works_on_it() {
    let response = |more: Value| {
        let body = json!({ "model": "m", "input": "x", "background": more });
        read(PassedApi::Responses, &body)
    };
    for set in [json!(true), json!(1), json!("true")] {
        let refused = response(set.clone());
        let Err(Refusal::BadRequest { pointer, message }) = refused else {
            panic!("{set}: {refused:?}");
        };
        assert_eq!(pointer, "/background");
        assert!(message.contains("is billed as it ends"), "{message}");
    }
    for unset in [json!(false), json!(null)] {
        assert!(response(unset).is_ok());
    }
}

#[test]
fn continuous_usage_is_asked_of_chats_alone() {
    let body = json!({ "model": "m", "input": "hello", "stream": true });
    let call = read(PassedApi::Responses, &body).unwrap();
    let call = Call {
        continuous_usage: true,
        ..call
    };
    assert_eq!(sent(&call, "m"), body);
}

#[test]
fn speech_is_events_only_where_their_format_is_asked_for() {
    let speech = |more: Value| {
        let mut body = json!({ "model": "m", "input": "Grüße", "voice": "v" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        read(PassedApi::Speech, &body).unwrap()
    };
    assert!(speech(json!({ "stream_format": "sse" })).stream);
    assert!(!speech(json!({ "stream_format": "audio" })).stream);
    assert!(!speech(json!({ "stream": true })).stream);
    assert_eq!(known(&speech(json!({})), "input_characters"), Some(5.0));
}

#[test]
fn what_a_server_could_not_use_is_refused_with_its_place() {
    let pointer = |api, body: Value| match read(api, &body) {
        Err(Refusal::BadRequest { pointer, .. }) => pointer,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        pointer(PassedApi::Images, json!({ "model": "m" })),
        "/prompt"
    );
    assert_eq!(
        pointer(PassedApi::Speech, json!({ "model": "m", "input": "" })),
        "/input"
    );
    assert_eq!(
        pointer(PassedApi::Responses, json!({ "input": "x" })),
        "/model"
    );
    let ranks = |documents: Value| json!({ "model": "m", "query": "q", "documents": documents });
    for bad in [json!([]), json!("one"), json!(null)] {
        assert_eq!(pointer(PassedApi::Rerank, ranks(bad)), "/documents");
    }
    assert!(read(PassedApi::Rerank, &ranks(json!(["a"]))).is_ok());
}

fn form(model: &str, more: &str, file: &[u8]) -> Bytes {
    let text = |name: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file_head =
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    let before = format!("{}{more}{file_head}", text("model", model));
    [before.as_bytes(), file, b"\r\n--b--\r\n"].concat().into()
}

fn transcription(body: Bytes) -> Result<Call, Refusal> {
    parse(
        PassedApi::Transcriptions,
        Some("multipart/form-data; boundary=b"),
        body,
        None,
    )
}

#[test]
fn a_form_passes_with_the_servers_name_of_the_model() {
    let file = vec![7; 16_000];
    let call = transcription(form("ears", "", &file)).unwrap();
    assert_eq!((&*call.model, call.stream), ("ears", false));
    assert_eq!(call.openai_body("whisper-1"), form("whisper-1", "", &file));
    assert_eq!(known(&call, "audio_bytes"), Some(16_000.0));
    assert_eq!(known(&call, "audio_seconds"), None);
    let estimated = PassedMetrics::of(&call).unwrap().estimated;
    assert_eq!(estimated, [("audio_seconds", 2.0)]);
    let stream = "--b\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\nTrue\r\n";
    assert!(transcription(form("ears", stream, &file)).unwrap().stream);
    assert!(call.prompt_tokens() < 2_000, "a sound is no text");
}

#[test]
fn the_header_of_a_sound_tells_its_seconds() {
    let mut sound = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    sound.extend(8_000_u32.to_le_bytes());
    sound.extend(16_000_u32.to_le_bytes());
    sound.extend([2, 0, 16, 0]);
    sound.extend(b"data\0\0\0\0");
    sound.extend(vec![0; 24_000]);
    assert_eq!(wav::seconds(&sound, sound.len()), Some(1.5));
    let call = transcription(form("ears", "", &sound)).unwrap();
    assert_eq!(known(&call, "audio_seconds"), Some(1.5));
    assert_eq!(PassedMetrics::of(&call).unwrap().estimated, []);
}

#[test]
fn a_form_without_its_parts_is_refused() {
    let model_again = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nother\r\n";
    let no_file =
        Bytes::from("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--");
    for body in [
        form("", "", b"x"),
        form("m", model_again, b"x"),
        no_file,
        Bytes::from("{}"),
    ] {
        assert!(matches!(
            transcription(body),
            Err(Refusal::BadRequest { .. })
        ));
    }
    assert!(parse(PassedApi::Translations, None, form("m", "", b"x"), None).is_err());
}

#[test]
fn texts_of_a_response_are_found_in_its_items() {
    let answer = json!({ "output": [
        { "type": "reasoning", "content": null },
        { "type": "message", "content": [{ "type": "output_text", "text": "a b" }, { "type": "refusal" }] },
        { "type": "function_call", "arguments": "{}" },
    ] });
    let texts = response_texts(answer.to_string().as_bytes()).unwrap();
    assert_eq!(String::from_utf8(texts).unwrap(), r#"["a b","{}"]"#);
    assert!(response_texts(b"{}").is_none());
}

#[test]
fn a_file_that_is_still_coming_counts_whole_and_is_not_looked_into() {
    // The name of the boundary is no content type.
    let boundary = "json";
    let start = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--{boundary}\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx"
    );
    let length = start.len() as u64 - 1 + 16_000 + boundary.len() as u64 + 8;
    let kind = format!("multipart/form-data; boundary={boundary}");
    let body = Bytes::from(start);
    let call = parse(PassedApi::Transcriptions, Some(&kind), body, Some(length)).unwrap();
    assert_eq!(known(&call, "audio_bytes"), Some(16_000.0));
    assert!(call.prompt_tokens() > 1);
}
