//! A stream passed on event by event, with an eye on usage, errors and the end mark.
//!
//! Events are parsed only where needed: once a token has come, an event with text in the same place
//! has more of it, unless it names `usage` or `error`. One that differs from such an event in its text alone is not
//! even searched ([`EventTemplate`]). A half event is held back, so that a broken
//! stream can still end in a well-formed error event. An event over [`sse::EVENT_BYTES_MAX`] passes
//! unread, in pieces as they come.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::BytesMut;
use infergate_core::api::Call;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::sse::{self, EventPart, EventSplitter};
use infergate_core::billing::Usage;
use memchr::memmem::Finder;

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::client_error::{ERROR, is_error_body};
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect,
    end_of_events, expects_events, json_value, usage_in, without_bom,
};
use super::error::ResponseError;
use super::event_template::EventTemplate;
use super::event_text::{count_texts, place_of_text};
use super::model_name::ModelNameRewriter;
use super::openai::{Chunk, failure};
use super::stats::{ResponseStats, StreamEnd};
use super::task_transform::TaskTransform;

/// Built once: building a finder costs more than one search.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static FINISH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));

/// The stream so far.
#[derive(Debug, Default)]
pub(super) struct PassedEvents {
    splitter: EventSplitter,
    template: EventTemplate,
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
                ..PassedEvents::default()
            },
            false => PassedEvents::default(),
        }
    }

    /// Bytes of the event that has not come to its end.
    pub(super) fn held(&self) -> &[u8] {
        self.splitter.held()
    }

    /// Returns whether `event` has the form of an earlier one.
    #[cfg(test)]
    pub(super) fn knows(&self, event: &[u8], seen: &ResponseStats) -> bool {
        let mut count = seen.text;
        let known = self.template.recognize(event, seen.text_place, &mut count);
        known.is_some()
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
        if let PushOutput::First(len) = self.push(end, hides_usage, name, stats, out)? {
            out.extend_from_slice(&end[..len]);
        }
        Ok(())
    }

    pub(super) fn push(
        &mut self,
        chunk: &[u8],
        hides_usage: bool,
        name: Option<&ModelNameRewriter>,
        seen: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        let is_shaped = self.is_shaped;
        let template = &mut self.template;
        let is_between = self.splitter.is_between_events();
        let mut passed = PassedChunk {
            chunk,
            first: 0,
            has_dropped: false,
            copies: name.is_some() || !self.splitter.held().is_empty(),
            out,
        };
        let mut rest = chunk;
        while is_between && let Some(len) = pass_known(rest, template, name, seen, &mut passed) {
            rest = &rest[len..];
        }
        if rest.is_empty() {
            return Ok(passed.output());
        }
        let mut failed = None;
        self.splitter.push_parts(rest, &mut |part| {
            let verdict = match part {
                _ if failed.is_some() => return,
                EventPart::Event(event) => {
                    if pass_known(event, template, name, seen, &mut passed).is_some() {
                        return;
                    }
                    look(event, hides_usage, seen, (template, name))
                }
                EventPart::Piece { .. } if is_shaped => Err(ResponseError::EventTooLong),
                EventPart::Piece { bytes, begins } => Ok(pass_unread(bytes, begins, seen)),
            };
            match (verdict, part) {
                (Ok(EventVerdict::Pass), EventPart::Event(event)) => passed.pass(event, name),
                (Ok(EventVerdict::Pass), EventPart::Piece { bytes, .. }) => {
                    passed.pass(bytes, None)
                }
                (Ok(EventVerdict::Drop), _) => passed.has_dropped = true,
                (Err(error), _) => failed = Some(error),
            }
        });
        seen.is_in_long_event = self.splitter.is_in_long_event();
        match failed {
            Some(error) => {
                passed.copy();
                Err(error)
            }
            None => Ok(passed.output()),
        }
    }
}

/// Events of one chunk that pass: its first bytes as they are, until an event is not the next piece of them.
struct PassedChunk<'a> {
    chunk: &'a [u8],
    /// First bytes of the chunk that pass.
    first: usize,
    /// Bytes after the first ones do not pass.
    has_dropped: bool,
    /// Passed bytes are appended to `out`.
    copies: bool,
    out: &'a mut BytesMut,
}

