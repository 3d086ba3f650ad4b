//! A stream passed on event by event, with an eye on usage, errors and the end mark.
//!
//! Events are parsed only where needed: once a token has come, an event with text in the same place
//! has more of it, unless it names `usage` or `error`. A half event is held back, so that a broken
//! stream can still end in a well-formed error event. An event over [`sse::EVENT_BYTES_MAX`] passes
//! unread, in pieces as they come.

use std::sync::LazyLock;

use bytes::BytesMut;
use infergate_core::api::Call;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::sse::{self, EventPart, EventSplitter};
use infergate_core::billing::{TextCount, Usage};
use memchr::memmem::Finder;

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::client_error::is_error_body;
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect,
    end_of_events, expects_events, json_value, usage_in, without_bom,
};
use super::error::ResponseError;
use super::model_name::ModelNameRewriter;
use super::openai::{Chunk, failure};
use super::stats::{ResponseStats, StreamEnd};
use super::task_transform::TaskTransform;

/// Built once: building a finder costs more than one search.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static FINISH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// Keys of generated text, in each kind of stream.
static TEXTS: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    [
        "\"content\":",
        "\"text\":",
        "\"response\":",
        "\"reasoning_content\":",
        "\"reasoning\":",
    ]
    .map(Finder::new)
});

/// The stream so far.
#[derive(Debug, Default)]
pub(super) struct PassedEvents {
    splitter: EventSplitter,
    /// Every event is held whole, for a task that reads it.
    is_shaped: bool,
}

impl PassedEvents {
    /// The events of a response; held whole where a task or a translation reads them.
    pub(super) fn for_context(cx: &DecoderContext<'_>) -> PassedEvents {
        let task = cx.task.as_deref();
        match cx.is_translated || task.is_some_and(TaskTransform::shapes_events) {
            true => PassedEvents {
                splitter: EventSplitter::with_limit(RESPONSE_BYTES_MAX),
                is_shaped: true,
            },
            false => PassedEvents::default(),
        }
    }

    /// Bytes of the event that has not come to its end.
    pub(super) fn held(&self) -> &[u8] {
        self.splitter.held()
    }

    /// Ends the stream; `is_whole` says whether one without the end mark is complete.
    pub(super) fn finish(
        &mut self,
        is_whole: bool,
        hides_usage: bool,
        name: Option<&ModelNameRewriter>,
        stats: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        if self.splitter.is_in_long_event() {
            return Err(ResponseError::EndedEarly);
        }
        let end = end_of_events(self.held(), is_whole)?;
        if self.push(end, hides_usage, name, stats, out)? == PushOutput::Whole {
            out.extend_from_slice(end);
        }
        Ok(())
    }

    pub(super) fn push(
        &mut self,
        chunk: &[u8],
        hides_usage: bool,
        named: Option<&ModelNameRewriter>,
        seen: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        // As long as every event of the chunk passes, `passed` counts them and nothing is copied.
        let mut passed = 0;
        let mut copying = named.is_some() || !self.splitter.held().is_empty();
        let mut failed = None;
        let is_shaped = self.is_shaped;
        self.splitter.push_parts(chunk, &mut |part| {
            let is_whole = matches!(part, EventPart::Event(_));
            let (event, verdict) = match part {
                EventPart::Event(event) | EventPart::Piece { bytes: event, .. }
                    if failed.is_some() =>
                {
                    (event, Ok(EventVerdict::Drop))
                }
                EventPart::Event(event) => (event, look(event, hides_usage, seen)),
                EventPart::Piece { bytes, .. } if is_shaped => {
                    (bytes, Err(ResponseError::EventTooLong))
                }
                EventPart::Piece { bytes, begins } => (bytes, Ok(pass_unread(bytes, begins, seen))),
            };
            let verdict = verdict.unwrap_or_else(|error| {
                failed = Some(error);
                EventVerdict::Drop
            });
            match (verdict, copying) {
                (EventVerdict::Pass, true) => match named.filter(|_| is_whole) {
                    Some(named) => named.event(event, out),
                    None => out.extend_from_slice(event),
                },
                (EventVerdict::Pass, false) => passed += event.len(),
                (_, true) => {}
                (_, false) => {
                    out.extend_from_slice(&chunk[..passed]);
                    copying = true;
                }
            }
        });
        seen.is_in_long_event = self.splitter.is_in_long_event();
        if !copying && passed == chunk.len() {
            return Ok(PushOutput::Whole);
        }
        if !copying {
            out.extend_from_slice(&chunk[..passed]);
        }
        failed.map_or(Ok(PushOutput::Out), Err)
    }
}

