//! Streams read event by event with a parser: what the quick way has to agree with, to the byte and the count.

use infergate_core::api::sse::EventSplitter;
use proptest::prelude::*;

use super::*;
use crate::upstream::response::event_text::place_of_text;
use crate::upstream::response::model_name::ModelNameRewriter;
use crate::upstream::response::openai::{Chunk, failure};
use crate::upstream::response::passthrough::PassedEvents;
use crate::upstream::response::stats::{ResponseStats, StreamEnd};

/// Keys of generated text, by their places.
const PLACES: [&str; 5] = [
    "content",
    "text",
    "response",
    "reasoning_content",
    "reasoning",
];

/// Outcome of a stream: bytes for the client, the error that ended it, and all that was learned.
#[derive(Debug, PartialEq)]
struct Read {
    sent: String,
    failed: Option<ResponseError>,
    stats: String,
}

/// Reads whole events one by one. Each is searched from its beginning, its texts are decoded by a parser, and
/// nothing is known from the event before but the place of its text.
fn read_slowly(stream: &[u8], name: Option<&ModelNameRewriter>, mut seen: ResponseStats) -> Read {
    let (mut sent, mut failed) = (BytesMut::new(), None);
    let split = EventSplitter::default().push(stream, &mut |event| {
        if failed.is_some() {
            return;
        }
        match look_slowly(event, &mut seen) {
            Ok(false) => {}
            Ok(true) => match name {
                Some(name) => name.event(event, &mut sent),
                None => sent.extend_from_slice(event),
            },
            Err(error) => failed = Some(error),
        }
    });
    split.unwrap();
    Read {
        sent: String::from_utf8_lossy(&sent).into_owned(),
        failed,
        stats: format!("{seen:?}"),
    }
}

/// Returns whether the event passes; its client has not asked for usage.
fn look_slowly(event: &[u8], seen: &mut ResponseStats) -> Result<bool, ResponseError> {
    if seen.end != StreamEnd::Open {
        return Ok(false);
    }
    let Some(data) = sse::data(event) else {
        return Ok(true);
    };
    if sse::is_done(&data) {
        seen.end = StreamEnd::Complete;
        return Ok(true);
    }
    let text = String::from_utf8_lossy(&data).into_owned();
    let names = |name: &str| {
        text.split_once(&format!("\"{name}\""))
            .is_some_and(|(_, after)| {
                let value = after.trim_ascii_start().strip_prefix(':');
                !value.is_some_and(|value| value.trim_ascii_start().starts_with("null"))
            })
    };
    let is_quiet = !names("usage") && !names("finish_reason") && !names("error");
    if let (true, None, Some(place)) = (is_quiet, &seen.output, seen.text_place)
        && count_slowly(&data, PLACES[place], &mut seen.text)
    {
        return Ok(true);
    }
    let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(&data) else {
        return Ok(true);
    };
    if let Some(error) = chunk.error {
        return Err(failure(error));
    }
    if chunk.count(seen) {
        seen.token = true;
        seen.text_place = place_of_text(&data);
    }
    let usage = chunk.usage.map(|usage| usage.get().as_bytes());
    seen.report(usage.and_then(Usage::from_openai));
    let has_choices = chunk.choices.is_none_or(|choices| !choices.is_empty());
    Ok(usage.is_none() || has_choices)
}

fn count_slowly(data: &[u8], key: &str, count: &mut TextCount) -> bool {
    let key = format!("\"{key}\":");
    let (mut rest, mut found) = (data, false);
    while let Some(at) = memchr::memmem::find(rest, key.as_bytes()) {
        rest = rest[at + key.len()..].trim_ascii_start();
        if rest.first() != Some(&b'"') {
            continue;
        }
        let mut end = 1;
        while rest.get(end).is_some_and(|byte| *byte != b'"') {
            end += 1 + usize::from(rest[end] == b'\\');
        }
        if end >= rest.len() {
            break;
        }
        match std::str::from_utf8(&rest[1..end]) {
            Ok(plain) if !plain.contains('\\') => count.push(plain),
            _ => match serde_json::from_slice::<String>(&rest[..=end]) {
                Ok(plain) => count.push(&plain),
                Err(_) => break,
            },
        }
        found |= end > 1;
        rest = &rest[end..];
    }
    found
}

/// Reads the stream as it is read in earnest, in chunks of these sizes, repeated.
fn read(
    stream: &[u8],
    sizes: &[usize],
    name: Option<&ModelNameRewriter>,
    mut seen: ResponseStats,
) -> Read {
    let mut events = PassedEvents::default();
    let (mut sent, mut failed) = (BytesMut::new(), None);
    let (mut rest, mut sizes) = (stream, sizes.iter().cycle());
    while !rest.is_empty() && failed.is_none() {
        let size = sizes
            .next()
            .map_or(rest.len(), |size| rest.len().min(*size));
        let (chunk, after) = rest.split_at(size);
        rest = after;
        let mut out = BytesMut::new();
        match events.push(chunk, true, name, &mut seen, &mut out) {
            Ok(PushOutput::First(len)) => {
                assert!(out.is_empty() && len > 0);
                sent.extend_from_slice(&chunk[..len]);
            }
            Ok(PushOutput::Out) => sent.extend_from_slice(&out),
            Err(error) => {
                sent.extend_from_slice(&out);
                failed = Some(error);
            }
        }
    }
    Read {
        sent: String::from_utf8_lossy(&sent).into_owned(),
        failed,
        stats: format!("{seen:?}"),
    }
}

