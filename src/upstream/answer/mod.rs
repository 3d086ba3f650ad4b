//! A backend's response on its way to the client: passed on, converted to another dialect, or
//! shaped by the model's task.
//!
//! Bytes in, bytes out: no socket and no clock. Per response it holds at most one event of
//! [`sse::EVENT_BYTES_MAX`]; where a response or an event is converted or shaped by the task,
//! [`ANSWER_BYTES_MAX`]. The pipeline calls [`Answer::begin`] once with the 2xx head,
//! [`Answer::push`] for each chunk, then [`Answer::finish`]. After any error, or instead, it calls
//! [`Answer::abort`]; and [`Answer::close`] in every case. A model's task sees what is in the
//! Workers AI dialect, and in the OpenAI dialect where the operator has configured that it knows such
//! responses.

mod error;
mod failure;
mod kind;
mod named;
mod openai;
mod output;
mod pass;
mod report;
mod run;
mod seen;
mod shape;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::scan::TopLevel;
use infergate_core::api::{Call, Face, Operation, sse, workers_ai};
use infergate_core::billing::{Metrics, Usage};
use infergate_core::model::{ModelInAnswers, ModelSpec, Task, Trust};
use serde_json::value::RawValue;

pub use error::AnswerError;
pub use failure::{client_error_body, error_event, is_error_body};
pub(super) use openai::{OPENAI_EMBEDDINGS, OPENAI_TEXT};
pub use output::SAMPLE_BYTES_MAX;
pub use report::ReportedMetrics;
pub(super) use run::{Piece, Reader, no_events, write_rows};

use kind::{EVENT_STREAM, JSON, Kind};
use named::Named;
use report::Modes;
use seen::{End, Seen};
use shape::Shaper;

use crate::plugin::TaskSession;
use crate::telemetry::event::PluginUse;

/// The longest answer that is collected to be converted: 100 vectors of 4,096 dimensions, written
/// with all digits, are 9 MB.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Bytes that the backend gave no name.
const UNNAMED: &[u8] = b"application/octet-stream";

/// Bytes to send to the client after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Push {
    /// The chunk itself, unchanged; nothing was appended to `out`.
    Whole,
    /// The bytes appended to `out`, if any.
    Out,
}

/// Response being read.
pub struct Answer {
    face: Face,
    source: Source,
    /// The usage chunk was asked for by the gateway, so the client must not see it.
    hides_usage: bool,
    /// A whole response has generated text in it.
    has_text: bool,
    /// Choices that a whole stream has.
    choices: u32,
    /// Status of the head, 2xx.
    status: u16,
    form: Form,
    seen: Seen,
    shaper: Option<Shaper>,
    /// The name of the model that it carries, where that is not the backend's word.
    named: Option<Box<Named>>,
    neurons: Option<f64>,
    metrics: Vec<(String, f64)>,
}

/// Protocol of the response.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The client's dialect.
    Pass,
    /// A protocol that is converted.
    Run(&'static Reader),
    /// A plain HTTP server's: JSON is the result, anything else the client's as it is.
    Posted,
    /// A plain HTTP server's, passed unread.
    Pipe,
}

#[derive(Debug)]
enum Form {
    PassBytes,
    PassJson(TopLevel),
    PassEvents(pass::Events),
    RunJson(BytesMut),
    RunEvents(run::Events),
    Posted {
        body: BytesMut,
        content_type: String,
    },
}

impl Answer {
    /// A response in the client's own dialect.
    pub(super) fn pass(call: &Call) -> Answer {
        let hides_usage = call.stream && !call.usage_asked;
        Answer::new(call, Source::Pass, hides_usage)
    }

    /// A response converted for the Workers AI dialect.
    pub(super) fn run(call: &Call, reader: &'static Reader) -> Answer {
        Answer::new(call, Source::Run(reader), false)
    }

    /// A response of a plain HTTP server.
    pub(super) fn posted(call: &Call, task: Task) -> Answer {
        let source = match task {
            Task::DumbPipe => Source::Pipe,
            _ => Source::Posted,
        };
        Answer::new(call, source, false)
    }

    fn new(call: &Call, source: Source, hides_usage: bool) -> Answer {
        // Until the head says what it is; embeddings have no streamed form.
        let streams = call.stream && call.operation != Operation::Embeddings;
        Answer {
            face: call.face,
            source,
            hides_usage,
            choices: match source {
                Source::Run(_) => 1,
                Source::Pass | Source::Posted | Source::Pipe => call.choices,
            },
            has_text: call.operation != Operation::Embeddings,
            status: 200,
            form: form(source, Kind::asked(streams)),
            seen: Seen::default(),
            shaper: None,
            named: None,
            neurons: None,
            metrics: Vec::new(),
        }
    }

