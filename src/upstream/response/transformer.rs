//! A backend's response on its way to the client: read by its decoder, shaped by the model's task.
//!
//! Bytes in, bytes out: no socket and no clock. Per response at most one event of
//! [`sse::EVENT_BYTES_MAX`](infergate_core::api::sse::EVENT_BYTES_MAX) is held; where a response or an event is
//! converted or shaped by the task, [`RESPONSE_BYTES_MAX`](super::bounds::RESPONSE_BYTES_MAX). The pipeline calls
//! [`ResponseTransformer::begin`] once with the 2xx head, [`ResponseTransformer::push`] for each chunk, then
//! [`ResponseTransformer::finish`]. After any error, or instead, it calls [`ResponseTransformer::abort`]; and
//! [`ResponseTransformer::close`] in every case. A model's task sees what is in the Workers AI dialect, and
//! in the OpenAI dialect where the operator has configured that it knows such responses.

use std::borrow::Cow;

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::dialect::ResponseTranslator;
use infergate_core::api::{ApiDialect, Call, Operation, render};
use infergate_core::billing::{Metrics, Usage};
use infergate_core::model::{ModelInAnswers, ModelSpec, Trust};

use super::body_kind::{BodyKind, EVENT_STREAM, JSON};
use super::chat_form::ChatFormDecoder;
use super::client_error::is_error_body;
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, expects_events,
};
use super::error::ResponseError;
use super::model_name::ModelNameRewriter;
use super::output_sample::OutputSample;
use super::reported_metrics::{
    self, MetricModes, ReportedMetrics, other_costs, price_in_costs, usage_of_costs,
};
use super::stats::{ResponseStats, StreamEnd};
use super::task_transform::TaskTransform;
use crate::plugin::TaskSession;
use crate::telemetry::event::PluginUse;
use crate::telemetry::off_the_worker;

/// Content type of bytes that the backend gave none.
const UNNAMED: &[u8] = b"application/octet-stream";

/// Bytes of a whole response from which on it is translated off the worker: below, it takes a tenth of a
/// millisecond.
const LARGE_RESPONSE_BYTES: usize = 64 * 1024;

/// Response being read.
pub struct ResponseTransformer {
    dialect: ApiDialect,
    decoder: Box<dyn ResponseDecoder>,
    /// The server has a protocol of its own for models that read and write tokens.
    is_token_based: bool,
    /// Status of the head, 2xx.
    status: u16,
    body: Body,
    stats: ResponseStats,
    task: Option<TaskTransform>,
    /// Translation into a dialect that no backend writes.
    translator: Option<Box<dyn ResponseTranslator>>,
    neurons: Option<f64>,
    metrics: Vec<(String, f64)>,
}

impl ResponseTransformer {
    /// The response to `call`, read by `decoder`.
    pub fn new(
        call: &Call,
        mut decoder: Box<dyn ResponseDecoder>,
        is_token_based: bool,
    ) -> ResponseTransformer {
        let mut stats = ResponseStats {
            has_text: match call.operation {
                Operation::Embeddings => false,
                Operation::Passed(api) => api.has_text(),
                _ => true,
            },
            ..ResponseStats::default()
        };
        let translator = call.dialect.rules().translator(call);
        // Until the head says what it is.
        let head = DecoderHead {
            content_type: b"",
            kind: BodyKind::expected(expects_events(call)),
            header: &|_| None,
        };
        let mut cx = DecoderContext {
            stats: &mut stats,
            task: None,
            is_translated: translator.is_some(),
            status: 200,
        };
        let body = decoder.head(&head, &mut cx);
        ResponseTransformer {
            dialect: call.dialect,
            decoder,
            is_token_based,
            status: 200,
            body,
            stats,
            task: None,
            translator,
            neurons: None,
            metrics: Vec::new(),
        }
    }

    /// The same response, of a server that is asked for a completion in place of a chat.
    pub fn with_chat_form(mut self, call: &Call) -> ResponseTransformer {
        if let BodyMode::Json { is_unchanged } = &mut self.body.mode {
            *is_unchanged = false;
        }
        ResponseTransformer {
            decoder: ChatFormDecoder::before(self.decoder, expects_events(call)),
            ..self
        }
    }

