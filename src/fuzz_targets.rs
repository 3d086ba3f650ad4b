//! Parsers of what strangers send, as fuzzing and tests feed them: none panics, and none reads the same bytes differently
//! when they come in pieces.
//!
//! Each target has a file of its name in `fuzz/targets` and inputs to begin with in `fuzz/seeds`. `just fuzz` runs them
//! under libFuzzer, which follows the branches that an input takes; the tests of [`crate`] feed each with some thousands of
//! inputs. Nothing of this is in a usual build.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::HeaderName;
use infergate_core::api::arriving_form::FormStart;
use infergate_core::api::dialect::RequestBody;
use infergate_core::api::dialects::route;
use infergate_core::api::form::Form;
use infergate_core::api::open_inference::{
    edit_answer, edit_generated, generated_piece, task_result,
};
use infergate_core::api::route::RouteTarget;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::sse::EventSplitter;
use infergate_core::api::wav;
use infergate_core::vram::estimate::{join_gguf, read_gguf, read_safetensors};
use infergate_core::websocket::{FrameChecker, FrameSender};
use serde::de::IgnoredAny;

use crate::config;
use crate::downstream::{FormReader, PartEvent, read_proxy_header};
use crate::http1::{BodyDecoder, BodyStep, Fields, ParsedRequest, ParsedResponse, framing};
use crate::peer::{
    ForwardRejection, ForwardedHead, check_gossip_datagram, check_gossip_value, is_between_nodes,
};
use crate::state::header_filter::{
    ConnectionNamed, PassedHeaders, is_reserved, passes_from_node, passes_to_client,
};

/// Content type of the forms in seeds.
const FORM: &str = "multipart/form-data; boundary=b";
/// Fields of a form that count only before its file.
const ONCE: &[&str] = &["model", "file", "stream"];

/// Feeds `parse` with bytes whose last two choose where they are cut.
pub fn run(parse: fn(&[u8], usize), bytes: &[u8]) {
    let chosen = bytes
        .last_chunk()
        .map_or(0, |last| u16::from_le_bytes(*last));
    parse(bytes, usize::from(chosen) % (bytes.len() + 1));
}

/// JSON by its grammar: half of a surrogate pair is a text there (RFC 8259 section 8.2), and goes on as it came.
fn is_json_text(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// A head and a body, as far as they can be read: whether the head is one, and what the body has.
fn read_message(
    pieces: [&[u8]; 2],
    head: &mut dyn FnMut(&mut BytesMut) -> Option<bool>,
    body: &mut dyn FnMut() -> Option<BodyDecoder>,
) -> Option<(bool, Vec<u8>)> {
    let mut buffer = BytesMut::new();
    let mut decoder = None;
    let mut data = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if decoder.is_none() && head(&mut buffer)? {
            decoder = Some(body()?);
        }
        let Some(decoder) = &mut decoder else {
            continue;
        };
        loop {
            let before = buffer.len();
            match decoder.decode(&mut buffer).ok()? {
                BodyStep::Data(more) => {
                    assert!(!more.is_empty() && buffer.len() < before);
                    data.extend_from_slice(&more);
                }
                BodyStep::Partial | BodyStep::End => break,
            }
        }
    }
    Some((decoder.is_some(), data))
}

/// Requests of HTTP/1 with their bodies, and the heads that nodes forward.
pub fn requests_of_http1(bytes: &[u8], cut: usize) {
    let read = |pieces| {
        // The decoder is asked for with the head at hand.
        let parsed = RefCell::new(ParsedRequest::default());
        read_message(
            pieces,
            &mut |buffer| parsed.borrow_mut().parse(buffer).ok(),
            &mut || framing::of_request(&parsed.borrow()).ok(),
        )
    };
    let (first, second) = bytes.split_at(cut);
    assert_eq!(read([first, second]), read([bytes, b""]));
    let mut head = ParsedRequest::default();
    if head.parse(&mut BytesMut::from(bytes)) == Ok(true) {
        let _ = ForwardedHead::read(&head.fields);
        let _ = framing::path_of(head.target());
        let _ = framing::expects_continue(&head);
    }
}

/// Responses of HTTP/1 with their bodies.
pub fn responses_of_http1(bytes: &[u8], cut: usize) {
    let read = |pieces| {
        let parsed = RefCell::new(ParsedResponse::default());
        read_message(
            pieces,
            &mut |buffer| parsed.borrow_mut().parse(buffer).ok(),
            &mut || framing::of_response(&parsed.borrow()).ok(),
        )
    };
    let (first, second) = bytes.split_at(cut);
    assert_eq!(read([first, second]), read([bytes, b""]));
}

