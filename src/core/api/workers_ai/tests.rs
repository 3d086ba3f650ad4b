//! The dialect as its clients see it.

use bytes::BytesMut;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::Refusal;

fn refusal<T>(result: Result<T, Refusal>) -> (String, String) {
    match result {
        Err(Refusal::BadRequest { pointer, message }) => (pointer, message),
        Err(other) => panic!("unexpected {other:?}"),
        Ok(_) => panic!("expected a refusal"),
    }
}

fn written(write: impl FnOnce(&mut BytesMut)) -> String {
    let mut out = BytesMut::new();
    write(&mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.into()).unwrap()
}

#[test]
fn a_prompt_and_its_parameters_stay_as_the_client_wrote_them() {
    let body = br#"{"prompt":"h\u00e9\n","stream":true,"max_tokens":5,"seed":12345678901234567890123,
        "x_priority":1,"options":{"rejectIfBusy":true},"temperature":1e999,"top_k":null,"new":{"a": 1.0}}"#;
    let parsed = TextGeneration::parse(body).unwrap();
    let GenerationInput::Prompt { text, raw: false } = parsed.input else {
        panic!("{:?}", parsed.input)
    };
    assert_eq!(text.get(), r#""h\u00e9\n""#);
    let parameters: Vec<_> = parsed
        .parameters
        .iter()
        .map(|(n, v)| (&**n, v.get()))
        .collect();
    assert_eq!(
        parameters,
        [
            ("max_tokens", "5"),
            ("seed", "12345678901234567890123"),
            ("temperature", "1e999"),
            ("new", r#"{"a": 1.0}"#)
        ],
    );
}

#[test]
fn messages_win_over_a_prompt_and_the_last_of_a_repeated_name_counts() {
    let body = br#"{"prompt":"a","messages":[1],"messages":[{"role":"user","content":"b"}]}"#;
    let parsed = TextGeneration::parse(body).unwrap();
    let GenerationInput::Messages(messages) = parsed.input else {
        panic!("{:?}", parsed.input)
    };
    assert_eq!(messages.get(), r#"[{"role":"user","content":"b"}]"#);
}

#[test]
fn a_generation_without_usable_input_is_refused_with_its_place() {
    let place = |body: &str| refusal(TextGeneration::parse(body.as_bytes())).0;
    assert_eq!(place("{}"), "/prompt");
    assert_eq!(place("[]"), "");
    assert_eq!(place(r#"{"prompt":null,"messages":null}"#), "/prompt");
    assert_eq!(place(r#"{"prompt":["a"]}"#), "/prompt");
    assert_eq!(place(r#"{"prompt":""}"#), "/prompt");
    assert_eq!(place(r#"{"messages":"a"}"#), "/messages");
    assert_eq!(place(r#"{"messages":[]}"#), "/messages");
    assert_eq!(place(r#"{"messages":[{},"a"]}"#), "/messages/1");
    assert_eq!(place(r#"{"prompt":"a","max_tokens":"5"}"#), "/max_tokens");
    assert_eq!(place(r#"{"prompt":"a","stop":{}}"#), "/stop");
    let (_, message) = refusal(TextGeneration::parse(br#"{"prompt":"a","stop":5}"#));
    assert_eq!(message, "expected a string or a list");
}

#[test]
fn embeddings_take_one_text_or_up_to_a_hundred() {
    let texts = |body: &str| {
        let parsed = TextEmbeddings::parse(body.as_bytes()).unwrap();
        parsed
            .texts
            .iter()
            .map(|text| text.get().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(r#"{"text":"a"}"#), ["\"a\""]);
    assert_eq!(
        texts(r#"{"text":["a", "b"],"pooling":"cls"}"#),
        ["\"a\"", "\"b\""]
    );
    assert_eq!(
        texts(&json!({ "text": vec!["a"; TEXTS_MAX] }).to_string()).len(),
        TEXTS_MAX
    );

    let place = |body: &str| refusal(TextEmbeddings::parse(body.as_bytes())).0;
    assert_eq!(place("{}"), "/text");
    assert_eq!(place(r#"{"text":null}"#), "/text");
    assert_eq!(place(r#"{"text":5}"#), "/text");
    assert_eq!(place(r#"{"text":[]}"#), "/text");
    assert_eq!(place(r#"{"text":["a",5]}"#), "/text/1");
    assert_eq!(place(r#"{"text":["a",""]}"#), "/text/1");
    assert_eq!(
        place(&json!({ "text": vec!["a"; TEXTS_MAX + 1] }).to_string()),
        "/text"
    );
}

#[test]
fn a_text_result_stands_in_the_envelope() {
    let response = raw(r#""h\u00e9""#);
    let plain = TextResult {
        response: Some(&response),
        ..TextResult::default()
    };
    assert_eq!(
        written(|out| write_text(&plain, out)),
        r#"{"result":{"response":"h\u00e9"},"success":true,"errors":[],"messages":[]}"#,
    );
    let call = RequestedToolCall {
        id: Some("c1".into()),
        name: "f".into(),
        arguments: "{\"a\":\n1}".into(),
    };
    let broken = RequestedToolCall {
        arguments: "{\"a\":".into(),
        ..call.clone()
    };
    let full = TextResult {
        response: None,
        reasoning: Some(&raw(r#""hm""#)),
        tool_calls: &[call, broken],
        usage: Some(r#"{"prompt_tokens":3}"#),
    };
    assert_eq!(
        serde_json::from_str::<Value>(&written(|out| write_text(&full, out))).unwrap()["result"],
        json!({
            "response": null,
            "reasoning_content": "hm",
            "tool_calls": [
                { "id": "c1", "name": "f", "arguments": { "a": 1 } },
                { "id": "c1", "name": "f", "arguments": "{\"a\":" },
            ],
            "usage": { "prompt_tokens": 3 },
        }),
    );
}

#[test]
fn an_embeddings_result_tells_its_shape() {
    let (first, second) = (raw("[0.5,-1e-9,3]"), raw("[1,2,3]"));
    let result = EmbeddingsResult {
        dimensions: 3,
        rows: &[&first, &second],
    };
    assert_eq!(
        written(|out| write_embeddings(&result, out)),
        r#"{"result":{"shape":[2,3],"data":[[0.5,-1e-9,3],[1,2,3]]},"success":true,"errors":[],"messages":[]}"#,
    );
}

#[test]
fn a_stream_is_pieces_then_usage_then_done() {
    let text = written(|out| {
        write_delta(None, Some(&raw(r#""hm""#)), out);
        write_delta(Some(&raw(r#"" a""#)), None, out);
        write_final_delta(&[], Some(r#"{"prompt_tokens":3}"#), out);
    });
    assert_eq!(
        text,
        "data: {\"response\":\"\",\"reasoning_content\":\"hm\"}\n\n\
         data: {\"response\":\" a\"}\n\n\
         data: {\"response\":\"\",\"usage\":{\"prompt_tokens\":3}}\n\n\
         data: [DONE]\n\n",
    );
}

#[test]
fn the_result_in_an_envelope_is_found_again_and_only_there() {
    let answer = written(|out| write_result(br#"{"a":{"result":1}}"#, out));
    let parsed: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(parsed["result"], json!({ "a": { "result": 1 } }));
    assert_eq!(
        (&parsed["success"], &parsed["errors"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(
        result_of(answer.as_bytes()).unwrap(),
        br#"{"a":{"result":1}}"#
    );
    let text = raw("\"hi\"");
    let text = TextResult {
        response: Some(&text),
        ..TextResult::default()
    };
    let answer = written(|out| write_text(&text, out));
    assert_eq!(
        result_of(answer.as_bytes()).unwrap(),
        br#"{"response":"hi"}"#
    );
    assert_eq!(result_of(b"{\"result\":1}"), None);
}
