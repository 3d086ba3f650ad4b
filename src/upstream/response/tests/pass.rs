//! Answers passed on in the client's own dialect.

use serde_json::{Value, json};

use infergate_core::model::{ModelInAnswers, ModelSpec};

use super::*;

#[test]
fn a_stream_passes_unchanged_when_the_client_asked_for_usage() {
    let stream = [VLLM_TEXT, VLLM_USAGE, DONE].concat();
    let call = chat(STREAM_WITH_USAGE);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(got.text, stream);
    assert_eq!(
        got.usage,
        Some(Usage {
            cached_tokens: Some(8),
            ..tokens(9, 3)
        })
    );
    assert!(got.done && got.token && got.result.is_ok());
}

#[test]
fn the_usage_chunk_is_read_and_removed_when_the_client_did_not_ask() {
    let stream = [VLLM_TEXT, VLLM_USAGE, DONE].concat();
    let call = chat(STREAM);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(got.text, [VLLM_TEXT, DONE].concat());
    assert_eq!(
        got.usage,
        Some(Usage {
            cached_tokens: Some(8),
            ..tokens(9, 3)
        })
    );
    let got = relay_cut_anywhere(|| answer_of("llama-server", &call), EVENTS, LLAMA);
    assert_eq!(got.usage, Some(tokens(11, 1)));
    assert!(got.text.contains("�") && !got.text.contains("timings") && got.text.ends_with(DONE));
}

#[test]
fn a_chunk_of_whole_events_is_forwarded_without_a_copy() {
    let mut answer = answer_of("openai", &chat(STREAM));
    let mut out = BytesMut::new();
    assert_eq!(
        answer.push(VLLM_TEXT.as_bytes(), &mut out),
        Ok(PushOutput::First(VLLM_TEXT.len()))
    );
    assert_eq!(
        answer.push(VLLM_USAGE.as_bytes(), &mut out),
        Ok(PushOutput::Out)
    );
    assert_eq!(answer.push(b"", &mut out), Ok(PushOutput::Out));
    assert!(out.is_empty());
    assert_eq!(
        answer.push(DONE.as_bytes(), &mut out),
        Ok(PushOutput::First(DONE.len()))
    );
    assert!(answer.is_done());
}

#[test]
fn comments_and_events_that_cannot_be_read_pass() {
    let stream = [
        ": ping\n\n",
        "data: not json \"usage\"\n\n",
        VLLM_TEXT,
        DONE,
    ]
    .concat();
    let call = chat(STREAM);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(got.text, stream);
}

#[test]
fn the_first_token_is_text_reasoning_or_a_tool_call_and_not_the_role() {
    let seen = |delta: Value| {
        let event = format!(
            "data: {}\n\n",
            json!({ "choices": [{ "index": 0, "delta": delta }] })
        );
        let mut answer = answer_of("openai", &chat(STREAM));
        let _ = answer.push(event.as_bytes(), &mut BytesMut::new()).unwrap();
        answer.has_token()
    };
    assert!(!seen(json!({ "role": "assistant", "content": "" })));
    assert!(!seen(json!({ "role": "assistant", "content": null })));
    assert!(seen(json!({ "content": "a" })));
    assert!(seen(json!({ "reasoning_content": "a" })));
    assert!(seen(
        json!({ "tool_calls": [{ "index": 0, "function": { "name": "f" } }] })
    ));
}

#[test]
fn a_stream_that_ends_early_gets_an_error_event_and_no_end_mark() {
    let call = chat(STREAM);
    let cut = [VLLM_TEXT, "data: {\"id\":\"c\",\"cho"].concat();
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &cut);
    assert_eq!(got.result, Err(ResponseError::EndedEarly));
    let event = got.text.strip_prefix(VLLM_TEXT).unwrap();
    let error: Value =
        serde_json::from_str(event.strip_prefix("data: ").unwrap().trim_end()).unwrap();
    assert_eq!(error["error"]["code"], "upstream_failed");
    assert!(!got.done && !got.text.contains("[DONE]"));
}

