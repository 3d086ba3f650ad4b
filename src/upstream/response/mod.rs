//! A backend's response on its way to the client: passed on, converted to another dialect, or
//! shaped by the model's task.
//!
//! Bytes in, bytes out: no socket and no clock. Per response it holds at most one event of
//! [`sse::EVENT_BYTES_MAX`]; where a response or an event is converted or shaped by the task,
//! [`RESPONSE_BYTES_MAX`]. The pipeline calls [`ResponseTransformer::begin`] once with the 2xx head,
//! [`ResponseTransformer::push`] for each chunk, then [`ResponseTransformer::finish`]. After any error, or instead, it calls
//! [`ResponseTransformer::abort`]; and [`ResponseTransformer::close`] in every case. A model's task sees what is in the
//! Workers AI dialect, and in the OpenAI dialect where the operator has configured that it knows such
//! responses.

mod body_kind;
mod bounds;
mod client_error;
mod convert;
mod error;
mod mode;
mod model_name;
mod openai;
mod output_sample;
mod passthrough;
mod reported_metrics;
mod stats;
mod task_transform;
#[cfg(test)]
mod tests;
mod whole_body;

use std::borrow::Cow;

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::dialect::ResponseTranslator;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::{ApiDialect, Call, Operation, render, sse, workers_ai};
use infergate_core::billing::{Metrics, Usage};
use infergate_core::model::{ModelInAnswers, ModelSpec, Task, Trust};

pub use bounds::RESPONSE_BYTES_MAX;
pub use client_error::is_error_body;
pub(super) use convert::{Delta, FormatDecoder, no_events, write_rows};
pub use error::ResponseError;
pub(super) use openai::{OPENAI_EMBEDDINGS, OPENAI_TEXT};
pub use output_sample::SAMPLE_BYTES_MAX;
pub use reported_metrics::ReportedMetrics;

use body_kind::{BodyKind, EVENT_STREAM, JSON};
use mode::{BodyMode, ResponseSource, body_mode};
use model_name::ModelNameRewriter;
use reported_metrics::MetricModes;
use stats::{ResponseStats, StreamEnd};
use task_transform::TaskTransform;

use crate::plugin::TaskSession;
use crate::telemetry::event::PluginUse;

/// Bytes that the backend gave no name.
const UNNAMED: &[u8] = b"application/octet-stream";

/// Bytes to send to the client after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PushOutput {
    /// The chunk itself, unchanged; nothing was appended to `out`.
    Whole,
    /// The bytes appended to `out`, if any.
    Out,
}

/// Response being read.
pub struct ResponseTransformer {
    face: ApiDialect,
    source: ResponseSource,
    /// The usage chunk was asked for by the gateway, so the client must not see it.
    hides_usage: bool,
    /// A whole response has generated text in it.
    has_text: bool,
    /// Choices that a whole stream has.
    choices: u32,
    /// Status of the head, 2xx.
    status: u16,
    mode: BodyMode,
    seen: ResponseStats,
    shaper: Option<TaskTransform>,
    /// The name of the model that it carries, where that is not the backend's word.
    named: Option<Box<ModelNameRewriter>>,
    /// Translation into a dialect that no backend writes.
    translator: Option<Box<dyn ResponseTranslator>>,
    neurons: Option<f64>,
    metrics: Vec<(String, f64)>,
}

impl ResponseTransformer {
    /// A response in the OpenAI shape: in the client's own dialect, or translated to it.
    pub(super) fn pass(call: &Call) -> ResponseTransformer {
        let hides_usage = call.stream && !call.usage_requested;
        let mut response = ResponseTransformer::new(call, ResponseSource::Pass, hides_usage);
        response.translator = call.dialect.rules().translator(call);
        response
    }

    /// A response converted for the Workers AI dialect.
    pub(super) fn run(call: &Call, reader: &'static FormatDecoder) -> ResponseTransformer {
        ResponseTransformer::new(call, ResponseSource::Run(reader), false)
    }

    /// A response of a plain HTTP server.
    pub(super) fn posted(call: &Call, task: Task) -> ResponseTransformer {
        let source = match task {
            Task::DumbPipe => ResponseSource::Pipe,
            _ => ResponseSource::Posted,
        };
        ResponseTransformer::new(call, source, false)
    }