const TEXTS: [&str; 26] = [
    " token",
    "a",
    "",
    "two words",
    "é",
    "語",
    "\\n",
    "\\\"",
    "\\\\",
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\x",
    "usage",
    "error",
    "finish_reason",
    "content",
    "text",
    "\\\"usage",
    "\\\"usage\\\"",
    "\t",
    "\\t \\r",
    "/",
    "reasoning",
    "\\\"content\\\":\\\"x",
    "a long text that goes on beyond the bytes looked at one by one",
];

/// Events with `@` for a text.
const EVENTS: [&str; 24] = [
    r#"data: {"id":"c","model":"b","choices":[{"index":0,"delta":{"content":"@"},"finish_reason":null}]}|"#,
    r#"data: {"id":"c","model":"b","choices":[{"index":0,"delta":{"content":"@"},"finish_reason":null}],"usage":null}|"#,
    r#"data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "@"}, "finish_reason": null}], "model": "b"}|"#,
    r#"data: {"id":"d","model":"b","choices":[{"index":1,"delta":{"content":"@"},"finish_reason":null}]}|"#,
    r#"data: {"id":"c","model":"b","choices":[{"index":0,"delta":{"content":"@"},"finish_reason":"stop"}]}|"#,
    r#"data: {"id":"c","model":"b","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}|"#,
    r#"data: {"choices":[{"index":0,"delta":{"reasoning_content":"@","content":null}}],"model":"b"}|"#,
    r#"data: {"choices":[{"index":0,"delta":{"content":"@"}},{"index":1,"delta":{"content":"@"}}],"model":"b"}|"#,
    r#"data: {"choices":[{"index":0,"text":"@","finish_reason":null}],"model":"b"}|"#,
    r#"data: {"response":"@"}|"#,
    r#"data: {"response":"@","model":7}|"#,
    r#"data: {"choices":[{"delta":{"content":"@"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}|"#,
    r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12}}|"#,
    r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"@"}}]}}]}|"#,
    r#"data: {"model":"b","model":"c","choices":[{"delta":{"content":"@"}}]}|"#,
    r#"data: {"content":"@" broken "model":"b"|"#,
    "id: 1\ndata: {\"model\":\"b\",\ndata: \"choices\":[{\"delta\":{\"content\":\"@\"}}]}|",
    "event: delta\ndata: {\"model\":\"b\",\"choices\":[{\"delta\":{\"content\":\"@\"}}]}|",
    "data:{\"content\":\"@\"}\r\n\r\n",
    ": @|",
    "data|",
    "|",
    r#"data: {"error":{"message":"@","code":400}}|"#,
    "data: [DONE]|",
];

/// A stream in which most events are like the one before.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let runs = (
        0..EVENTS.len(),
        proptest::collection::vec(0..TEXTS.len(), 1..6),
    );
    proptest::collection::vec(runs, 1..6).prop_map(|runs| {
        let mut stream = String::new();
        // The first token is parsed; from then on its place is known.
        let first = std::iter::once((0, vec![0, 1]));
        for (event, texts) in first.chain(runs) {
            // Events that end a stream end it seldom.
            let event = if event >= EVENTS.len() - 2 && texts[0] % 4 > 0 {
                0
            } else {
                event
            };
            for text in texts {
                stream += &EVENTS[event].replace('@', TEXTS[text]).replace('|', "\n\n");
            }
        }
        stream.into_bytes()
    })
}

fn stats(counts_output: bool) -> ResponseStats {
    ResponseStats {
        output: counts_output.then(Default::default),
        ..ResponseStats::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_stream_cut_anywhere_is_read_as_by_a_parser(
        stream in any_stream(), sizes in proptest::collection::vec(1..400usize, 0..4),
        is_named in any::<bool>(), counts_output in proptest::bool::weighted(0.2),
    ) {
        let name = is_named.then(|| ModelNameRewriter::of(&chat(STREAM))).flatten();
        let slow = read_slowly(&stream, name.as_ref(), stats(counts_output));
        for sizes in [&sizes[..], &[], &[1]] {
            let quick = read(&stream, sizes, name.as_ref(), stats(counts_output));
            prop_assert_eq!(&quick, &slow, "{:?}", String::from_utf8_lossy(&stream));
        }
    }
}

#[test]
fn events_of_one_form_need_no_memory_of_their_own() {
    let event = |text: &str| EVENTS[0].replace('@', text).replace('|', "\n\n");
    let (mut events, mut seen, mut out) = (PassedEvents::default(), stats(false), BytesMut::new());
    for (text, is_known) in [("a", false), (" b", false), (" c", true), ("d\\ne", true)] {
        let event = event(text);
        assert_eq!(events.knows(event.as_bytes(), &seen), is_known, "{text}");
        let pushed = events.push(event.as_bytes(), true, None, &mut seen, &mut out);
        assert_eq!(pushed, Ok(PushOutput::First(event.len())));
    }
    assert_eq!((out.capacity(), seen.text.words()), (0, 4));
}