/// Decoder of responses in the client's own dialect.
pub struct Passthrough {
    body: PassedBody,
    /// Events are expected, where the head does not say.
    expects_events: bool,
    /// The usage chunk was requested by the gateway, so the client must not see it.
    hides_usage: bool,
    /// Choices that a whole stream has.
    choices: u32,
    /// Name of the model for the client, where that is not the server's word.
    name: Option<ModelNameRewriter>,
}

enum PassedBody {
    Json(MemberScanner),
    Events(PassedEvents),
    /// A whole response that the task changes.
    Collected {
        body: BytesMut,
        content_type: String,
    },
}

impl Passthrough {
    /// A decoder of the response to `call`.
    pub fn decoder(call: &Call) -> Box<dyn ResponseDecoder> {
        Box::new(Passthrough {
            body: PassedBody::Json(MemberScanner::new("usage")),
            expects_events: expects_events(call),
            hides_usage: call.stream && !call.usage_requested,
            choices: call.choices,
            name: None,
        })
    }
}

impl ResponseDecoder for Passthrough {
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body {
        let (body, mode) = match head.kind.or_expected(self.expects_events) {
            BodyKind::Events => {
                let events = PassedEvents::for_context(cx);
                (PassedBody::Events(events), BodyMode::Events)
            }
            _ if cx.shapes_results() || cx.is_translated => {
                let body = PassedBody::Collected {
                    body: BytesMut::new(),
                    content_type: String::from_utf8_lossy(head.content_type).into_owned(),
                };
                (body, BodyMode::Collected)
            }
            _ => {
                let mode = BodyMode::Json {
                    is_unchanged: self.name.is_none(),
                };
                (PassedBody::Json(MemberScanner::new("usage")), mode)
            }
        };
        self.body = body;
        Body {
            mode,
            keeps_content_type: true,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        let stats = &mut *cx.stats;
        match &mut self.body {
            PassedBody::Json(scan) => {
                stats.token = true;
                stats.keep_whole(chunk);
                scan.push(chunk);
                if let Some(usage) = scan.take_value() {
                    stats.usage = Usage::from_openai(usage);
                }
                match self.name.as_mut().is_none_or(|name| name.take(chunk, out)) {
                    true => Ok(PushOutput::Whole),
                    false => Ok(PushOutput::Out),
                }
            }
            PassedBody::Events(events) => {
                events.push(chunk, self.hides_usage, self.name.as_ref(), stats, out)
            }
            PassedBody::Collected { body, .. } => collect(chunk, body, stats),
        }
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        match &mut self.body {
            PassedBody::Json(_) => {
                if let Some(name) = &mut self.name {
                    name.finish(out);
                }
                Ok(())
            }
            PassedBody::Events(events) => {
                let stats = &mut *cx.stats;
                let is_blank = events.held().trim_ascii().is_empty();
                // Some servers forget the end mark: what every choice has ended is whole.
                let is_whole = is_blank && stats.is_finished(self.choices);
                events.finish(is_whole, self.hides_usage, self.name.as_ref(), stats, out)
            }
            PassedBody::Collected { body, content_type } => {
                let body = without_bom(body);
                if is_error_body(body) {
                    return Err(ResponseError::BackendFailed);
                }
                cx.stats.usage = usage_in(body);
                let shaped = cx.shape(content_type, body)?;
                let result = json_value(shaped.as_deref().unwrap_or(body))?;
                // The server's own count is of its own text.
                cx.stats.keep_whole(body);
                let Some(name) = &mut self.name else {
                    out.extend_from_slice(result);
                    return Ok(());
                };
                // Nothing was taken before, so a long result is written at once.
                name.take(result, out);
                name.finish(out);
                Ok(())
            }
        }
    }

    fn rename_model(&mut self, name: ModelNameRewriter) {
        self.name = Some(name);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventVerdict {
    Pass,
    Drop,
}

/// Returns whether the client sees this piece of an event over the bound. Unless it is a comment,
/// it is taken for something generated that counts nothing.
fn pass_unread(piece: &[u8], begins: bool, seen: &mut ResponseStats) -> EventVerdict {
    if seen.end != StreamEnd::Open {
        return EventVerdict::Drop;
    }
    seen.token |= begins && !piece.starts_with(b":");
    EventVerdict::Pass
}

/// Returns whether the client sees this event, after reading usage, errors and the end mark from
/// it.
fn look(
    event: &[u8],
    hides_usage: bool,
    seen: &mut ResponseStats,
) -> Result<EventVerdict, ResponseError> {
    if seen.end != StreamEnd::Open {
        return Ok(EventVerdict::Drop);
    }
    let Some(data) = sse::data(event) else {
        return Ok(EventVerdict::Pass);
    };
    if sse::is_done(&data) {
        seen.end = StreamEnd::Complete;
        return Ok(EventVerdict::Pass);
    }
    let names = |finder: &Finder<'_>| {
        let at = finder.find(&data);
        at.is_some_and(|at| !is_null(&data[at + finder.needle().len()..]))
    };
    let quiet = seen.output.is_none() && !names(&USAGE) && !names(&FINISH) && !names(&ERROR);
    if quiet
        && let Some(place) = seen.text_place
        && count_texts(&data, place, &mut seen.text)
    {
        return Ok(EventVerdict::Pass);
    }
    // What cannot be read is the client's to judge: it is passed, as a proxy does.
    let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(&data) else {
        return Ok(EventVerdict::Pass);
    };
    if let Some(error) = chunk.error {
        return Err(failure(error));
    }
    if chunk.count(seen) {
        seen.token = true;
        seen.text_place = (0..TEXTS.len()).find(|place| has_text(&data, *place));
    }
    let usage = chunk
        .usage
        .and_then(|usage| Usage::from_openai(usage.get().as_bytes()));
    seen.report(usage);
    let only_usage =
        chunk.usage.is_some() && chunk.choices.is_some_and(|choices| choices.is_empty());
    Ok(match only_usage && hides_usage {
        true => EventVerdict::Drop,
        false => EventVerdict::Pass,
    })
}

/// Returns whether a text that is not empty stands at this place. A text that only speaks of such a
/// place has its quotes escaped.
fn has_text(data: &[u8], place: usize) -> bool {
    let finder = &TEXTS[place];
    finder.find(data).is_some_and(|at| {
        let value = data[at + finder.needle().len()..].trim_ascii_start();
        matches!(value, [b'"', first, ..] if *first != b'"')
    })
}

/// Counts every text at this place, one for each choice; whether there is any that is not empty.
fn count_texts(data: &[u8], place: usize, count: &mut TextCount) -> bool {
    let finder = &TEXTS[place];
    let mut rest = data;
    let mut found = false;
    while let Some(at) = finder.find(rest) {
        rest = rest[at + finder.needle().len()..].trim_ascii_start();
        let Some(text) = rest.strip_prefix(b"\"") else {
            continue;
        };
        let Some(end) = text_end(text) else { break };
        match std::str::from_utf8(&text[..end]) {
            Ok(plain) if !plain.contains('\\') => count.push(plain),
            _ => match serde_json::from_slice::<String>(&rest[..end + 2]) {
                Ok(plain) => count.push(&plain),
                Err(_) => break,
            },
        }
        found |= end > 0;
        rest = &text[end..];
    }
    found
}

/// Length of a JSON string behind its opening quote.
fn text_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        match text[at] {
            b'"' => return Some(at),
            // Whatever is escaped is no end.
            _ => at += 2,
        }
    }
}

/// Returns whether `: null` follows: many servers put that into every chunk.
fn is_null(after_name: &[u8]) -> bool {
    let value = after_name.trim_ascii_start().strip_prefix(b":");
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"null"))
}