    fn new(call: &Call, source: ResponseSource, hides_usage: bool) -> ResponseTransformer {
        // Until the head says what it is; embeddings have no streamed form.
        let streams = call.stream && call.operation != Operation::Embeddings;
        ResponseTransformer {
            face: call.dialect,
            source,
            hides_usage,
            choices: match source {
                ResponseSource::Run(_) => 1,
                ResponseSource::Pass | ResponseSource::Posted | ResponseSource::Pipe => {
                    call.choices
                }
            },
            has_text: call.operation != Operation::Embeddings,
            status: 200,
            mode: body_mode(source, BodyKind::expected(streams)),
            seen: ResponseStats::default(),
            shaper: None,
            named: None,
            translator: None,
            neurons: None,
            metrics: Vec::new(),
        }
    }

    /// The same answer, with the name of the model that `call` asked for where `model` wants that.
    pub fn with_model_name(mut self, call: &Call, model: &ModelSpec) -> ResponseTransformer {
        if model.model_in_answers == ModelInAnswers::Asked
            && matches!(self.source, ResponseSource::Pass)
        {
            self.named = ModelNameRewriter::of(call).map(Box::new);
        }
        self
    }

    /// The same answer, counted as `model` says its metrics are, and shaped by its task.
    pub fn for_model(
        mut self,
        model: &ModelSpec,
        session: Option<TaskSession>,
    ) -> ResponseTransformer {
        if !model.metrics.is_empty() {
            self.seen.modes = MetricModes::of(&model.metrics);
        }
        if model.metrics_trust != Trust::Trust {
            self.seen.output = Some(Box::default());
        }
        self.shaper = session.map(|session| TaskTransform::new(session, self.face));
        self
    }

