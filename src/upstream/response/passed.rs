//! Answers of the APIs whose bodies pass: JSON, bytes of a sound, or events with a type of their own.
//!
//! No byte is changed. Read on the way are usage, the seconds of a sound and the number of images. The end of a stream
//! is an event of its own, in place of an end mark. Events over
//! [`EVENT_BYTES_MAX`](infergate_core::api::sse::EVENT_BYTES_MAX), such as images, pass in pieces.

use bytes::BytesMut;
use infergate_core::api::Call;
use infergate_core::api::passed::PassedApi;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::sse::{self, EventPart, EventSplitter};
use infergate_core::billing::Usage;
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::body_kind::BodyKind;
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, expects_events,
};
use super::error::ResponseError;
use super::openai::{Chunk, failure};
use super::stats::{ResponseStats, StreamEnd};

const AUDIO_SECONDS: &str = "audio_seconds";
const OUTPUT_IMAGES: &str = "output_images";

/// First bytes of a long event in which its name stands and its data begin.
const DATA_WITHIN_BYTES: usize = 512;

/// Members that hold an image of a whole answer.
const IMAGE_MARKS: [&[u8]; 2] = [b"\"b64_json\"", b"\"url\""];

/// Decoder of answers that pass.
pub struct PassedAnswer {
    api: PassedApi,
    expects_events: bool,
    /// Images of a whole answer, else 1.
    choices: u32,
    body: PassedForm,
}

enum PassedForm {
    Bytes,
    Json(Box<JsonAnswer>),
    Events(Box<TypedEvents>),
}

impl PassedAnswer {
    /// A decoder of the answer to `call`.
    pub fn decoder(call: &Call, api: PassedApi) -> Box<dyn ResponseDecoder> {
        Box::new(PassedAnswer {
            api,
            expects_events: expects_events(call),
            choices: match api {
                PassedApi::Images => call.choices,
                _ => 1,
            },
            body: PassedForm::Bytes,
        })
    }
}

impl ResponseDecoder for PassedAnswer {
    fn head(&mut self, head: &DecoderHead<'_, '_>, _: &mut DecoderContext<'_>) -> Body {
        let kind = match head.content_type {
            b"" => BodyKind::expected(self.expects_events),
            _ => head.kind,
        };
        let (body, mode) = match kind {
            BodyKind::Events => {
                let events = TypedEvents::new(self.api, self.choices);
                (PassedForm::Events(Box::new(events)), BodyMode::Events)
            }
            BodyKind::Json => {
                let answer = JsonAnswer::new(self.api);
                let mode = BodyMode::Json { is_unchanged: true };
                (PassedForm::Json(Box::new(answer)), mode)
            }
            BodyKind::Other => (PassedForm::Bytes, BodyMode::Bytes),
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
        match &mut self.body {
            PassedForm::Bytes => {
                cx.stats.token = true;
                Ok(PushOutput::First(chunk.len()))
            }
            PassedForm::Json(answer) => {
                answer.read(chunk, cx.stats);
                Ok(PushOutput::First(chunk.len()))
            }
            PassedForm::Events(events) => events.push(chunk, cx.stats, out),
        }
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        match &mut self.body {
            PassedForm::Events(events) => events.finish(cx.stats, out),
            PassedForm::Bytes | PassedForm::Json(_) => Ok(()),
        }
    }
}

/// A whole answer in JSON as it passes.
struct JsonAnswer {
    api: PassedApi,
    usage: MemberScanner,
    /// Seconds of the sound, as the verbose form of a transcription tells them.
    duration: Option<MemberScanner>,
    /// Images so far by each of [`IMAGE_MARKS`]: one may have both.
    images: [u32; 2],
    /// Last bytes of the chunk before, in which a mark may have begun.
    tail: Vec<u8>,
}

impl JsonAnswer {
    fn new(api: PassedApi) -> JsonAnswer {
        let has_sound = matches!(api, PassedApi::Transcriptions | PassedApi::Translations);
        JsonAnswer {
            api,
            usage: MemberScanner::new("usage").watching("error"),
            duration: has_sound.then(|| MemberScanner::new("duration")),
            images: [0; 2],
            tail: Vec::new(),
        }
    }

    fn read(&mut self, chunk: &[u8], stats: &mut ResponseStats) {
        stats.token = true;
        if let Some(usage) = self.usage.push(chunk) {
            read_usage(self.api, usage, stats);
        }
        stats.names_error = self.usage.has_watched();
        if let Some(duration) = &mut self.duration
            && let Some(seconds) = duration.push(chunk).and_then(seconds)
        {
            stats.measure(AUDIO_SECONDS, seconds);
        }
        if self.api == PassedApi::Images {
            self.count_images(chunk);
            let images = self.images[0].max(self.images[1]);
            if images > 0 {
                stats.measure(OUTPUT_IMAGES, images.into());
            }
        }
        stats.keep_whole(chunk);
    }

