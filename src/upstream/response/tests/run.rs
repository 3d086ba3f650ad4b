//! Answers converted for the Workers AI dialect.

use serde_json::{Value, json};

use super::*;
use crate::upstream::response::convert::{TOOL_BYTES_MAX, TOOL_CALLS_MAX};

#[test]
fn a_run_gets_the_envelope() {
    let call = run_call(r#"{"prompt":"a"}"#);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), OBJECT, COMPLETION);
    assert_eq!(
        got.text,
        r#"{"result":{"response":"h\u00e9","usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}},"success":true,"errors":[],"messages":[]}"#,
    );
    assert_eq!(got.usage, Some(tokens(7, 2)));
    let tools = r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#;
    let got = relay_cut_anywhere(|| answer_of("openai", &call), OBJECT, tools);
    assert!(
        got.text.starts_with(
            r#"{"result":{"response":null,"tool_calls":[{"id":"1","name":"f","arguments":{"a":1}}]}"#
        ),
        "{}",
        got.text
    );
}

#[test]
fn a_run_stream_is_converted_event_by_event() {
    let call = run_call(r#"{"messages":[{"role":"user","content":"a"}],"stream":true}"#);
    let stream = [": ping\n\n", VLLM_TEXT, VLLM_USAGE, DONE].concat();
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(
        got.text,
        concat!(
            ": ping\n\n",
            r#"data: {"response":"Hé \"usage\""}"#,
            "\n\n",
            r#"data: {"response":"llo\n"}"#,
            "\n\n",
            r#"data: {"response":"","usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":8}}}"#,
            "\n\ndata: [DONE]\n\n",
        ),
    );
    assert!(got.done && got.token);
    let got = relay_cut_anywhere(|| answer_of("llama-server", &call), EVENTS, LLAMA);
    assert_eq!(got.usage, Some(tokens(11, 1)));
    assert!(
        got.text.starts_with("data: {\"response\":\"�\"}\n\n"),
        "{}",
        got.text
    );
}

#[test]
fn fragments_of_tool_calls_are_put_together_for_the_last_piece() {
    let fragment = |call: Value| {
        format!(
            "data: {}\n\n",
            json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] })
        )
    };
    let stream = [
        fragment(json!({ "index": 0, "id": "a", "type": "function", "function": { "name": "f", "arguments": "" } })),
        fragment(json!({ "index": 0, "function": { "arguments": "{\"x\":" } })),
        fragment(json!({ "index": 1, "id": "b", "function": { "name": "g", "arguments": "{}" } })),
        fragment(json!({ "index": 0, "function": { "name": null, "arguments": "1}" } })),
        DONE.into(),
    ]
    .concat();
    let call = run_call(r#"{"prompt":"a","stream":true}"#);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(
        got.text,
        concat!(
            r#"data: {"response":"","tool_calls":[{"id":"a","name":"f","arguments":{"x":1}},{"id":"b","name":"g","arguments":{}}]}"#,
            "\n\ndata: [DONE]\n\n",
        ),
    );
    for huge in [
        fragment(json!({ "index": TOOL_CALLS_MAX, "function": { "name": "f" } })),
        fragment(
            json!({ "index": 0, "function": { "arguments": "x".repeat(TOOL_BYTES_MAX / 2) } }),
        )
        .repeat(3),
    ] {
        let got = relay(answer_of("openai", &call), EVENTS, [huge.as_bytes()]);
        assert_eq!(got.result, Err(ResponseError::ResponseTooLong));
    }
}