#[test]
fn a_failure_the_backend_reports_in_its_stream_is_told_in_the_dialect() {
    let failure = "data: {\"error\": {\"message\": \"CUDA at /opt/x\", \"code\": 500}}\n\n";
    let stream = [VLLM_TEXT, failure, DONE].concat();
    let call = chat(STREAM);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(got.result, Err(ResponseError::BackendFailed));
    assert!(got.text.starts_with(VLLM_TEXT) && got.text.contains("upstream_failed"));
    assert!(!got.text.contains("CUDA") && !got.text.contains("[DONE]"));
    let call = run_call(r#"{"prompt":"a","stream":true}"#);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(got.result, Err(ResponseError::BackendFailed));
    assert!(got.text.contains(r#""code":3050"#) && !got.text.contains("[DONE]"));
}

#[test]
fn an_error_that_is_the_callers_fault_keeps_its_words() {
    for error in [
        r#"{"message":"too long: at most 8 tokens","type":"invalid_request_error","code":400}"#,
        r#"{"message":"too long: at most 8 tokens","type":"invalid_request_error","code":"x"}"#,
        r#"{"message":"too long: at most 8 tokens","type":"BadRequestError","code":422}"#,
    ] {
        let stream = [VLLM_TEXT, &format!("data: {{\"error\":{error}}}\n\n")].concat();
        for call in [chat(STREAM), run_call(r#"{"prompt":"a","stream":true}"#)] {
            let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
            let Err(ResponseError::Refused(refusal)) = &got.result else {
                panic!("{:?}", got.result);
            };
            let Refusal::Rejected { message, .. } = &**refusal else {
                panic!("{refusal:?}");
            };
            assert_eq!(message, "too long: at most 8 tokens");
        }
    }
    for error in [
        r#"{"message":"bad key sk-1","type":"invalid_request_error","code":401}"#,
        r#"{"message":"at /opt/x","code":500}"#,
        r#""at /opt/x""#,
    ] {
        let stream = [VLLM_TEXT, &format!("data: {{\"error\":{error}}}\n\n")].concat();
        let call = chat(STREAM);
        let got = relay(answer_of("openai", &call), EVENTS, [stream.as_bytes()]);
        assert_eq!(got.result, Err(ResponseError::BackendFailed), "{error}");
    }
}

#[test]
fn a_stream_whose_choices_all_ended_is_whole_without_its_end_mark() {
    let event = |index: u32, reason: &str| {
        let delta = r#"{"content":"a b"}"#;
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"
        )
    };
    let one = [event(0, "null"), event(0, "\"stop\"")].concat();
    for call in [chat(STREAM), run_call(r#"{"prompt":"a","stream":true}"#)] {
        let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &one);
        assert_eq!((&got.result, got.done), (&Ok(()), true));
        assert!(got.text.ends_with("data: [DONE]\n\n"), "{}", got.text);
    }
    let two = chat(r#","stream":true,"n":2"#);
    let got = relay(answer_of("openai", &two), EVENTS, [one.as_bytes()]);
    assert_eq!(got.result, Err(ResponseError::EndedEarly));
    let both = [one.clone(), event(1, "\"length\"")].concat();
    let got = relay(answer_of("openai", &two), EVENTS, [both.as_bytes()]);
    assert_eq!(got.result, Ok(()));
    let half = [&one, "data: {\"choices\":["].concat();
    let call = chat(STREAM);
    let got = relay(answer_of("openai", &call), EVENTS, [half.as_bytes()]);
    assert_eq!(got.result, Err(ResponseError::EndedEarly));
}

#[test]
fn the_word_error_in_a_text_is_not_a_failure() {
    let event = r#"data: {"choices":[{"index":0,"delta":{"content":"error"}}],"x":{"error":1}}"#;
    let stream = [VLLM_TEXT, event, "\n\n", DONE].concat();
    let call = chat(STREAM);
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
    assert_eq!(got.text, stream);
}

#[test]
fn nothing_follows_the_end_mark() {
    let call = chat(STREAM);
    let late = [VLLM_TEXT, DONE, VLLM_TEXT, "half"].concat();
    let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &late);
    assert_eq!(got.text, [VLLM_TEXT, DONE].concat());
    let mut answer = answer_of("openai", &call);
    let mut out = BytesMut::new();
    let _ = answer.push(DONE.as_bytes(), &mut out).unwrap();
    answer.abort(&mut out, &Refusal::DeadlinePassed);
    assert!(out.is_empty() && answer.is_done());
}

#[test]
fn an_end_mark_without_its_blank_line_still_ends_the_stream() {
    let call = chat(STREAM);
    for end in ["data: [DONE]", "data: [DONE]\n", "data: [DONE]\r\n"] {
        let stream = [VLLM_TEXT, end].concat();
        let got = relay_cut_anywhere(|| answer_of("openai", &call), EVENTS, &stream);
        assert_eq!((got.result, got.done), (Ok(()), true), "{end:?}");
        assert!(
            got.text.starts_with(VLLM_TEXT) && got.text.ends_with("\n\n"),
            "{:?}",
            got.text
        );
    }
}

#[test]
fn an_event_over_the_bound_passes_unread_and_the_others_are_read() {
    let long = "x".repeat(sse::EVENT_BYTES_MAX);
    for long in [
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{long}\"}}}}]}}\n\n"),
        format!(": {long}\r\n\r\n"),
    ] {
        let stream = [&long, VLLM_TEXT, &long, VLLM_USAGE, DONE].concat();
        let passed = [&long, VLLM_TEXT, &long, DONE].concat();
        for size in [1000, 16 * 1024, 300_000] {
            let answer = answer_of("openai", &chat(STREAM));
            let got = relay(answer, EVENTS, stream.as_bytes().chunks(size));
            assert!(got.text == passed, "every byte, in pieces of {size}");
            assert_eq!((got.result, got.done, got.token), (Ok(()), true, true));
            let usage = Usage {
                cached_tokens: Some(8),
                ..tokens(9, 3)
            };
            assert_eq!(got.usage, Some(usage));
        }
    }
}

#[test]
fn a_break_in_an_event_over_the_bound_is_told_in_an_event_of_its_own() {
    let long = format!("data: {}", "x".repeat(sse::EVENT_BYTES_MAX));
    let answer = answer_of("openai", &chat(STREAM));
    let got = relay(answer, EVENTS, [VLLM_TEXT.as_bytes(), long.as_bytes()]);
    assert_eq!(got.result, Err(ResponseError::EndedEarly));
    let (text, error) = got.text.rsplit_once("\n\ndata: ").unwrap();
    assert!(text == [VLLM_TEXT, &long].concat());
    assert!(error.contains("\"error\"") && error.ends_with("\n\n"));
}

#[test]
fn an_object_passes_unchanged_and_its_usage_is_read() {
    let call = chat("");
    let got = relay_cut_anywhere(|| answer_of("openai", &call), OBJECT, COMPLETION);
    assert_eq!((&*got.text, got.usage), (COMPLETION, Some(tokens(7, 2))));
    assert!(got.done && got.token);
    let passed = answer_of("openai", &call);
    assert!(passed.passes_length() && !passed.is_collected());
    assert_eq!(passed.content_type(Some(b"text/plain")), b"text/plain");
}

#[test]
fn the_content_type_decides_how_the_body_is_read() {
    let streaming = chat(STREAM);
    let got = relay_cut_anywhere(|| answer_of("openai", &streaming), OBJECT, COMPLETION);
    assert_eq!((&*got.text, got.usage), (COMPLETION, Some(tokens(7, 2))));
    let whole = chat("");
    let stream = [VLLM_TEXT, VLLM_USAGE, DONE].concat();
    let got = relay_cut_anywhere(|| answer_of("openai", &whole), EVENTS, &stream);
    assert_eq!(got.text, stream);
    let converted = run_call(r#"{"prompt":"a","stream":true}"#);
    let mut object = answer_of("openai", &converted);
    assert_eq!(object.content_type(None), EVENT_STREAM);
    object.begin(200, |_| Some(b"application/json"));
    assert_eq!(object.content_type(Some(b"application/json; x")), JSON);
    let got = relay_cut_anywhere(|| answer_of("openai", &converted), OBJECT, COMPLETION);
    assert!(
        got.text.starts_with(r#"{"result":{"response":"h\u00e9""#),
        "{}",
        got.text
    );
    assert!(answer_of("openai", &run_call(r#"{"prompt":"a"}"#)).is_collected());
}

/// The response to a client that asked for `m`, named so.
fn named(members: &str) -> ResponseTransformer {
    let mut spec = ModelSpec::new("x".into(), Task::TextGeneration, "openai".into());
    spec.model_in_answers = ModelInAnswers::Asked;
    let call = chat(members);
    answer_of("openai", &call).with_model_name(&call, &spec)
}

#[test]
fn a_whole_answer_says_the_model_that_was_asked_for_where_that_is_wanted() {
    let answer =
        r#"{ "id":"m\"x","choices":[{"model":"inner"}], "model" : "/srv/q\u0034.gguf" ,"n":1.50}"#;
    let renamed = answer.replace(r#""/srv/q\u0034.gguf""#, r#""m""#);
    assert_ne!(answer, renamed);
    let got = relay_cut_anywhere(|| named(""), OBJECT, answer);
    assert_eq!((&*got.text, got.result), (&*renamed, Ok(())));
    assert!(!named("").passes_length());
    for odd in [
        r#"{"choices":[],"model":null}"#,
        r#"{"model":"a","model":"b"}"#,
        "[1]",
        "no json",
        "",
    ] {
        let got = relay_cut_anywhere(|| named(""), OBJECT, odd);
        assert_eq!(got.text, odd);
    }
}

#[test]
fn an_answer_too_long_to_be_held_keeps_the_servers_name_and_every_byte() {
    let answer = format!(
        r#"{{"model":"b","x":"{}"}}"#,
        "x".repeat(RESPONSE_BYTES_MAX)
    );
    for size in [70_001, RESPONSE_BYTES_MAX] {
        let got = relay(named(""), OBJECT, answer.as_bytes().chunks(size));
        assert!(got.text == answer && got.result.is_ok(), "{size}");
    }
}

#[test]
fn every_event_of_a_stream_says_the_model_that_was_asked_for() {
    let event = |model: &str, text: &str| {
        format!(
            "id: 1\ndata: {{\"model\":{model},\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
        )
    };
    let odd = ": model\n\ndata: {\"model\"\n\ndata: {\ndata: \"model\":\"b\"}\n\n";
    let stream = [
        &event("\"b\"", "a"),
        odd,
        &event("\"bb\"", "\\\"model\\\""),
        VLLM_USAGE,
        DONE,
    ]
    .concat();
    let renamed = [
        &event("\"m\"", "a"),
        odd,
        &event("\"m\"", "\\\"model\\\""),
        DONE,
    ]
    .concat();
    let got = relay_cut_anywhere(|| named(STREAM), EVENTS, &stream);
    assert_eq!((&*got.text, got.done), (&*renamed, true));
    assert_eq!(got.usage.map(|usage| usage.output_tokens), Some(3));
}