    /// Counts the marks that this chunk completes. Base64 has no quotes, and those of a text are escaped.
    fn count_images(&mut self, chunk: &[u8]) {
        for (count, mark) in self.images.iter_mut().zip(IMAGE_MARKS) {
            let kept = self.tail.len().min(mark.len() - 1);
            let before = &self.tail[self.tail.len() - kept..];
            let seam = [before, &chunk[..chunk.len().min(mark.len() - 1)]].concat();
            *count += memmem::find_iter(&seam, mark).count() as u32;
            *count += memmem::find_iter(chunk, mark).count() as u32;
        }
        let longest = IMAGE_MARKS[0].len() - 1;
        self.tail
            .extend_from_slice(&chunk[chunk.len().saturating_sub(longest)..]);
        let surplus = self.tail.len().saturating_sub(longest);
        self.tail.drain(..surplus);
    }
}

/// An event, as far as it is read.
#[derive(Deserialize)]
struct TypedEvent<'a> {
    r#type: Option<String>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponseObject<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

/// Meaning of an event by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventRole {
    Piece,
    /// An output is complete.
    Last,
    Failed,
}

impl EventRole {
    fn of(kind: &str) -> EventRole {
        match kind {
            "image_generation.completed"
            | "speech.audio.done"
            | "transcript.text.done"
            | "response.completed"
            | "response.incomplete" => EventRole::Last,
            "error" | "response.failed" => EventRole::Failed,
            _ => EventRole::Piece,
        }
    }
}

/// A stream of events as it passes.
struct TypedEvents {
    api: PassedApi,
    splitter: EventSplitter,
    /// Outputs that are not complete.
    left: u32,
    /// Events have a type, so that there is one for the end.
    is_typed: bool,
    long: Option<LongEvent>,
}

/// An event that passes in pieces. Its type may stand before or behind what makes it long.
struct LongEvent {
    /// Its `type`, or its name until that has come.
    kind: Option<String>,
    types: MemberScanner,
    usage: MemberScanner,
}

impl LongEvent {
    /// An event by its first bytes.
    fn new(first: &[u8]) -> LongEvent {
        LongEvent {
            kind: sse::name(first).map(str::to_owned),
            types: MemberScanner::new("type"),
            usage: MemberScanner::new("usage").within("response"),
        }
    }

    /// Reads on in its data. Returns a usage that has become whole.
    fn read<'a>(&'a mut self, data: &'a [u8]) -> Option<&'a [u8]> {
        let kind = self.types.push(data);
        let kind = kind.and_then(|json| serde_json::from_slice::<String>(json).ok());
        self.kind = kind.or(self.kind.take());
        self.usage.push(data)
    }
}

