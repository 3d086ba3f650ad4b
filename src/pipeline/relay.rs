//! Step 11 of the request pipeline: the model server's response to the client, chunk by chunk.
//!
//! Not the meaning of the bytes, which the [`ResponseTransformer`] reads. While the client keeps up, memory is bounded by
//! one gathered write. While it does not take a write, the server is read on into a [`Backlog`], so that the
//! permit goes back with the server's last byte. Every wait also listens to the client, the deadline and the
//! server's silence.

mod head;
mod heartbeat;
mod read_ahead;
mod single_event;
mod timer;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use infergate_core::Refusal;
use infergate_core::api::open_inference::JSON_BYTES_HEADER;
use infergate_core::api::render;
use tokio::time::{Instant, timeout};

use crate::pipeline::attempt::progress::ProgressComments;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::single_event::SingleEventBody;
use crate::state::{Backlog, ReaderPace, Shared, header_filter};
use crate::telemetry::RequestOutcome;
use crate::upstream::{PushOutput, ResponseError, ResponseTransformer, UpstreamResponse};
use heartbeat::UpstreamEvent;
use timer::LazyTimer;

/// Bytes that are readable at once are gathered into one write up to this size.
const GATHER_MAX_BYTES: usize = 64 * 1024;
/// A server's own error is read up to this size and passed on in the caller's dialect.
const ERROR_BODY_MAX_BYTES: usize = 64 * 1024;
/// For the last words of an answer that went wrong.
const PARTING_TIMEOUT: Duration = Duration::from_secs(2);
/// Events and errors have a type of their own; what else a server says passes as it says it.
const JSON: &[u8] = b"application/json";

/// Outcome of the relay of a server's response, for the server's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayResult {
    /// The server's answer was read to its end.
    Whole,
    /// The connection has left HTTP, and the server did as it should.
    Upgraded,
    /// The server broke off or fell silent.
    ServerFailed,
    /// The server compressed an answer that has to be read.
    Compressed,
    /// The client or the deadline ended it; the server is not to blame.
    Abandoned,
}

/// Reason for which the next chunk of the response does not come.
enum RelayStop {
    ClientGone,
    Deadline,
    Silence,
    Broken,
    /// The server reported a failure of its own in a good answer, or answered in a form that is none of its kind's.
    Failed,
    /// The model's task does not let it pass.
    Task(Refusal),
}

impl From<ResponseError> for RelayStop {
    fn from(error: ResponseError) -> RelayStop {
        match error {
            ResponseError::Refused(refusal) => RelayStop::Task(*refusal),
            ResponseError::BackendFailed | ResponseError::Malformed => RelayStop::Failed,
            _ => RelayStop::Broken,
        }
    }
}

/// Result of one round of reading.
enum ReadRound {
    /// Worth a write; more may come.
    More(Bytes),
    /// The end of the answer.
    End(Bytes),
    /// No bytes: a heartbeat is due.
    Heartbeat(Bytes),
}

/// Extent to which the server's response was read ahead of the client.
enum ReadAhead {
    /// Not to its end.
    Reading,
    /// To its end; the permit is back.
    Ended,
    /// Until it broke off.
    Stopped(RelayStop),
}

/// Gives the permit back, with how the relay of the server's answer ended.
pub type ReleasePermit<'a> = dyn FnMut(RelayResult, &mut RequestContext) + Send + 'a;

/// Relays one answer.
pub struct Relay<'a, D> {
    shared: &'a Shared,
    downstream: &'a mut D,
    ctx: &'a mut RequestContext,
    response: &'a mut UpstreamResponse,
    /// Read and not yet written.
    out: BytesMut,
    /// The server's bytes pass as they are.
    verbatim: bool,
    one_event: SingleEventBody,
    /// Signs of life to the client of a stream whose model has them.
    progress: Option<ProgressComments>,
    /// Start of the wait for the server's next bytes.
    silent_from: Option<Instant>,
    /// The request's deadline.
    deadline: Instant,
    /// Ends waits at the deadline, or at the end of the patience with a silent server, whichever is first.
    timer: LazyTimer,
    /// Read and shaped while the client did not take what came before.
    backlog: Backlog,
    ahead: ReadAhead,
    /// Begun with the first time the backlog was full.
    pace: Option<ReaderPace>,
    /// Bytes the client's connection has taken.
    bytes_sent: Option<Arc<AtomicU64>>,
    release: &'a mut ReleasePermit<'a>,
}