    /// The head has arrived: settles by its content type, not by what was asked, how the body is
    /// read. `header` looks one up by its lower-case name.
    pub fn begin<'h>(&mut self, status: u16, header: impl Fn(&'static str) -> Option<&'h [u8]>) {
        self.status = status;
        let kind = match (
            BodyKind::from_content_type(header("content-type")),
            self.source,
        ) {
            (BodyKind::Other, ResponseSource::Pass | ResponseSource::Run(_)) => {
                BodyKind::expected(self.is_stream())
            }
            (kind, _) => kind,
        };
        self.mode = body_mode(self.source, kind);
        let content_type = header("content-type").unwrap_or_default();
        match self.source {
            ResponseSource::Posted => self.begin_posted(content_type),
            ResponseSource::Pass => self.begin_shaped(content_type),
            ResponseSource::Run(_) | ResponseSource::Pipe => {}
        }
        if let ResponseSource::Run(reader) = self.source
            && let Some(name) = reader.input_tokens_header
        {
            self.seen.usage = header(name).and_then(Usage::from_input_header);
        }
        let is_stream = self.is_stream();
        let mut reads_events = self.translator.is_some();
        if let Some(shaper) = &mut self.shaper {
            shaper.begin(is_stream);
            reads_events |= shaper.is_streaming();
        }
        if let (true, BodyMode::PassEvents(events)) = (reads_events, &mut self.mode) {
            *events = passthrough::PassedEvents::whole(RESPONSE_BYTES_MAX);
        }
    }

    /// A whole response is collected where the task or the dialect makes another of it.
    fn begin_shaped(&mut self, content_type: &[u8]) {
        let shapes = self
            .shaper
            .as_ref()
            .is_some_and(TaskTransform::shapes_answer);
        let is_collected = shapes || self.translator.is_some();
        if is_collected && matches!(self.mode, BodyMode::PassJson(_)) {
            self.mode = BodyMode::Posted {
                body: BytesMut::new(),
                content_type: String::from_utf8_lossy(content_type).into_owned(),
            };
        }
    }

    /// A text is collected as JSON is where the task makes a result of it.
    fn begin_posted(&mut self, told: &[u8]) {
        let told = String::from_utf8_lossy(told).into_owned();
        let is_text = told.trim_start().to_ascii_lowercase().starts_with("text/");
        let shapes = self
            .shaper
            .as_ref()
            .is_some_and(TaskTransform::shapes_answer);
        match &mut self.mode {
            BodyMode::Posted { content_type, .. } => *content_type = told,
            BodyMode::PassBytes if is_text && shapes => {
                self.mode = BodyMode::Posted {
                    body: BytesMut::new(),
                    content_type: told,
                };
            }
            _ => {}
        }
    }

    /// Reads the bill in the headers of the head, whose names are in lower case.
    pub fn read_billing_headers<'h>(&mut self, headers: impl Iterator<Item = (&'h str, &'h [u8])>) {
        (self.neurons, self.metrics) = reported_metrics::read_headers(headers);
    }

    /// Content type for the client: the backend's own where the bytes are the backend's.
    pub fn content_type<'h>(&self, upstream: Option<&'h [u8]>) -> &'h [u8] {
        match (&self.mode, self.source, upstream) {
            (BodyMode::PassBytes, _, None) => UNNAMED,
            (BodyMode::PassBytes | BodyMode::PassEvents(_), _, Some(kind))
            | (_, ResponseSource::Pass, Some(kind)) => kind,
            _ if self.is_stream() => EVENT_STREAM,
            _ => JSON,
        }
    }

    /// The bytes are looked into: they must not be compressed.
    pub fn inspects_body(&self) -> bool {
        !matches!(self.mode, BodyMode::PassBytes)
    }

    /// The client gets events.
    pub fn is_stream(&self) -> bool {
        matches!(self.mode, BodyMode::PassEvents(_) | BodyMode::RunEvents(_))
    }

    /// JSON of the client's own dialect, passed on as it comes.
    pub fn is_plain_json(&self) -> bool {
        matches!(self.mode, BodyMode::PassJson(_))
    }

    /// Every byte passes unchanged, so the backend's `Content-Length` holds for the client too.
    pub fn passes_length(&self) -> bool {
        match self.mode {
            BodyMode::PassJson(_) => self.named.is_none(),
            BodyMode::PassBytes => true,
            _ => false,
        }
    }

    /// [`ResponseTransformer::finish`] will append nothing and find nothing missing.
    pub fn ends_silently(&self) -> bool {
        self.passes_length() || self.seen.end == StreamEnd::Complete
    }

    /// No byte reaches the client before [`ResponseTransformer::finish`]. Until then a failure can still get a
    /// status, and the length is known before the head is sent.
    pub fn is_collected(&self) -> bool {
        matches!(self.mode, BodyMode::RunJson(_) | BodyMode::Posted { .. })
    }

    /// Reads a chunk. After an error, `out` holds what came before it and is still to be sent,
    /// followed by what [`ResponseTransformer::abort`] appends.
    pub fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<PushOutput, ResponseError> {
        if self.translator.is_none() || !self.is_stream() {
            return self.push_shaped(chunk, out);
        }
        let mut events = BytesMut::new();
        let pushed = self.push_shaped(chunk, &mut events);
        let events = match &pushed {
            Ok(PushOutput::Whole) => chunk,
            Ok(PushOutput::Out) | Err(_) => &events,
        };
        let estimate = self.generated_tokens();
        if let Some(translator) = &mut self.translator
            && translator.events(events, estimate, out).is_err()
        {
            // The end mark may have been among them, and does not reach the client.
            self.seen.end = StreamEnd::Open;
            return Err(ResponseError::Malformed);
        }
        pushed.map(|_| PushOutput::Out)
    }

    /// Reads a chunk and has the task shape its events.
    fn push_shaped(
        &mut self,
        chunk: &[u8],
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        if !self
            .shaper
            .as_ref()
            .is_some_and(TaskTransform::is_streaming)
        {
            return self.read(chunk, out);
        }
        let mut events = BytesMut::new();
        let read = self.read(chunk, &mut events);
        let events = match &read {
            Ok(PushOutput::Whole) => chunk,
            Ok(PushOutput::Out) | Err(_) => &events,
        };
        if let Some(shaper) = &mut self.shaper
            && let Err(error) = shaper.events(events, out)
        {
            // The end mark may have been among them, and does not reach the client.
            self.seen.end = StreamEnd::Open;
            return Err(error);
        }
        read.map(|_| PushOutput::Out)
    }

    fn read(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<PushOutput, ResponseError> {
        if chunk.is_empty() || self.seen.end != StreamEnd::Open {
            // Past its end mark a stream has nothing for the client.
            return Ok(PushOutput::Out);
        }
        match &mut self.mode {
            BodyMode::PassBytes | BodyMode::PassJson(_) => {
                self.seen.token = true;
                if self.has_text && matches!(self.mode, BodyMode::PassJson(_)) {
                    self.seen.output.get_or_insert_default();
                }
                self.seen.keep(chunk);
                if let BodyMode::PassJson(scan) = &mut self.mode {
                    scan.push(chunk);
                    if let Some(named) = &mut self.named
                        && !named.take(chunk, out)
                    {
                        return Ok(PushOutput::Out);
                    }
                }
                Ok(PushOutput::Whole)
            }
            BodyMode::PassEvents(events) => {
                let (hides_usage, named) = (self.hides_usage, self.named.as_deref());
                events.push(chunk, hides_usage, named, &mut self.seen, out)
            }
            BodyMode::RunJson(body) | BodyMode::Posted { body, .. } => {
                if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
                    return Err(ResponseError::ResponseTooLong);
                }
                self.seen.token = true;
                body.extend_from_slice(chunk);
                Ok(PushOutput::Out)
            }
            BodyMode::RunEvents(events) => {
                events.push(chunk, &mut self.seen, out)?;
                Ok(PushOutput::Out)
            }
        }
    }

    /// The backend has ended its response in good order: appends what was collected, or says what
    /// the response lacks.
    pub fn finish(&mut self, out: &mut BytesMut) -> Result<(), ResponseError> {
        if self.seen.end == StreamEnd::Complete {
            return Ok(());
        }
        match &mut self.mode {
            BodyMode::PassBytes => {}
            BodyMode::PassJson(_) => {
                if let Some(named) = &mut self.named {
                    named.finish(out);
                }
            }
            BodyMode::RunJson(_) => self.finish_run(out)?,
            BodyMode::Posted { .. } => self.finish_posted(out)?,
            BodyMode::PassEvents(_) | BodyMode::RunEvents(_) => return self.finish_stream(out),
        }
        self.seen.end = StreamEnd::Complete;
        Ok(())
    }

    /// Converts what was collected; then it is the task's turn.
    fn finish_run(&mut self, out: &mut BytesMut) -> Result<(), ResponseError> {
        let (BodyMode::RunJson(body), ResponseSource::Run(reader)) = (&self.mode, self.source)
        else {
            return Err(ResponseError::Malformed);
        };
        let mut converted = BytesMut::new();
        self.seen.usage = (reader.json)(
            whole_body::without_bom(body),
            self.seen.usage,
            &mut converted,
        )?;
        let result = workers_ai::result_of(&converted).ok_or(ResponseError::Malformed)?;
        if self.has_text {
            self.seen.output.get_or_insert_default();
        }
        self.seen.keep(result);
        let shaped = match &mut self.shaper {
            Some(shaper) => shaper.result(self.status, "application/json", result)?,
            None => None,
        };
        match shaped {
            Some(result) => workers_ai::write_result(whole_body::json(&result)?, out),
            None => out.unsplit(converted),
        }
        Ok(())
    }

    /// The collected body is the result, or becomes it.
    fn finish_posted(&mut self, out: &mut BytesMut) -> Result<(), ResponseError> {
        let BodyMode::Posted { body, content_type } = &self.mode else {
            return Err(ResponseError::Malformed);
        };
        let body = whole_body::without_bom(body);
        let passes = matches!(self.source, ResponseSource::Pass);
        if passes && is_error_body(body) {
            return Err(ResponseError::BackendFailed);
        }
        let mut scan = MemberScanner::new("usage");
        scan.push(body);
        self.seen.usage = scan.value().and_then(Usage::from_openai);
        let shaped = match &mut self.shaper {
            Some(shaper) => shaper.result(self.status, content_type, body)?,
            None => None,
        };
        let result = whole_body::json(shaped.as_deref().unwrap_or(body))?;
        if self.has_text {
            self.seen.output.get_or_insert_default();
        }
        if passes {
            // What the server has made is counted, in its own shape.
            self.seen.keep(body);
            match &mut self.translator {
                Some(translator) => translator.whole(result, out)?,
                None => out.extend_from_slice(result),
            }
        } else {
            self.seen.keep(result);
            workers_ai::write_result(result, out);
        }
        Ok(())
    }

    fn finish_stream(&mut self, out: &mut BytesMut) -> Result<(), ResponseError> {
        if self.is_in_long_event() {
            return Err(ResponseError::EndedEarly);
        }
        // Some servers close right after the end mark, without its blank line.
        let held = match &self.mode {
            BodyMode::PassEvents(events) => events.held(),
            BodyMode::RunEvents(events) => events.held(),
            _ => b"",
        };
        let is_done = sse::data(held).is_some_and(|data| sse::is_done(&data));
        let is_blank = held.trim_ascii().is_empty();
        let end: &[u8] = match held {
            b"" => b"data: [DONE]\n\n",
            _ => b"\n\ndata: [DONE]\n\n",
        };
        let is_whole = match self.source {
            // Plain servers need not know the mark; the end of the message is theirs.
            ResponseSource::Posted => true,
            // Some others forget it: what every choice has ended is whole.
            ResponseSource::Pass | ResponseSource::Run(_) => {
                is_blank && self.seen.is_finished(self.choices)
            }
            ResponseSource::Pipe => false,
        };
        if is_done {
            // A line end of its own first: the mark may lack even that.
            let _ = self.push(b"\n\n", out)?;
        } else if !is_whole {
            return Err(ResponseError::EndedEarly);
        } else if self.push(end, out)? == PushOutput::Whole {
            out.extend_from_slice(end);
        }
        self.seen.end = StreamEnd::Complete;
        Ok(())
    }

    /// The client has a part of an event, and not its end.
    fn is_in_long_event(&self) -> bool {
        matches!(&self.mode, BodyMode::PassEvents(events) if events.is_in_long_event())
    }

    /// The response breaks off: a half-received event is dropped and, on a stream, an error event
    /// in the client's dialect is appended, never an end mark. Any other response can only be cut.
    pub fn abort(&mut self, out: &mut BytesMut, refusal: &Refusal) {
        if self.is_stream() && self.seen.end == StreamEnd::Open {
            if let Some(shaper) = &mut self.shaper {
                // The client is shown the error event already.
                let mut added = BytesMut::new();
                let _ = shaper.close(true, &mut added);
                if self.translator.is_none() {
                    out.unsplit(added);
                }
            }
            if self.is_in_long_event() {
                out.extend_from_slice(b"\n\n");
            }
            render::error_event(self.face, refusal, out);
        }
        if self.seen.end == StreamEnd::Open {
            self.seen.end = StreamEnd::Broken;
        }
    }

    /// Ends the response: the task learns of the end, where it has not yet. A response that was not
    /// read to its end has been cut.
    pub fn close(&mut self) {
        let cut = self.seen.end != StreamEnd::Complete;
        if let Some(shaper) = &mut self.shaper {
            // The client has all it gets.
            let _ = shaper.close(cut, &mut BytesMut::new());
        }
    }

    /// Tokens the backend has reported so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.mode {
            BodyMode::PassJson(scan) => scan.value().and_then(Usage::from_openai),
            _ => self.seen.usage,
        }
    }

    /// All that the backend has reported so far.
    pub fn reported_metrics(&self) -> ReportedMetrics {
        ReportedMetrics {
            usage: self.usage(),
            neurons: self.neurons,
            metrics: self.metrics.clone(),
        }
    }

    /// Tokens of the generated text of a stream so far, by the gateway's own count.
    pub fn generated_tokens(&self) -> u64 {
        self.seen.text.tokens()
    }

    /// Generated tokens that came after the backend's latest report of its output.
    pub fn unreported_tokens(&self) -> u64 {
        let counted = self.seen.text.tokens();
        counted.saturating_sub(self.seen.reported_at)
    }

    /// Output for an estimate: a complete whole response, or, where the backend's count is not
    /// trusted, the texts of a stream as a JSON list. The first [`SAMPLE_BYTES_MAX`] of either. An
    /// unfinished whole response is not guessed at.
    pub fn output(&self) -> Option<Cow<'_, [u8]>> {
        match self.is_stream() || self.is_done() {
            true => Some(self.seen.output.as_ref()?.sample()),
            false => None,
        }
    }

    /// The response is whole and has nothing that it could be billed by.
    pub fn is_unmetered(&self) -> bool {
        let is_reported =
            self.neurons.is_some() || !self.metrics.is_empty() || self.usage().is_some();
        self.is_token_based() && self.is_done() && !is_reported
    }

    /// A server with a protocol of its own for models that read and write tokens.
    pub fn is_token_based(&self) -> bool {
        matches!(self.source, ResponseSource::Pass | ResponseSource::Run(_))
    }

    /// Metrics that the model's task has reported so far, where it has one.
    pub fn task_metrics(&self) -> Option<&Metrics> {
        Some(self.shaper.as_ref()?.session().metrics())
    }

    /// Plugins that took part in the request or its response.
    pub fn task_uses(&self) -> &[PluginUse] {
        let shaper = self.shaper.as_ref();
        shaper.map_or(&[], |shaper| shaper.session().uses())
    }

    /// The client has everything: one that closes now has not left early.
    pub fn is_done(&self) -> bool {
        self.seen.end == StreamEnd::Complete
    }

    /// The first generated text has come.
    pub fn has_token(&self) -> bool {
        self.seen.token
    }
}