impl TypedEvents {
    fn new(api: PassedApi, outputs: u32) -> TypedEvents {
        TypedEvents {
            api,
            splitter: EventSplitter::default(),
            left: outputs,
            is_typed: false,
            long: None,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        stats: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        let mut splitter = std::mem::take(&mut self.splitter);
        let mut failed = None;
        splitter.push_parts(chunk, &mut |part| {
            let begins = !matches!(part, EventPart::Piece { begins: false, .. });
            if begins && let Err(error) = self.end_long(stats) {
                failed = Some(error);
            }
            if failed.is_some() || stats.end != StreamEnd::Open {
                return;
            }
            match part {
                EventPart::Event(event) => match self.look(event, stats) {
                    Ok(()) => out.extend_from_slice(event),
                    Err(error) => failed = Some(error),
                },
                EventPart::Piece { bytes, begins } => {
                    self.look_at_piece(bytes, begins, stats);
                    out.extend_from_slice(bytes);
                }
            }
        });
        stats.is_in_long_event = splitter.is_in_long_event();
        self.splitter = splitter;
        if !stats.is_in_long_event && failed.is_none() {
            self.end_long(stats)?;
        }
        failed.map_or(Ok(PushOutput::Out), Err)
    }

    /// Reads a whole event.
    fn look(&mut self, event: &[u8], stats: &mut ResponseStats) -> Result<(), ResponseError> {
        let Some(data) = sse::data(event) else {
            return Ok(());
        };
        if sse::is_done(&data) {
            stats.end = StreamEnd::Complete;
            return Ok(());
        }
        // What cannot be read is the client's to judge: it is passed, as a proxy does.
        let Ok(typed) = serde_json::from_slice::<TypedEvent<'_>>(&data) else {
            return Ok(());
        };
        let kind = typed.r#type.as_deref().or(sse::name(event));
        let Some(kind) = kind else {
            return look_at_chunk(&data, stats);
        };
        self.is_typed = true;
        stats.token = true;
        let role = EventRole::of(kind);
        if role == EventRole::Failed {
            return Err(typed.error.map_or(ResponseError::BackendFailed, failure));
        }
        if let Some(delta) = typed.delta {
            stats.generated(delta);
        }
        let response = typed.response.map(RawValue::get);
        let response =
            response.and_then(|json| serde_json::from_str::<ResponseObject<'_>>(json).ok());
        let usage = typed.usage.or(response.and_then(|response| response.usage));
        if let Some(usage) = usage {
            read_usage(self.api, usage.get().as_bytes(), stats);
        }
        if role == EventRole::Last {
            self.complete_output(stats);
        }
        Ok(())
    }

    /// Reads a piece of an event over the bound.
    fn look_at_piece(&mut self, bytes: &[u8], begins: bool, stats: &mut ResponseStats) {
        stats.token = true;
        let mut rest = bytes;
        if begins {
            let first = &bytes[..bytes.len().min(DATA_WITHIN_BYTES)];
            self.long = Some(LongEvent::new(first));
            let data = memmem::find(first, b"data:").map_or(0, |at| at + b"data:".len());
            rest = &bytes[data..];
        }
        if let Some(long) = &mut self.long
            && let Some(usage) = long.read(rest)
        {
            read_usage(self.api, usage, stats);
        }
    }

    /// Ends an event that has passed in pieces.
    ///
    /// # Errors
    /// The event says that the server has failed.
    fn end_long(&mut self, stats: &mut ResponseStats) -> Result<(), ResponseError> {
        let Some(kind) = self.long.take().and_then(|long| long.kind) else {
            return Ok(());
        };
        self.is_typed = true;
        match EventRole::of(&kind) {
            EventRole::Piece => {}
            EventRole::Last => self.complete_output(stats),
            EventRole::Failed => return Err(ResponseError::BackendFailed),
        }
        Ok(())
    }

    /// Counts an output; the stream is complete with the last one.
    fn complete_output(&mut self, stats: &mut ResponseStats) {
        self.left = self.left.saturating_sub(1);
        if self.api == PassedApi::Images {
            let images = stats.measured(OUTPUT_IMAGES).unwrap_or(0.0);
            stats.measure(OUTPUT_IMAGES, images + 1.0);
        }
        if self.left == 0 {
            stats.end = StreamEnd::Complete;
        }
    }

    /// The server has ended its answer in good order. A stream whose events have types lacks its end here.
    fn finish(
        &mut self,
        stats: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        // Some servers leave out the last blank line.
        if !self.splitter.held().trim_ascii().is_empty() {
            let _ = self.push(b"\n\n", stats, out)?;
        }
        match stats.end != StreamEnd::Complete && self.is_typed {
            true => Err(ResponseError::EndedEarly),
            false => Ok(()),
        }
    }
}

/// Reads an event without a type: a chunk, as some servers stream transcriptions.
fn look_at_chunk(data: &[u8], stats: &mut ResponseStats) -> Result<(), ResponseError> {
    let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
        return Ok(());
    };
    if let Some(error) = chunk.error {
        return Err(failure(error));
    }
    stats.token |= chunk.count(stats);
    let usage = chunk.usage.map(|usage| usage.get().as_bytes());
    stats.report(usage.and_then(Usage::from_openai));
    Ok(())
}

/// Takes what a `usage` says: tokens, and of a transcription the seconds of its sound.
fn read_usage(api: PassedApi, json: &[u8], stats: &mut ResponseStats) {
    #[derive(Deserialize)]
    struct OtherUsage {
        seconds: Option<f64>,
        total_tokens: Option<u64>,
    }
    let tokens = Usage::from_openai(json);
    stats.report(tokens);
    let Ok(other) = serde_json::from_slice::<OtherUsage>(json) else {
        return;
    };
    match api {
        PassedApi::Transcriptions | PassedApi::Translations => {
            if let Some(seconds) = other.seconds {
                stats.measure(AUDIO_SECONDS, seconds);
            }
        }
        // All tokens of a rerank are of its input.
        PassedApi::Rerank if tokens.is_none() => {
            stats.report(other.total_tokens.map(|input_tokens| Usage {
                input_tokens,
                ..Usage::default()
            }));
        }
        _ => {}
    }
}

/// A duration in seconds: a number, or a text of one as some servers write it.
fn seconds(json: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(json).ok()?;
    text.trim_matches('"').parse().ok()
}