impl<'a, D: Downstream> Relay<'a, D> {
    /// Begins with a server's head.
    pub fn new(
        shared: &'a Shared,
        downstream: &'a mut D,
        ctx: &'a mut RequestContext,
        response: &'a mut UpstreamResponse,
        release: &'a mut ReleasePermit<'a>,
    ) -> Relay<'a, D> {
        let bytes_sent = downstream.bytes_taken();
        let deadline = shared.clock.instant(ctx.deadline).into();
        Relay {
            shared,
            downstream,
            ctx,
            response,
            out: BytesMut::new(),
            verbatim: false,
            one_event: SingleEventBody::default(),
            progress: None,
            silent_from: None,
            deadline,
            timer: LazyTimer::default(),
            backlog: Backlog::new(&shared.backlogs),
            ahead: ReadAhead::Reading,
            pace: None,
            bytes_sent,
            release,
        }
    }

    /// Sends the server's response, a 2xx through `transformer`, and records its metrics. The caller
    /// disposes of the response, which is read to its end or left unfinished.
    pub fn run(
        self,
        transformer: &mut ResponseTransformer,
    ) -> impl Future<Output = (RelayResult, Result<(), RequestError>)> + Send {
        // Moved in once: an `async fn` would hold it twice.
        let mut relay = self;
        async move {
            if !relay.response.head().status.is_success() {
                relay.ctx.record_plugins(transformer.task_uses());
                // Boxed, as all that a response seldom needs: most have no room for its state.
                return Box::pin(relay.failure()).await;
            }
            relay.ctx.mark_sent();
            let relayed = relay.success(transformer).await;
            // The task is closed before the last count is taken.
            transformer.close();
            relay.record_usage(transformer);
            relayed
        }
    }

    async fn success(
        &mut self,
        transformer: &mut ResponseTransformer,
    ) -> (RelayResult, Result<(), RequestError>) {
        let head = self.response.head();
        let headers = &head.fields;
        transformer.begin(head.status.as_u16(), |name| headers.get(name));
        transformer.read_billing_headers(headers.iter());
        self.one_event.is_on = self.ctx.response_started && !transformer.is_stream();
        // An announced length leaves no room for more.
        let has_room = transformer.is_stream() && !headers.contains("content-length");
        self.progress = match has_room {
            true => self.ctx.comment_interval.map(ProgressComments::new),
            false => None,
        };
        let is_compressed = transformer.inspects_body() && header_filter::is_compressed(headers);
        if has_room {
            self.response.detach_head();
        }
        if is_compressed {
            let broken = self.finish_broken(RelayStop::Broken, transformer);
            return (RelayResult::Compressed, Box::pin(broken).await.1);
        }
        let stop = loop {
            match self.next(transformer).await {
                Ok(ReadRound::More(bytes)) => {
                    if let Err(left) = self.forward_chunk(transformer, bytes).await {
                        return (RelayResult::Abandoned, Err(left));
                    }
                }
                Ok(ReadRound::Heartbeat(comment)) => {
                    let sending = self.send_heartbeat(transformer, comment);
                    if let Err(left) = Box::pin(sending).await {
                        return (RelayResult::Abandoned, Err(left));
                    }
                }
                Ok(ReadRound::End(bytes))
                    if self.may_be_error(transformer) && transformer.is_error(&bytes) =>
                {
                    break RelayStop::Failed;
                }
                Ok(ReadRound::End(bytes)) => {
                    return (RelayResult::Whole, self.finish(transformer, bytes).await);
                }
                // The client has the end mark, or gets it now: nothing was lost by a server that does not
                // end its framing.
                Err(
                    RelayStop::Broken
                    | RelayStop::Failed
                    | RelayStop::Silence
                    | RelayStop::Deadline,
                ) if transformer.is_done() => {
                    let last = self.out.split().freeze();
                    return (RelayResult::Whole, self.finish(transformer, last).await);
                }
                Err(stop) => break stop,
            }
        };
        Box::pin(self.finish_broken(stop, transformer)).await
    }

    /// Passes on a server's own error: its status, its words in the caller's dialect.
    async fn failure(&mut self) -> (RelayResult, Result<(), RequestError>) {
        let status = self.response.head().status.as_u16();
        loop {
            match self.next_chunk().await {
                Ok(Some(chunk)) if self.out.len() + chunk.len() <= ERROR_BODY_MAX_BYTES => {
                    self.out.extend_from_slice(&chunk);
                }
                // The status already reports the failure.
                Ok(_)
                | Err(
                    RelayStop::Broken | RelayStop::Failed | RelayStop::Silence | RelayStop::Task(_),
                ) => break,
                Err(RelayStop::Deadline) => {
                    return (RelayResult::Abandoned, Err(Refusal::DeadlinePassed.into()));
                }
                Err(RelayStop::ClientGone) => {
                    self.ctx.record_client_gone();
                    return (RelayResult::Abandoned, Err(RequestError::Aborted));
                }
            }
        }
        let (code, outcome) = match status {
            // The server has answered; the request was wrong.
            ..500 => (5006, RequestOutcome::Completed),
            500.. => (3050, RequestOutcome::Failed),
        };
        self.ctx.record_server_error(code, outcome);
        let request_id = Some(&**self.ctx.request_id());
        let body = render::server_error(self.ctx.dialect(), status, &self.out.split(), request_id);
        let sent = self.send_error(status, body).await;
        if sent.is_err() {
            self.ctx.record_client_gone();
        }
        (RelayResult::Whole, sent)
    }

    async fn send_error(&mut self, status: u16, body: Vec<u8>) -> Result<(), RequestError> {
        if self.ctx.response_started {
            let mut event = BytesMut::with_capacity(body.len() + 32);
            let rules = self.ctx.dialect().rules();
            rules.write_error_event(&body, &mut event);
            return self.write_last(event.freeze()).await;
        }
        let head = self.head(status, JSON, Some(body.len() as u64));
        self.write_head(head).await?;
        self.write_last(body.into()).await
    }

    /// Reads what there is: at least one piece that is worth a write, or the end. Bytes that are readable at
    /// once go into one write; a single chunk goes on without a copy.
    async fn read_round(
        &mut self,
        transformer: &mut ResponseTransformer,
    ) -> Result<ReadRound, RelayStop> {
        let mut whole: Option<Bytes> = None;
        let mut next = match self.next_or_heartbeat().await? {
            UpstreamEvent::Chunk(chunk) => chunk,
            UpstreamEvent::Heartbeat(comment) => return Ok(ReadRound::Heartbeat(comment)),
        };
        loop {
            let Some(chunk) = next else {
                self.append(whole.take());
                transformer.finish(&mut self.out)?;
                return Ok(ReadRound::End(self.out.split().freeze()));
            };
            let pushed = transformer.push(&chunk, &mut self.out);
            match pushed.inspect_err(|_| self.prepend(whole.take()))? {
                PushOutput::First(len) if self.out.is_empty() && whole.is_none() => {
                    whole = Some(chunk.slice(..len));
                }
                PushOutput::First(len) => {
                    self.append(whole.take());
                    self.out.extend_from_slice(&chunk[..len]);
                }
                // What was held back as a whole piece came before what has just been appended.
                PushOutput::Out => self.prepend(whole.take()),
            }
            next = match self.response.chunk().now_or_never() {
                Some(Ok(None)) if self.out.is_empty() && transformer.ends_silently() => {
                    transformer.finish(&mut self.out)?;
                    return Ok(ReadRound::End(whole.unwrap_or_default()));
                }
                Some(Ok(ready)) if self.out.len() < GATHER_MAX_BYTES => ready,
                Some(Ok(Some(ready))) => {
                    // Over the bound by one piece at most; it is read already.
                    self.append(whole.take());
                    if let PushOutput::First(len) = transformer.push(&ready, &mut self.out)? {
                        self.out.extend_from_slice(&ready[..len]);
                    }
                    return Ok(ReadRound::More(self.out.split().freeze()));
                }
                Some(Ok(None)) => None,
                Some(Err(_)) => {
                    // The client gets to see what came together with the break.
                    self.prepend(whole.take());
                    return Err(RelayStop::Broken);
                }
                None if self.should_hold(transformer, whole.as_ref()) => {
                    self.append(whole.take());
                    self.next_chunk().await?
                }
                None => match whole.take() {
                    Some(first) => return Ok(ReadRound::More(first)),
                    None if self.out.is_empty() => match self.next_or_heartbeat().await? {
                        UpstreamEvent::Chunk(chunk) => chunk,
                        UpstreamEvent::Heartbeat(comment) => {
                            return Ok(ReadRound::Heartbeat(comment));
                        }
                    },
                    None => return Ok(ReadRound::More(self.out.split().freeze())),
                },
            };
        }
    }

    /// A status 200 over JSON says nothing yet: the body may still be an error's.
    fn may_be_error(&self, transformer: &ResponseTransformer) -> bool {
        !self.ctx.response_started && transformer.is_plain_json()
    }

    /// A short answer is not begun before it is known not to be an error.
    fn should_hold(&self, transformer: &ResponseTransformer, whole: Option<&Bytes>) -> bool {
        let read = self.out.len() + whole.map_or(0, Bytes::len);
        self.may_be_error(transformer) && read < ERROR_BODY_MAX_BYTES
    }

    fn prepend(&mut self, whole: Option<Bytes>) {
        if let Some(first) = whole {
            let after = self.out.split();
            self.out.extend_from_slice(&first);
            self.out.unsplit(after);
        }
    }

    fn append(&mut self, whole: Option<Bytes>) {
        if let Some(whole) = whole {
            self.out.extend_from_slice(&whole);
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, RelayStop> {
        loop {
            if let UpstreamEvent::Chunk(chunk) = self.next_or_heartbeat().await? {
                return Ok(chunk);
            }
        }
    }

    fn is_late(&self) -> bool {
        self.shared.clock.now() >= self.ctx.deadline
    }

    /// Records the usage that the response has reported so far. The last time is before the event is handed
    /// over.
    fn record_usage(&mut self, transformer: &ResponseTransformer) {
        note(self.ctx, transformer);
    }

    async fn forward_chunk(
        &mut self,
        transformer: &mut ResponseTransformer,
        bytes: Bytes,
    ) -> Result<(), RequestError> {
        if transformer.has_token() {
            self.ctx.record_first_byte();
        }
        let sent = self.send(transformer, bytes, false).await;
        match sent {
            // What is still kept here, the client has not got.
            Ok(()) if !self.backlog.is_empty() => {}
            Ok(()) => self.ctx.record_progress(transformer),
            Err(_) => {
                self.record_usage(transformer);
                self.record_write_failure(transformer);
            }
        }
        sent
    }

    async fn finish(
        &mut self,
        transformer: &mut ResponseTransformer,
        bytes: Bytes,
    ) -> Result<(), RequestError> {
        self.record_usage(transformer);
        if !bytes.is_empty() {
            self.ctx.record_first_byte();
        }
        self.ctx.set_outcome(RequestOutcome::Completed);
        let sent = self.send(transformer, bytes, true).await;
        if sent.is_err() && !transformer.is_done() {
            self.record_write_failure(transformer);
        }
        sent
    }

    /// Writes the head before the first bytes, then the bytes, until the deadline.
    async fn send(
        &mut self,
        transformer: &mut ResponseTransformer,
        bytes: Bytes,
        end: bool,
    ) -> Result<(), RequestError> {
        let whole = end.then_some(bytes.len());
        self.start(transformer, whole).await?;
        let bytes = self.one_event.wrap(bytes, end);
        self.ctx.mark_received(&bytes);
        if let Some(progress) = &mut self.progress {
            progress.record_bytes(&bytes);
        }
        if end {
            self.settle().await;
        }
        if end || transformer.is_done() || self.response.is_complete() {
            self.ctx.release_concurrency();
        }
        self.write(transformer, bytes, end).await
    }

    /// Writes the head unless it is out; `whole` is the length of an answer of which all is here.
    async fn start(
        &mut self,
        transformer: &mut ResponseTransformer,
        whole: Option<usize>,
    ) -> Result<(), RequestError> {
        if self.ctx.response_started {
            return Ok(());
        }
        let length = self.length(transformer, whole);
        self.ctx.is_streaming = transformer.is_stream();
        self.verbatim = transformer.passes_length();
        if whole.is_some() {
            // All is known before the head: it can say what the answer costs.
            self.ctx.price();
        }
        let status = self.response.head().status.as_u16();
        let content_type = transformer.content_type(self.own_content_type());
        let mut head = self.head(status, content_type, length);
        if let Some(bytes) = transformer.tensor_json_bytes() {
            head.append(JSON_BYTES_HEADER, bytes.to_string().as_bytes());
        }
        self.write_head(head).await
    }

    /// The length to announce: the server's own where bytes pass unchanged, else that of the whole
    /// when all of it is here.
    fn length(&self, transformer: &ResponseTransformer, whole: Option<usize>) -> Option<u64> {
        match self.response.announced_length() {
            Some(length) if transformer.passes_length() => Some(length),
            _ => whole.map(|length| length as u64),
        }
    }

    /// The client did not take what was sent to it.
    fn record_write_failure(&mut self, transformer: &ResponseTransformer) {
        match transformer.is_done() && self.backlog.is_empty() {
            true => self.ctx.set_outcome(RequestOutcome::Completed),
            false if self.is_late() => {
                self.ctx
                    .record_refusal(&Refusal::DeadlinePassed, RequestOutcome::CutByDeadline);
            }
            false => self.ctx.record_client_gone(),
        }
    }

    /// Writes the end of something that went wrong. The deadline may have passed already, so this
    /// has a moment of its own: the permit is still held.
    async fn write_last(&mut self, bytes: Bytes) -> Result<(), RequestError> {
        self.settle().await;
        self.ctx.release_concurrency();
        let writing = self.downstream.finish(bytes);
        match timeout(PARTING_TIMEOUT, writing).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(RequestError::Aborted),
        }
    }

    /// The last byte may have to wait for the event.
    async fn settle(&mut self) {
        if self.ctx.snapshot.event_before_last_byte {
            Box::pin(self.ctx.persist_event()).await;
        }
    }

    /// The answer stopped before its end. A stream gets an error event of its dialect; other framings are
    /// left broken, so that no client takes half an answer for a whole one.
    async fn finish_broken(
        &mut self,
        stop: RelayStop,
        transformer: &mut ResponseTransformer,
    ) -> (RelayResult, Result<(), RequestError>) {
        self.record_usage(transformer);
        self.ctx.has_model_failed = matches!(stop, RelayStop::Failed);
        let (relayed, refusal, outcome) = match stop {
            RelayStop::ClientGone if transformer.is_done() => {
                self.ctx.set_outcome(RequestOutcome::Completed);
                return (RelayResult::Abandoned, Err(RequestError::Aborted));
            }
            RelayStop::ClientGone => {
                self.ctx.record_client_gone();
                return (RelayResult::Abandoned, Err(RequestError::Aborted));
            }
            RelayStop::Deadline => (
                RelayResult::Abandoned,
                Refusal::DeadlinePassed,
                RequestOutcome::CutByDeadline,
            ),
            RelayStop::Silence | RelayStop::Broken | RelayStop::Failed => (
                RelayResult::ServerFailed,
                Refusal::UpstreamLost,
                RequestOutcome::CutByBackend,
            ),
            // The server has answered as it should.
            RelayStop::Task(refusal @ Refusal::ModelFailed { .. }) => {
                (RelayResult::Whole, refusal, RequestOutcome::Failed)
            }
            RelayStop::Task(refusal) => (RelayResult::Abandoned, refusal, RequestOutcome::Failed),
        };
        self.ctx.record_refusal(&refusal, outcome);
        // Events that came before the break are the client's, also when they came with it.
        let begins = !self.ctx.response_started && transformer.is_stream() && !self.out.is_empty();
        if begins {
            let status = self.response.head().status.as_u16();
            let content_type = transformer.content_type(self.own_content_type());
            let head = self.head(status, content_type, None);
            if let Err(left) = self.write_head(head).await {
                return (relayed, Err(left));
            }
            self.ctx.record_first_byte();
            self.ctx.mark_received(&self.out);
            self.ctx.is_streaming = true;
        }
        if !self.ctx.response_started {
            return (relayed, Err(RequestError::Refused(refusal)));
        }
        if transformer.is_stream() {
            transformer.abort(&mut self.out, &refusal);
            // The task may have counted to the end only now.
            self.record_usage(transformer);
            // The client may be gone as well; the event already says what happened.
            let event = self.out.split().freeze();
            let _ = self.write_last(event).await;
        }
        (relayed, Err(RequestError::Aborted))
    }
}

fn note(ctx: &mut RequestContext, transformer: &ResponseTransformer) {
    ctx.record_plugins(transformer.task_uses());
    ctx.record_usage(transformer);
}