/// Requests of every API: the first line is the path, the second the content type, the rest the body. What is sent on
/// is JSON where the request was.
pub fn bodies_of_requests(bytes: &[u8], _: usize) {
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
    let mut line = || std::str::from_utf8(lines.next()?).ok();
    let (Some(path), Some(kind)) = (line(), line()) else {
        return;
    };
    let body = Bytes::copy_from_slice(lines.next().unwrap_or_default());
    let found = route("POST", path);
    let RouteTarget::Call(operation, path_model) = found.target else {
        return;
    };
    let is_sent_as_json = kind == "application/json";
    let request = RequestBody {
        operation,
        path_model: path_model.map(Into::into),
        task: None,
        content_type: Some(kind),
        path,
        json_bytes: None,
        body,
        length: None,
    };
    let Ok(call) = found.dialect.rules().parse(request) else {
        return;
    };
    let _ = (call.lora(), call.model_in_body(), call.passed_api());
    for sent in [call.stripped_body(), call.openai_body("b")] {
        if is_sent_as_json && call.content_type.is_none() {
            assert!(is_json_text(&sent), "{:?}", sent.escape_ascii().to_string());
        }
    }
}

/// Streams of events, with a bound and without.
pub fn events_of_servers(bytes: &[u8], cut: usize) {
    let events = |pieces: [&[u8]; 2]| {
        let mut found = Vec::new();
        let mut splitter = EventSplitter::default();
        for piece in pieces {
            let split = splitter.push(piece, &mut |event| found.push(event.to_vec()));
            split.expect("within the bound");
        }
        found
    };
    let (first, second) = bytes.split_at(cut);
    let whole = events([bytes, b""]);
    assert_eq!(events([first, second]), whole);
    assert!(bytes.starts_with(&whole.concat()));
    let mut bounded = EventSplitter::with_limit(8);
    bounded.push_parts(first, &mut |_| {});
    bounded.push_parts(second, &mut |_| {});
}

/// One member of a JSON object that comes in pieces.
pub fn members_of_json(bytes: &[u8], cut: usize) {
    let last = |pieces: [&[u8]; 2]| {
        let mut scanner = MemberScanner::new("usage").watching("error");
        let mut last = None;
        for piece in pieces {
            if let Some(value) = scanner.push(piece) {
                last = Some(value.to_vec());
            }
        }
        (last, scanner.has_watched())
    };
    let (first, second) = bytes.split_at(cut);
    assert_eq!(last([first, second]), last([bytes, b""]));
}

/// Answers of the Open Inference Protocol: what is left of one is JSON.
pub fn answers_of_tensors(bytes: &[u8], _: usize) {
    if let Ok(edit) = edit_answer(bytes, "m", &[]) {
        assert!(is_json_text(&edit.json));
    }
}

/// The same answers as results of tasks, and pieces of generated text: what is made of one is JSON, and not more than a
/// few times what came.
pub fn results_of_tensors(bytes: &[u8], _: usize) {
    if let Ok((result, _)) = task_result(bytes) {
        assert!(is_json_text(&result));
        assert!(result.len() <= 4 * bytes.len());
    }
    if let Ok(edited) = edit_generated(bytes, "m") {
        assert!(is_json_text(&edited.json));
    }
    if let Ok(piece) = generated_piece(bytes) {
        assert!(piece.text.is_none_or(|text| is_json_text(text.as_bytes())));
    }
}

/// Configurations, of which each that is wrong has a problem.
pub fn configurations(bytes: &[u8], _: usize) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(problems) = config::parse(&text, &|_| None) {
        assert!(!problems.is_empty());
    }
}

/// The PROXY protocol's headers.
pub fn headers_of_balancers(bytes: &[u8], _: usize) {
    let mut rest = bytes;
    // A slice has all its bytes at once: nothing is waited for.
    let read = read_proxy_header(&mut rest).now_or_never();
    if read.expect("all bytes are there").is_ok() {
        assert!(rest.len() < bytes.len());
    }
}

/// Heads of a form's parts, each with its data in one piece; none where it is no form.
fn parts_of_form(pieces: [&[u8]; 2]) -> Option<Vec<PartEvent>> {
    let mut reader = FormReader::new(FORM).ok()?;
    let mut found: Vec<PartEvent> = Vec::new();
    for piece in pieces {
        reader.push(piece);
        while let Some(event) = reader.next().ok()? {
            match (event, found.last_mut()) {
                (PartEvent::End, _) => return Some(found),
                (PartEvent::Data(more), Some(PartEvent::Data(data))) => {
                    *data = [&data[..], &more[..]].concat().into();
                }
                (event, _) => found.push(event),
            }
        }
    }
    Some(found)
}

/// Forms with files to be kept.
pub fn forms_of_files(bytes: &[u8], cut: usize) {
    let (first, second) = bytes.split_at(cut);
    let (whole, cut) = (parts_of_form([bytes, b""]), parts_of_form([first, second]));
    assert_eq!(whole.is_some(), cut.is_some());
    let heads = |found: Option<Vec<PartEvent>>| {
        let found = found.into_iter().flatten();
        found
            .filter(|event| matches!(event, PartEvent::Head(_)))
            .collect::<Vec<_>>()
    };
    assert_eq!(heads(whole), heads(cut));
}