#[test]
fn tgi_streams_end_with_their_details() {
    let stream = concat!(
        "data:{\"index\":1,\"token\":{\"id\":5,\"text\":\" a\",\"logprob\":-0.1,\"special\":false},\"generated_text\":null,\"details\":null}\n\n",
        "data:{\"index\":2,\"token\":{\"id\":2,\"text\":\"</s>\",\"logprob\":-0.1,\"special\":true},\"generated_text\":\" a\",\"details\":{\"finish_reason\":\"eos_token\",\"generated_tokens\":2,\"seed\":null,\"input_length\":4}}\n\n",
    );
    let call = run_call(r#"{"prompt":"a","stream":true}"#);
    let got = relay_cut_anywhere(|| answer_of("tgi", &call), EVENTS, stream);
    assert_eq!(
        got.text,
        concat!(
            "data: {\"response\":\" a\"}\n\n",
            "data: {\"response\":\"\",\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2,\"total_tokens\":6}}\n\n",
            "data: [DONE]\n\n",
        ),
    );
    assert!(got.done && got.usage == Some(tokens(4, 2)));
    let cut = &stream[..stream.len() / 2];
    assert_eq!(
        relay(answer_of("tgi", &call), EVENTS, [cut.as_bytes()]).result,
        Err(ResponseError::EndedEarly)
    );
    let failed = "data:{\"error\":\"Request failed\",\"error_type\":\"generation\"}\n\n";
    assert_eq!(
        relay(answer_of("tgi", &call), EVENTS, [failed.as_bytes()]).result,
        Err(ResponseError::BackendFailed)
    );
    let chat_stream = [VLLM_TEXT, VLLM_USAGE, DONE].concat();
    let got = relay_cut_anywhere(|| answer_of("tgi", &call), EVENTS, &chat_stream);
    assert!(got.text.contains(r#"{"response":"llo\n"}"#) && got.done);
}

#[test]
fn tgi_objects_take_the_prompt_tokens_from_the_head() {
    let body = br#"{"generated_text":"b","details":{"finish_reason":"length","generated_tokens":20,"seed":null,"prefill":[],"tokens":[]}}"#;
    let mut answer = answer_of("tgi", &run_call(r#"{"prompt":"a"}"#));
    answer.begin(200, |name| match name {
        "content-type" => Some(b"application/json"),
        "x-prompt-tokens" => Some(b"4"),
        _ => None,
    });
    let mut out = BytesMut::new();
    assert_eq!(answer.push(body, &mut out), Ok(PushOutput::Out));
    answer.finish(&mut out).unwrap();
    assert_eq!(
        out,
        r#"{"result":{"response":"b","usage":{"prompt_tokens":4,"completion_tokens":20,"total_tokens":24}},"success":true,"errors":[],"messages":[]}"#
    );
    assert_eq!(answer.usage(), Some(tokens(4, 20)));
}

fn embeddings(kind: &str, body: &str) -> Got {
    let call = run_call(r#"{"text":["a","b"]}"#);
    let answer = || backend(kind).unwrap().decoder(&call, Task::TextEmbeddings);
    relay_cut_anywhere(answer, OBJECT, body)
}

#[test]
fn embeddings_come_as_shape_and_data_in_the_order_of_the_texts() {
    let expected = r#"{"result":{"shape":[2,2],"data":[[0.1,-2e-9],[3,4]]},"success":true,"errors":[],"messages":[]}"#;
    let openai = r#"{"object":"list","model":"m","usage":{"prompt_tokens":6,"total_tokens":6},"data":[{"object":"embedding","index":1,"embedding":[3,4]},{"object":"embedding","index":0,"embedding":[0.1,-2e-9]}]}"#;
    let got = embeddings("openai", openai);
    assert_eq!((&*got.text, got.usage), (expected, Some(tokens(6, 0))));
    let got = embeddings("tei", "[[0.1,-2e-9],[3,4]]");
    assert_eq!((&*got.text, got.usage), (expected, None));
}

#[test]
fn embeddings_of_another_shape_are_malformed_and_leave_nothing_behind() {
    for body in [
        "{}",
        "[[1],[2,3]]",
        "[1,2]",
        "[[[1]]]",
        "[\"AAAA\"]",
        "not json",
        "",
    ] {
        let got = embeddings("tei", body);
        assert_eq!(
            (&*got.text, got.result),
            ("", Err(ResponseError::Malformed)),
            "{body}"
        );
    }
    let base64 = r#"{"data":[{"index":0,"embedding":"AAAA"}]}"#;
    assert_eq!(
        embeddings("openai", base64).result,
        Err(ResponseError::Malformed)
    );
}

#[test]
fn a_converted_answer_is_collected_up_to_the_bound() {
    let mut answer = answer_of("openai", &run_call(r#"{"prompt":"a"}"#));
    let chunk = vec![b' '; RESPONSE_BYTES_MAX];
    let mut out = BytesMut::new();
    assert_eq!(answer.push(&chunk, &mut out), Ok(PushOutput::Out));
    assert_eq!(
        answer.push(b" ", &mut out),
        Err(ResponseError::ResponseTooLong)
    );
    answer.abort(&mut out, &Refusal::UpstreamFailed);
    assert!(out.is_empty() && !answer.is_done());
}