    /// The same answer, with the name of the model that `call` asked for where `model` wants that.
    pub fn named_for(mut self, call: &Call, model: &ModelSpec) -> Answer {
        if model.model_in_answers == ModelInAnswers::Asked && matches!(self.source, Source::Pass) {
            self.named = Named::of(call).map(Box::new);
        }
        self
    }

    /// The same answer, counted as `model` says its metrics are, and shaped by its task.
    pub fn of_model(mut self, model: &ModelSpec, session: Option<TaskSession>) -> Answer {
        if !model.metrics.is_empty() {
            self.seen.modes = Modes::of(&model.metrics);
        }
        if model.metrics_trust != Trust::Trust {
            self.seen.output = Some(Box::default());
        }
        self.shaper = session.map(|session| Shaper::new(session, self.face));
        self
    }

    /// The head has arrived: settles by its content type, not by what was asked, how the body is
    /// read. `header` looks one up by its lower-case name.
    pub fn begin<'h>(&mut self, status: u16, header: impl Fn(&'static str) -> Option<&'h [u8]>) {
        self.status = status;
        let kind = match (Kind::told(header("content-type")), self.source) {
            (Kind::Other, Source::Pass | Source::Run(_)) => Kind::asked(self.is_stream()),
            (kind, _) => kind,
        };
        self.form = form(self.source, kind);
        let told = header("content-type").unwrap_or_default();
        match self.source {
            Source::Posted => self.begin_posted(told),
            Source::Pass => self.begin_shaped(told),
            Source::Run(_) | Source::Pipe => {}
        }
        if let Source::Run(reader) = self.source
            && let Some(name) = reader.input_tokens_header
        {
            self.seen.usage = header(name).and_then(Usage::from_input_header);
        }
        let is_stream = self.is_stream();
        if let Some(shaper) = &mut self.shaper {
            shaper.begin(is_stream);
            if let (true, Form::PassEvents(events)) = (shaper.is_streaming(), &mut self.form) {
                *events = pass::Events::whole(ANSWER_BYTES_MAX);
            }
        }
    }

    /// A whole response in the client's dialect is collected where the task makes another of it.
    fn begin_shaped(&mut self, told: &[u8]) {
        let shapes = self.shaper.as_ref().is_some_and(Shaper::shapes_answer);
        if shapes && matches!(self.form, Form::PassJson(_)) {
            self.form = Form::Posted {
                body: BytesMut::new(),
                content_type: String::from_utf8_lossy(told).into_owned(),
            };
        }
    }

    /// A text is collected as JSON is where the task makes a result of it.
    fn begin_posted(&mut self, told: &[u8]) {
        let told = String::from_utf8_lossy(told).into_owned();
        let is_text = told.trim_start().to_ascii_lowercase().starts_with("text/");
        let shapes = self.shaper.as_ref().is_some_and(Shaper::shapes_answer);
        match &mut self.form {
            Form::Posted { content_type, .. } => *content_type = told,
            Form::PassBytes if is_text && shapes => {
                self.form = Form::Posted {
                    body: BytesMut::new(),
                    content_type: told,
                };
            }
            _ => {}
        }
    }

    /// Reads the bill in the headers of the head, whose names are in lower case.
    pub fn read_bill<'h>(&mut self, headers: impl Iterator<Item = (&'h str, &'h [u8])>) {
        (self.neurons, self.metrics) = report::read_headers(headers);
    }

    /// Content type for the client: the backend's own where the bytes are the backend's.
    pub fn content_type<'h>(&self, upstream: Option<&'h [u8]>) -> &'h [u8] {
        match (&self.form, self.source, upstream) {
            (Form::PassBytes, _, None) => UNNAMED,
            (Form::PassBytes | Form::PassEvents(_), _, Some(kind))
            | (_, Source::Pass, Some(kind)) => kind,
            _ if self.is_stream() => EVENT_STREAM,
            _ => JSON,
        }
    }

    /// The bytes are looked into: they must not be compressed.
    pub fn is_read(&self) -> bool {
        !matches!(self.form, Form::PassBytes)
    }

    /// The client gets events.
    pub fn is_stream(&self) -> bool {
        matches!(self.form, Form::PassEvents(_) | Form::RunEvents(_))
    }

    /// JSON of the client's own dialect, passed on as it comes.
    pub fn is_plain_json(&self) -> bool {
        matches!(self.form, Form::PassJson(_))
    }

    /// Every byte passes unchanged, so the backend's `Content-Length` holds for the client too.
    pub fn passes_length(&self) -> bool {
        match self.form {
            Form::PassJson(_) => self.named.is_none(),
            Form::PassBytes => true,
            _ => false,
        }
    }

    /// [`Answer::finish`] will append nothing and find nothing missing.
    pub fn ends_silently(&self) -> bool {
        self.passes_length() || self.seen.end == End::Complete
    }

    /// No byte reaches the client before [`Answer::finish`]. Until then a failure can still get a
    /// status, and the length is known before the head is sent.
    pub fn collects(&self) -> bool {
        matches!(self.form, Form::RunJson(_) | Form::Posted { .. })
    }

    /// Reads a chunk. After an error, `out` holds what came before it and is still to be sent,
    /// followed by what [`Answer::abort`] appends.
    pub fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<Push, AnswerError> {
        if !self.shaper.as_ref().is_some_and(Shaper::is_streaming) {
            return self.read(chunk, out);
        }
        let mut events = BytesMut::new();
        let read = self.read(chunk, &mut events);
        let events = match &read {
            Ok(Push::Whole) => chunk,
            Ok(Push::Out) | Err(_) => &events,
        };
        if let Some(shaper) = &mut self.shaper
            && let Err(error) = shaper.events(events, out)
        {
            // The end mark may have been among them, and does not reach the client.
            self.seen.end = End::Open;
            return Err(error);
        }
        read.map(|_| Push::Out)
    }

    fn read(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<Push, AnswerError> {
        if chunk.is_empty() || self.seen.end != End::Open {
            // Past its end mark a stream has nothing for the client.
            return Ok(Push::Out);
        }
        match &mut self.form {
            Form::PassBytes | Form::PassJson(_) => {
                self.seen.token = true;
                if self.has_text && matches!(self.form, Form::PassJson(_)) {
                    self.seen.output.get_or_insert_default();
                }
                self.seen.keep(chunk);
                if let Form::PassJson(scan) = &mut self.form {
                    scan.push(chunk);
                    if let Some(named) = &mut self.named
                        && !named.take(chunk, out)
                    {
                        return Ok(Push::Out);
                    }
                }
                Ok(Push::Whole)
            }
            Form::PassEvents(events) => {
                let (hides_usage, named) = (self.hides_usage, self.named.as_deref());
                events.push(chunk, hides_usage, named, &mut self.seen, out)
            }
            Form::RunJson(body) | Form::Posted { body, .. } => {
                if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                    return Err(AnswerError::AnswerTooLong);
                }
                self.seen.token = true;
                body.extend_from_slice(chunk);
                Ok(Push::Out)
            }
            Form::RunEvents(events) => {
                events.push(chunk, &mut self.seen, out)?;
                Ok(Push::Out)
            }
        }
    }

    /// The backend has ended its response in good order: appends what was collected, or says what
    /// the response lacks.
    pub fn finish(&mut self, out: &mut BytesMut) -> Result<(), AnswerError> {
        if self.seen.end == End::Complete {
            return Ok(());
        }
        match &mut self.form {
            Form::PassBytes => {}
            Form::PassJson(_) => {
                if let Some(named) = &mut self.named {
                    named.finish(out);
                }
            }
            Form::RunJson(_) => self.finish_run(out)?,
            Form::Posted { .. } => self.finish_posted(out)?,
            Form::PassEvents(_) | Form::RunEvents(_) => return self.finish_stream(out),
        }
        self.seen.end = End::Complete;
        Ok(())
    }

    /// Converts what was collected; then it is the task's turn.
    fn finish_run(&mut self, out: &mut BytesMut) -> Result<(), AnswerError> {
        let (Form::RunJson(body), Source::Run(reader)) = (&self.form, self.source) else {
            return Err(AnswerError::Malformed);
        };
        let mut converted = BytesMut::new();
        self.seen.usage = (reader.json)(without_bom(body), self.seen.usage, &mut converted)?;
        let result = workers_ai::result_of(&converted).ok_or(AnswerError::Malformed)?;
        if self.has_text {
            self.seen.output.get_or_insert_default();
        }
        self.seen.keep(result);
        let shaped = match &mut self.shaper {
            Some(shaper) => shaper.result(self.status, "application/json", result)?,
            None => None,
        };
        match shaped {
            Some(result) => workers_ai::write_result(json(&result)?, out),
            None => out.unsplit(converted),
        }
        Ok(())
    }

    /// The collected body is the result, or becomes it.
    fn finish_posted(&mut self, out: &mut BytesMut) -> Result<(), AnswerError> {
        let Form::Posted { body, content_type } = &self.form else {
            return Err(AnswerError::Malformed);
        };
        let body = without_bom(body);
        let passes = matches!(self.source, Source::Pass);
        if passes && is_error_body(body) {
            return Err(AnswerError::BackendFailed);
        }
        let mut scan = TopLevel::new("usage");
        scan.push(body);
        self.seen.usage = scan.value().and_then(Usage::from_openai);
        let shaped = match &mut self.shaper {
            Some(shaper) => shaper.result(self.status, content_type, body)?,
            None => None,
        };
        let result = json(shaped.as_deref().unwrap_or(body))?;
        if self.has_text {
            self.seen.output.get_or_insert_default();
        }
        if passes {
            // What the server has made is counted, in its own shape.
            self.seen.keep(body);
            out.extend_from_slice(result);
        } else {
            self.seen.keep(result);
            workers_ai::write_result(result, out);
        }
        Ok(())
    }

    fn finish_stream(&mut self, out: &mut BytesMut) -> Result<(), AnswerError> {
        if self.is_in_long_event() {
            return Err(AnswerError::EndedEarly);
        }
        // Some servers close right after the end mark, without its blank line.
        let held = match &self.form {
            Form::PassEvents(events) => events.held(),
            Form::RunEvents(events) => events.held(),
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
            Source::Posted => true,
            // Some others forget it: what every choice has ended is whole.
            Source::Pass | Source::Run(_) => is_blank && self.seen.is_finished(self.choices),
            Source::Pipe => false,
        };
        if is_done {
            // A line end of its own first: the mark may lack even that.
            let _ = self.push(b"\n\n", out)?;
        } else if !is_whole {
            return Err(AnswerError::EndedEarly);
        } else if self.push(end, out)? == Push::Whole {
            out.extend_from_slice(end);
        }
        self.seen.end = End::Complete;
        Ok(())
    }

    /// The client has a part of an event, and not its end.
    fn is_in_long_event(&self) -> bool {
        matches!(&self.form, Form::PassEvents(events) if events.is_in_long_event())
    }

    /// The response breaks off: a half-received event is dropped and, on a stream, an error event
    /// in the client's dialect is appended, never an end mark. Any other response can only be cut.
    pub fn abort(&mut self, out: &mut BytesMut, refusal: &Refusal) {
        if self.is_stream() && self.seen.end == End::Open {
            if let Some(shaper) = &mut self.shaper {
                // The client is shown the error event already.
                let _ = shaper.close(true, out);
            }
            if self.is_in_long_event() {
                out.extend_from_slice(b"\n\n");
            }
            error_event(self.face, refusal, out);
        }
        if self.seen.end == End::Open {
            self.seen.end = End::Broken;
        }
    }

    /// Ends the response: the task learns of the end, where it has not yet. A response that was not
    /// read to its end has been cut.
    pub fn close(&mut self) {
        let cut = self.seen.end != End::Complete;
        if let Some(shaper) = &mut self.shaper {
            // The client has all it gets.
            let _ = shaper.close(cut, &mut BytesMut::new());
        }
    }

    /// Tokens the backend has reported so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.form {
            Form::PassJson(scan) => scan.value().and_then(Usage::from_openai),
            _ => self.seen.usage,
        }
    }

    /// All that the backend has reported so far.
    pub fn reported(&self) -> ReportedMetrics {
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
        match self.is_stream() || self.done_seen() {
            true => Some(self.seen.output.as_ref()?.sample()),
            false => None,
        }
    }

    /// The response is whole and has nothing that it could be billed by.
    pub fn is_unmetered(&self) -> bool {
        let is_told = self.neurons.is_some() || !self.metrics.is_empty() || self.usage().is_some();
        self.is_of_tokens() && self.done_seen() && !is_told
    }

    /// A server with a protocol of its own for models that read and write tokens.
    pub fn is_of_tokens(&self) -> bool {
        matches!(self.source, Source::Pass | Source::Run(_))
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
    pub fn done_seen(&self) -> bool {
        self.seen.end == End::Complete
    }

    /// The first generated text has come.
    pub fn token_seen(&self) -> bool {
        self.seen.token
    }
}

/// The body without the byte order mark that some servers put before it.
fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

/// A single JSON value, without the space around it.
fn json(bytes: &[u8]) -> Result<&[u8], AnswerError> {
    let value: &RawValue = serde_json::from_slice(bytes).map_err(|_| AnswerError::Malformed)?;
    Ok(value.get().as_bytes())
}

fn form(source: Source, kind: Kind) -> Form {
    match (source, kind) {
        (Source::Pipe, _) => Form::PassBytes,
        (Source::Posted, Kind::Other) => Form::PassBytes,
        (Source::Posted, Kind::Json) => Form::Posted {
            body: BytesMut::new(),
            content_type: String::new(),
        },
        (Source::Pass | Source::Posted, Kind::Events) => Form::PassEvents(pass::Events::default()),
        (Source::Pass, Kind::Json | Kind::Other) => Form::PassJson(TopLevel::new("usage")),
        (Source::Run(reader), Kind::Events) => Form::RunEvents(run::Events::new(reader)),
        (Source::Run(_), Kind::Json | Kind::Other) => Form::RunJson(BytesMut::new()),
    }
}
