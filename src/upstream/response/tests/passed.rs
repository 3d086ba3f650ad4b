//! Answers of the APIs whose bodies pass, with events over the bound.

use infergate_core::api::passed::PassedApi;

use super::*;

const LONG: usize = sse::EVENT_BYTES_MAX;

fn responses() -> ResponseTransformer {
    let body = Bytes::from_static(br#"{"model":"m","input":"hi","stream":true}"#);
    let operation = Operation::Passed(PassedApi::Responses);
    let call = body::parse(ApiDialect::OpenAi, operation, None, body).unwrap();
    answer_of("openai", &call)
}

/// Relays a stream of these events in pieces of several sizes, and insists on one outcome.
fn relay_events(events: &[&str]) -> Got {
    let stream = events.concat();
    let relayed = |size| relay(responses(), EVENTS, stream.as_bytes().chunks(size));
    let got = relayed(16 * 1024);
    for size in [1000, 300_000, LONG / 2] {
        assert!(relayed(size) == got, "in pieces of {size}");
    }
    got
}

const CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";

/// An event that ends a response, which echoes a long member of the request, with its type before and behind it.
fn ends(kind: &str) -> [String; 3] {
    let usage = r#""usage":{"input_tokens":9,"output_tokens":3,"total_tokens":12}"#;
    let metadata = format!(r#""metadata":{{"a":"{}"}}"#, "x".repeat(LONG));
    [
        format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"response\":{{{metadata},{usage}}}}}\n\n"
        ),
        format!("data: {{\"response\":{{{usage},{metadata}}},\"type\":\"{kind}\"}}\n\n"),
        format!("event: {kind}\ndata: {{\"response\":{{{metadata},{usage}}}}}\n\n"),
    ]
}

#[test]
fn an_end_over_the_bound_completes_its_stream_and_its_usage_is_read() {
    for kind in ["response.completed", "response.incomplete"] {
        for end in ends(kind) {
            let got = relay_events(&[CREATED, &end]);
            assert_eq!((&got.result, got.done), (&Ok(()), true), "{kind}");
            assert_eq!(got.usage, Some(tokens(9, 3)));
            assert!(got.text == [CREATED, &end].concat());
        }
    }
}

#[test]
fn the_end_of_a_part_over_the_bound_does_not_end_its_stream() {
    let text = "x".repeat(LONG);
    let part = format!("data: {{\"type\":\"response.output_text.done\",\"text\":\"{text}\"}}\n\n");
    for end in ends("response.completed") {
        let got = relay_events(&[CREATED, &part, &end]);
        assert_eq!((got.result, got.done), (Ok(()), true));
        assert_eq!(got.usage, Some(tokens(9, 3)));
        assert!(got.text == [CREATED, &part, &end].concat());
    }
    let got = relay_events(&[CREATED, &part]);
    assert_eq!(got.result, Err(ResponseError::EndedEarly));
}

#[test]
fn a_failure_over_the_bound_is_one() {
    let [failed, ..] = ends("response.failed");
    let got = relay_events(&[CREATED, &failed]);
    assert_eq!(got.result, Err(ResponseError::BackendFailed));
}

#[test]
fn an_event_over_the_bound_without_a_type_asks_for_no_end() {
    let long = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(LONG));
    let got = relay_events(&[&long]);
    assert_eq!(got.result, Ok(()));
}