/// Forms that go on to a server before they have come whole: the model is the one that the whole form names.
pub fn forms_as_they_come(bytes: &[u8], cut: usize) {
    let (first, second) = bytes.split_at(cut);
    let Some(start) = FormStart::read(FORM, first, "file") else {
        return;
    };
    let early = start.form.field("model");
    let Ok(mut rest) = start.rest(first, ONCE) else {
        return;
    };
    if rest.push(second).is_err() || !rest.is_whole() {
        return;
    }
    if let Ok(whole) = Form::read(FORM, bytes) {
        assert_eq!(early, whole.field("model"));
    }
}

/// Frames of WebSockets in either direction.
pub fn frames_of_websockets(bytes: &[u8], cut: usize) {
    for sender in [FrameSender::Client, FrameSender::Server] {
        let passed = |first: usize| {
            let mut checker = FrameChecker::new(sender);
            let (checked, fault) = checker.check(&bytes[..first]);
            if fault.is_some() || checker.is_closed() {
                return (checked.passed, fault);
            }
            let (more, fault) = checker.check(&bytes[checked.passed..]);
            (checked.passed + more.passed, fault)
        };
        assert_eq!(passed(cut), passed(bytes.len()));
    }
}

/// Headers of GGUF and safetensors files.
pub fn headers_of_models(bytes: &[u8], _: usize) {
    let length = bytes.len() as u64 + 1024;
    if let Ok(file) = read_gguf(bytes, length) {
        let _ = join_gguf(vec![file]);
    }
    let _ = read_safetensors(bytes, length);
}

/// Headers of WAV files.
pub fn headers_of_sound(bytes: &[u8], _: usize) {
    if let Some(seconds) = wav::seconds(bytes, bytes.len()) {
        assert!(seconds.is_finite() && seconds >= 0.0);
    }
}

/// Fields of a head that pass on, between whoever has sent them and whoever may see them.
pub fn headers_that_pass(bytes: &[u8], _: usize) {
    let listed = [HeaderName::from_static("x-tenant")];
    let mut request = ParsedRequest::default();
    if request.parse(&mut BytesMut::from(bytes)) == Ok(true) {
        let sent = &request.fields;
        check_passed(sent, &PassedHeaders::of(sent, &listed));
        check_passed(sent, &PassedHeaders::traced(sent, &listed, None));
    }
    let mut response = ParsedResponse::default();
    if response.parse(&mut BytesMut::from(bytes)) == Ok(true) {
        for (name, _) in response.fields.lines() {
            let Ok(name) = HeaderName::from_bytes(name) else {
                continue;
            };
            let is_kept = is_reserved(&name) && name != "content-type";
            assert!(!is_kept || !passes_to_client(name.as_str().as_bytes(), &listed));
            assert!(!is_between_nodes(name.as_str()) || !passes_from_node(name.as_str()));
        }
    }
}

/// Checks that each line for a server is one of the client's, of a name that may pass.
fn check_passed(sent: &Fields, passed: &PassedHeaders) {
    const BEGIN: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n";
    let named = ConnectionNamed::of(sent);
    for lines in [passed.towards(false), passed.towards(true)] {
        let head = [BEGIN, lines, b"\r\n"].concat();
        let mut read = ParsedRequest::default();
        let parsed = read.parse(&mut BytesMut::from(&head[..]));
        assert_eq!(parsed.ok(), Some(true), "{}", head.escape_ascii());
        for (name, value) in read.fields.lines().skip(1) {
            let known = HeaderName::from_bytes(name).expect("it was read from a head");
            assert!(!is_reserved(&known) && !named.contains(name), "{known}");
            let mut values = sent.get_all(known.as_str());
            assert!(values.any(|sent| sent == value), "{known}");
        }
    }
}

/// Lines between nodes: of a forwarded request, and of its rejection. A head that is read means the same when it is written again.
pub fn heads_of_forwards(bytes: &[u8], _: usize) {
    let fields = |lines: &[u8]| {
        let head = [b"POST / HTTP/1.1\r\nhost: h\r\n", lines, b"\r\n"].concat();
        let mut read = ParsedRequest::default();
        let parsed = read.parse(&mut BytesMut::from(&head[..]));
        (parsed == Ok(true)).then_some(read.fields)
    };
    let Some(lines) = fields(bytes) else { return };
    if let Ok(head) = ForwardedHead::read(&lines) {
        let mut written = BytesMut::new();
        head.write(&mut written);
        let again = fields(&written).expect("written as a head");
        assert_eq!(ForwardedHead::read(&again), Ok(head));
    }
    if let Ok(Some(rejection)) = ForwardRejection::read(&lines) {
        let written: String = rejection
            .lines()
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let again = fields(written.as_bytes()).expect("written as a head");
        assert_eq!(ForwardRejection::read(&again), Ok(Some(rejection)));
    }
}

/// Datagrams between nodes: none is read without its signature, and the message of a signed one is read to its end.
pub fn datagrams_of_gossip(bytes: &[u8], _: usize) {
    check_gossip_datagram(bytes);
}

/// Keys and values that other nodes publish: what is read means what is written again.
pub fn values_of_gossip(bytes: &[u8], _: usize) {
    check_gossip_value(&String::from_utf8_lossy(bytes));
}