    /// The same response, with the name of the model that `call` requested where `model` is configured so.
    pub fn with_model_name(mut self, call: &Call, model: &ModelSpec) -> ResponseTransformer {
        if model.model_in_answers == ModelInAnswers::Asked
            && let Some(name) = ModelNameRewriter::of(call)
        {
            self.decoder.rename_model(name);
            if let BodyMode::Json { is_unchanged } = &mut self.body.mode {
                *is_unchanged = false;
            }
        }
        self
    }

    /// The same response, counted as `model` says its metrics are, and shaped by its task.
    pub fn for_model(
        mut self,
        model: &ModelSpec,
        session: Option<TaskSession>,
    ) -> ResponseTransformer {
        if !model.metrics.is_empty() {
            self.stats.modes = MetricModes::of(&model.metrics);
        }
        if model.metrics_trust != Trust::Trust {
            self.stats.output = Some(OutputSample::default());
        }
        self.task = session.map(|session| TaskTransform::new(session, self.dialect));
        self
    }

    /// The head has arrived: settles by its content type, not by what was requested, how the body is
    /// read. `header` looks one up by its lower-case name.
    pub fn begin<'h>(&mut self, status: u16, header: impl Fn(&'static str) -> Option<&'h [u8]>) {
        self.status = status;
        let content_type = header("content-type");
        let head = DecoderHead {
            content_type: content_type.unwrap_or_default(),
            kind: BodyKind::from_content_type(content_type),
            header: &header,
        };
        let (decoder, mut cx) = self.parts();
        let body = decoder.head(&head, &mut cx);
        self.body = body;
        let is_stream = self.is_stream();
        if let Some(task) = &mut self.task {
            task.begin(is_stream);
        }
    }

    /// Reads the bill in the headers of the head, whose names are in lower case.
    pub fn read_billing_headers<'h>(&mut self, headers: impl Iterator<Item = (&'h str, &'h [u8])>) {
        (self.neurons, self.metrics) = reported_metrics::read_headers(headers);
    }

    /// Adds what the server reports of a connection behind its end.
    pub fn add_report(&mut self, reported: Vec<(String, f64)>) {
        let (neurons, metrics) = reported_metrics::split_price(reported);
        self.neurons = neurons.or(self.neurons);
        self.metrics.extend(metrics);
    }

    /// Content type for the client: the backend's own where the bytes are the backend's.
    pub fn content_type<'h>(&self, upstream: Option<&'h [u8]>) -> &'h [u8] {
        match upstream.filter(|_| self.body.keeps_content_type) {
            Some(own) => own,
            None if matches!(self.body.mode, BodyMode::Bytes | BodyMode::Tensors) => UNNAMED,
            None if self.is_stream() => EVENT_STREAM,
            None => JSON,
        }
    }

    /// The bytes are looked into: they must not be compressed.
    pub fn inspects_body(&self) -> bool {
        self.body.mode != BodyMode::Bytes
    }

    /// The client gets events.
    pub fn is_stream(&self) -> bool {
        self.body.mode == BodyMode::Events
    }

    /// JSON of the client's own dialect, passed on as it comes.
    pub fn is_plain_json(&self) -> bool {
        matches!(self.body.mode, BodyMode::Json { .. })
    }

    /// Returns whether `body`, a whole response that has passed, is an error's.
    pub fn is_error(&self, body: &[u8]) -> bool {
        self.stats.names_error && is_error_body(body)
    }

    /// Every byte passes unchanged, so the backend's `Content-Length` holds for the client too.
    pub fn passes_length(&self) -> bool {
        match self.body.mode {
            BodyMode::Json { is_unchanged } => is_unchanged,
            BodyMode::Bytes => true,
            BodyMode::Events | BodyMode::Collected | BodyMode::Tensors => false,
        }
    }

    /// [`ResponseTransformer::finish`] will append no byte and find nothing missing.
    pub fn ends_silently(&self) -> bool {
        self.passes_length() || self.stats.end == StreamEnd::Complete
    }

    /// No byte reaches the client before [`ResponseTransformer::finish`]. Until then a failure can still get
    /// a status, and the length is known before the head is sent.
    #[cfg(test)]
    pub fn is_collected(&self) -> bool {
        self.body.mode == BodyMode::Collected
    }

    /// Reads a chunk. After an error, `out` holds what came before it and is still to be sent,
    /// followed by what [`ResponseTransformer::abort`] appends.
    pub fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<PushOutput, ResponseError> {
        if chunk.is_empty() || self.stats.end != StreamEnd::Open {
            // Past its end mark a stream has nothing for the client.
            return Ok(PushOutput::Out);
        }
        if self.translator.is_none() || !self.is_stream() {
            return self.push_shaped(chunk, out);
        }
        let mut events = BytesMut::new();
        let pushed = self.push_shaped(chunk, &mut events);
        let events = match &pushed {
            Ok(PushOutput::First(len)) => &chunk[..*len],
            Ok(PushOutput::Out) | Err(_) => &events,
        };
        self.translate_events(events, out)?;
        pushed.map(|_| PushOutput::Out)
    }

    /// Reads a chunk and has the task shape its events.
    fn push_shaped(
        &mut self,
        chunk: &[u8],
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        let is_shaped = self.shapes_events();
        let (decoder, mut cx) = self.parts();
        if !is_shaped {
            return decoder.push(chunk, &mut cx, out);
        }
        let mut events = BytesMut::new();
        let read = decoder.push(chunk, &mut cx, &mut events);
        let events = match &read {
            Ok(PushOutput::First(len)) => &chunk[..*len],
            Ok(PushOutput::Out) | Err(_) => &events,
        };
        self.shape_events(events, out)?;
        read.map(|_| PushOutput::Out)
    }

    /// The backend has ended its response in good order: appends what was collected, or says what
    /// the response lacks.
    pub fn finish(&mut self, out: &mut BytesMut) -> Result<(), ResponseError> {
        if self.stats.end == StreamEnd::Complete {
            return Ok(());
        }
        if self.translator.is_none() {
            self.finish_shaped(out)?;
        } else {
            let mut finished = BytesMut::new();
            let result = self.finish_shaped(&mut finished);
            match self.is_stream() {
                true => self.translate_events(&finished, out)?,
                false => {
                    if let (Ok(()), Some(translator)) = (&result, &mut self.translator) {
                        let is_large = finished.len() >= LARGE_RESPONSE_BYTES;
                        off_the_worker(is_large, || translator.whole(&finished, out))?;
                    }
                }
            }
            result?;
        }
        self.stats.end = StreamEnd::Complete;
        Ok(())
    }

    fn finish_shaped(&mut self, out: &mut BytesMut) -> Result<(), ResponseError> {
        let is_shaped = self.shapes_events();
        let (decoder, mut cx) = self.parts();
        if is_shaped {
            let mut events = BytesMut::new();
            let finished = decoder.finish(&mut cx, &mut events);
            self.shape_events(&events, out)?;
            finished?;
        } else {
            decoder.finish(&mut cx, out)?;
        }
        Ok(())
    }

    /// Appends to `out` what whole events are in the client's dialect.
    fn translate_events(&mut self, events: &[u8], out: &mut BytesMut) -> Result<(), ResponseError> {
        let estimate = self.generated_tokens();
        let Some(translator) = &mut self.translator else {
            return Ok(());
        };
        translator.events(events, estimate, out).map_err(|_| {
            // The end mark may have been among them, and does not reach the client.
            self.stats.end = StreamEnd::Open;
            ResponseError::Malformed
        })
    }

    fn parts(&mut self) -> (&mut dyn ResponseDecoder, DecoderContext<'_>) {
        let cx = DecoderContext {
            stats: &mut self.stats,
            task: self.task.as_mut(),
            is_translated: self.translator.is_some(),
            status: self.status,
        };
        (&mut *self.decoder, cx)
    }

    fn shapes_events(&self) -> bool {
        self.task.as_ref().is_some_and(TaskTransform::is_streaming)
    }

    /// Appends to `out` what the task makes of whole events.
    fn shape_events(&mut self, events: &[u8], out: &mut BytesMut) -> Result<(), ResponseError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        task.events(events, out).inspect_err(|_| {
            // The end mark may have been among them, and does not reach the client.
            self.stats.end = StreamEnd::Open;
        })
    }

    /// The response breaks off: a half-received event is dropped and, on a stream, an error event
    /// in the client's dialect is appended, never an end mark. Any other response can only be cut.
    pub fn abort(&mut self, out: &mut BytesMut, refusal: &Refusal) {
        if self.is_stream() && self.stats.end == StreamEnd::Open {
            if let Some(task) = &mut self.task {
                // The client is shown the error event already.
                let mut added = BytesMut::new();
                let _ = task.close(true, &mut added);
                if self.translator.is_none() {
                    out.unsplit(added);
                }
            }
            if self.stats.is_in_long_event {
                out.extend_from_slice(b"\n\n");
            }
            render::error_event(self.dialect, refusal, out);
        }
        if self.stats.end == StreamEnd::Open {
            self.stats.end = StreamEnd::Broken;
        }
    }

    /// Ends the response: the task learns of the end, where it has not yet. A response that was not
    /// read to its end has been cut.
    pub fn close(&mut self) {
        let cut = self.stats.end != StreamEnd::Complete;
        if let Some(task) = &mut self.task {
            // The client has all it gets.
            let _ = task.close(cut, &mut BytesMut::new());
        }
    }

    /// Bytes of JSON before the tensors of the client's answer, once they are known; none of any other answer.
    pub fn tensor_json_bytes(&self) -> Option<usize> {
        self.stats.tensor_json_bytes
    }

    /// Tokens the backend has reported so far.
    pub fn usage(&self) -> Option<Usage> {
        match self.stats.costs.is_empty() {
            true => self.stats.usage,
            false => Usage::join(self.stats.usage, usage_of_costs(&self.stats.costs)),
        }
    }

    /// All that the backend has reported so far.
    pub fn reported_metrics(&self) -> ReportedMetrics {
        let mut metrics = self.metrics.clone();
        if !self.stats.costs.is_empty() {
            metrics.extend(other_costs(&self.stats.costs));
        }
        let measures = self.stats.measures.iter();
        metrics.extend(measures.map(|(name, value)| ((*name).to_owned(), *value)));
        ReportedMetrics {
            usage: self.usage(),
            neurons: self.neurons.or(price_in_costs(&self.stats.costs)),
            metrics,
        }
    }

    /// Tokens of the generated text of a stream so far, by the gateway's own count.
    pub fn generated_tokens(&self) -> u64 {
        self.stats.text.tokens()
    }

    /// Generated tokens that came after the backend's latest report of its output.
    pub fn unreported_tokens(&self) -> u64 {
        let counted = self.stats.text.tokens();
        counted.saturating_sub(self.stats.reported_at)
    }

    /// Output for an estimate: a complete whole response, or, where the backend's count is not
    /// trusted, the texts of a stream as a JSON list. The first [`SAMPLE_BYTES_MAX`] of either. An
    /// unfinished whole response is not guessed at.
    ///
    /// [`SAMPLE_BYTES_MAX`]: super::output_sample::SAMPLE_BYTES_MAX
    pub fn output(&self) -> Option<Cow<'_, [u8]>> {
        match self.is_stream() || self.is_done() {
            true => Some(self.stats.output.as_ref()?.sample()),
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
        self.is_token_based
    }

    /// Metrics that the model's task has reported so far, where it has one.
    pub fn task_metrics(&self) -> Option<&Metrics> {
        Some(self.task.as_ref()?.session().metrics())
    }

    /// Plugins that took part in the request or its response.
    pub fn task_uses(&self) -> &[PluginUse] {
        let task = self.task.as_ref();
        task.map_or(&[], |task| task.session().uses())
    }

    /// The client has everything: one that closes now has not left early.
    pub fn is_done(&self) -> bool {
        self.stats.end == StreamEnd::Complete
    }

    /// The response is complete and no task adds to it: everything that is known of its usage stays as it is.
    pub fn is_settled(&self) -> bool {
        self.is_done() && self.task.is_none()
    }

    /// The first generated text has come.
    pub fn has_token(&self) -> bool {
        self.stats.token
    }
}