impl PassedChunk<'_> {
    /// Passes the next event, or a piece of one, under another name of its model where there is one.
    fn pass(&mut self, event: &[u8], name: Option<&ModelNameRewriter>) {
        if self.has_dropped {
            self.copy();
        }
        match (self.copies, name) {
            (false, _) => self.first += event.len(),
            (true, Some(name)) => name.event(event, self.out),
            (true, None) => self.out.extend_from_slice(event),
        }
    }

    /// Appends to `out` from now on, beginning with what has passed.
    fn copy(&mut self) {
        if !std::mem::replace(&mut self.copies, true) {
            self.out.extend_from_slice(&self.chunk[..self.first]);
        }
    }

    fn output(self) -> PushOutput {
        match self.copies || self.first == 0 {
            true => PushOutput::Out,
            false => PushOutput::First(self.first),
        }
    }
}

/// Passes the event at the start of `bytes` if it has the form of an earlier one, and returns its length.
fn pass_known(
    bytes: &[u8],
    template: &EventTemplate,
    name: Option<&ModelNameRewriter>,
    seen: &mut ResponseStats,
    passed: &mut PassedChunk<'_>,
) -> Option<usize> {
    if seen.end != StreamEnd::Open || seen.output.is_some() {
        return None;
    }
    let event = template.recognize(bytes, seen.text_place, &mut seen.text)?;
    match name {
        Some(_) => template.write(event, passed.out),
        None => passed.pass(&bytes[..event.len], None),
    }
    Some(event.len)
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
            body: PassedBody::Json(json_scanner()),
            expects_events: expects_events(call),
            hides_usage: call.stream && !call.usage_requested,
            choices: call.choices,
            name: None,
        })
    }
}

/// Scanner of a whole response: its usage, and whether it names an error.
fn json_scanner() -> MemberScanner {
    MemberScanner::new("usage").watching("error")
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
                (PassedBody::Json(json_scanner()), mode)
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
                if let Some(usage) = scan.push(chunk) {
                    stats.usage = Usage::from_openai(usage);
                }
                stats.names_error = scan.has_watched();
                let has_output = stats.usage.is_some_and(|usage| usage.output_tokens > 0);
                // An object that has ended with its usage needs no count of its text.
                if stats.output.is_some() || !(has_output && scan.is_over()) {
                    stats.keep_whole(chunk);
                }
                match self.name.as_mut().is_none_or(|name| name.take(chunk, out)) {
                    true => Ok(PushOutput::First(chunk.len())),
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
/// it. The form of one that only adds a text is kept.
fn look(
    event: &[u8],
    hides_usage: bool,
    seen: &mut ResponseStats,
    (template, name): (&mut EventTemplate, Option<&ModelNameRewriter>),
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
    if let Some(place) = seen.text_place
        && seen.output.is_none()
        && is_quiet(&data)
    {
        let counted = count_texts(&data, place, &mut seen.text);
        if let (Cow::Borrowed(data), Some(text)) = (&data, counted.only) {
            let at = data.as_ptr() as usize - event.as_ptr() as usize;
            template.learn(event, at + text.start..at + text.end, place, name);
        }
        if counted.has_text {
            return Ok(EventVerdict::Pass);
        }
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
        seen.text_place = place_of_text(&data);
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

/// Returns whether an event names neither usage nor an end nor an error.
fn is_quiet(data: &[u8]) -> bool {
    let names = |finder: &Finder<'_>| {
        let at = finder.find(data);
        at.is_some_and(|at| !is_null(&data[at + finder.needle().len()..]))
    };
    !names(&USAGE) && !names(&FINISH) && !names(&ERROR)
}

/// Returns whether `: null` follows: many servers put that into every chunk.
fn is_null(after_name: &[u8]) -> bool {
    let value = after_name.trim_ascii_start().strip_prefix(b":");
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"null"))
}
