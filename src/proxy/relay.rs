//! Step 11 of the walk: the model server's answer to the client, chunk by chunk.
//!
//! Not the meaning of the bytes, which the [`Answer`] reads. While the client keeps up, memory is bounded by
//! one gathered write. While it does not take a write, the server is read on into a [`Backlog`], so that the
//! permit goes back with the server's last byte. Every wait also listens to the client, the deadline and the
//! server's silence.

mod ahead;
mod head;
mod signs;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderValue, header};
use infergate_core::Refusal;
use infergate_core::api::Face;
use pingora_core::protocols::http::ServerSession;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::backlog::{Backlog, ReaderPace};
use super::call::{Left, Trip};
use super::event::OneEvent;
use super::progress::Progress;
use super::wire::Wire;
use super::{Shared, rules};
use crate::telemetry::Outcome;
use crate::upstream::{Answer, AnswerError, Exchange, Push, client_error_body, is_error_body};
use signs::Next;

/// Bytes that are readable at once are gathered into one write up to this size.
const GATHER_MAX_BYTES: usize = 64 * 1024;
/// A server's own error is read up to this size and passed on in the caller's dialect.
const ERROR_BODY_MAX_BYTES: usize = 64 * 1024;
/// For the last words of an answer that went wrong.
const PARTING_TIMEOUT: Duration = Duration::from_secs(2);
/// Events and errors have a type of their own; what else a server says passes as it says it.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How the relay of a server's answer ended, for the server's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// The server's answer was read to its end.
    Whole,
    /// The server broke off or fell silent.
    ServerFailed,
    /// The server compressed an answer that has to be read.
    Compressed,
    /// The client or the deadline ended it; the server is not to blame.
    Abandoned,
}

/// Why the next piece of the answer does not come.
enum Stop {
    ClientGone,
    Deadline,
    Silence,
    Broken,
    /// The model's task does not let it pass.
    Task(Refusal),
}

impl From<AnswerError> for Stop {
    fn from(error: AnswerError) -> Stop {
        match error {
            AnswerError::Refused(refusal) => Stop::Task(*refusal),
            _ => Stop::Broken,
        }
    }
}

/// Result of one round of reading.
enum Gathered {
    /// Worth a write; more may come.
    More(Bytes),
    /// The end of the answer.
    End(Bytes),
    /// No bytes: a heartbeat is due.
    Silence(Bytes),
}

/// How far the server's answer was read ahead of the client.
enum ReadAhead {
    /// Not to its end.
    Reading,
    /// To its end; the permit is back.
    Ended,
    /// Until it broke off.
    Stopped(Stop),
}

/// Gives the permit back, with how the relay of the server's answer ended.
pub type Release<'a> = dyn FnMut(Relayed, &mut Trip) + Send + 'a;

/// Relays one answer.
pub struct Relay<'a> {
    shared: &'a Shared,
    session: &'a mut ServerSession,
    trip: &'a mut Trip,
    exchange: &'a mut Exchange,
    /// Read and not yet written.
    out: BytesMut,
    /// The server's bytes pass as they are.
    verbatim: bool,
    one_event: OneEvent,
    /// Signs of life to the client of a stream whose model has them.
    progress: Option<Progress>,
    /// When the wait for the server's next word began.
    silent_from: Option<Instant>,
    /// The deadline, or the end of the patience with a silent server, whichever is first.
    timer: Pin<Box<Sleep>>,
    /// Read and shaped while the client did not take what came before.
    backlog: Backlog,
    ahead: ReadAhead,
    /// Begun with the first time the backlog was full.
    pace: Option<ReaderPace>,
    /// Bytes the client's connection has taken.
    sent: Option<Arc<AtomicU64>>,
    release: &'a mut Release<'a>,
}

impl<'a> Relay<'a> {
    /// Begins with a server's head.
    pub fn new(
        shared: &'a Shared,
        session: &'a mut ServerSession,
        trip: &'a mut Trip,
        exchange: &'a mut Exchange,
        release: &'a mut Release<'a>,
    ) -> Relay<'a> {
        let wire = session
            .stream()
            .and_then(|stream| stream.as_any().downcast_ref::<Wire>());
        let sent = wire.map(|wire| Arc::clone(wire.sent()));
        let deadline = shared.clock.instant(trip.deadline).into();
        let timer = Box::pin(sleep_until(deadline));
        Relay {
            shared,
            session,
            trip,
            exchange,
            out: BytesMut::new(),
            verbatim: false,
            one_event: OneEvent::default(),
            progress: None,
            silent_from: None,
            timer,
            backlog: Backlog::new(&shared.backlogs),
            ahead: ReadAhead::Reading,
            pace: None,
            sent,
            release,
        }
    }

    /// Sends the server's answer, a 2xx through `answer`, and notes what it told. The exchange is read
    /// to its end or left unfinished; either way the caller disposes of it.
    pub async fn run(mut self, answer: &mut Answer, face: Face) -> (Relayed, Result<(), Left>) {
        if !self.exchange.head().status.is_success() {
            self.trip.had_say(answer.task_uses());
            return self.failure(face).await;
        }
        self.trip.is_sent();
        let relayed = self.success(answer).await;
        // The task hears of the end before the last count is taken.
        answer.close();
        self.note(answer);
        relayed
    }

    async fn success(&mut self, answer: &mut Answer) -> (Relayed, Result<(), Left>) {
        let head = self.exchange.head();
        let headers = &head.headers;
        answer.begin(head.status.as_u16(), |name| {
            headers.get(name).map(HeaderValue::as_bytes)
        });
        answer.read_bill(rules::lines(headers));
        let own = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        let told = HeaderValue::from_bytes(answer.content_type(own)).unwrap_or(JSON);
        self.one_event.is_on = self.trip.committed && !answer.is_stream();
        // An announced length leaves no room for more.
        let has_room = answer.is_stream() && !headers.contains_key(header::CONTENT_LENGTH);
        self.progress = match has_room {
            true => self.trip.signs_every.map(Progress::new),
            false => None,
        };
        if answer.is_read() && rules::is_compressed(headers) {
            let (_, ended) = self.broke_off(Stop::Broken, answer, &told).await;
            return (Relayed::Compressed, ended);
        }
        loop {
            match self.next(answer).await {
                Ok(Gathered::More(bytes)) => {
                    if let Err(left) = self.forward(answer, &told, bytes).await {
                        return (Relayed::Abandoned, Err(left));
                    }
                }
                Ok(Gathered::Silence(comment)) => {
                    if let Err(left) = self.give_sign(answer, &told, comment).await {
                        return (Relayed::Abandoned, Err(left));
                    }
                }
                Ok(Gathered::End(bytes)) if self.may_be_error(answer) && is_error_body(&bytes) => {
                    return self.broke_off(Stop::Broken, answer, &told).await;
                }
                Ok(Gathered::End(bytes)) => {
                    return (Relayed::Whole, self.end(answer, &told, bytes).await);
                }
                // The client has the end mark, or gets it now: nothing was lost by a server that does not
                // end its framing.
                Err(Stop::Broken | Stop::Silence | Stop::Deadline) if answer.done_seen() => {
                    let last = self.out.split().freeze();
                    return (Relayed::Whole, self.end(answer, &told, last).await);
                }
                Err(stop) => return self.broke_off(stop, answer, &told).await,
            }
        }
    }

    /// Passes on a server's own error: its status, its words in the caller's dialect.
    async fn failure(mut self, face: Face) -> (Relayed, Result<(), Left>) {
        let status = self.exchange.head().status.as_u16();
        loop {
            match self.next_chunk().await {
                Ok(Some(chunk)) if self.out.len() + chunk.len() <= ERROR_BODY_MAX_BYTES => {
                    self.out.extend_from_slice(&chunk);
                }
                // The status has told the most of it.
                Ok(_) | Err(Stop::Broken | Stop::Silence | Stop::Task(_)) => break,
                Err(Stop::Deadline) => {
                    return (Relayed::Abandoned, Err(Refusal::DeadlinePassed.into()));
                }
                Err(Stop::ClientGone) => {
                    self.trip.client_gone();
                    return (Relayed::Abandoned, Err(Left::Cut));
                }
            }
        }
        let event = self.trip.event();
        (event.error_code, event.outcome) = match status {
            // The server has answered; the request was wrong.
            ..500 => (Some(5006), Outcome::Completed),
            500.. => (Some(3050), Outcome::Failed),
        };
        let body = client_error_body(face, status, &self.out.split());
        let sent = self.send_error(status, body).await;
        if sent.is_err() {
            self.trip.client_gone();
        }
        (Relayed::Whole, sent)
    }

    async fn send_error(&mut self, status: u16, body: Vec<u8>) -> Result<(), Left> {
        if self.trip.committed {
            let event = [b"data: ", &body[..], b"\n\n"].concat();
            return self.write_last(event.into()).await;
        }
        self.write_head(status, JSON, Some(body.len().into()))
            .await?;
        self.write_last(body.into()).await
    }

    /// Reads what there is: at least one piece that is worth a write, or the end. Bytes that are readable at
    /// once go into one write; a single chunk goes on without a copy.
    async fn gather(&mut self, answer: &mut Answer) -> Result<Gathered, Stop> {
        let mut whole: Option<Bytes> = None;
        let mut next = match self.next_or_sign().await? {
            Next::Chunk(chunk) => chunk,
            Next::SignOfLife(comment) => return Ok(Gathered::Silence(comment)),
        };
        loop {
            let Some(chunk) = next else {
                self.join(whole.take());
                answer.finish(&mut self.out)?;
                return Ok(Gathered::End(self.out.split().freeze()));
            };
            let pushed = answer.push(&chunk, &mut self.out);
            match pushed.inspect_err(|_| self.put_before(whole.take()))? {
                Push::Whole if self.out.is_empty() && whole.is_none() => whole = Some(chunk),
                Push::Whole => {
                    self.join(whole.take());
                    self.out.extend_from_slice(&chunk);
                }
                // What was held back as a whole piece came before what has just been appended.
                Push::Out => self.put_before(whole.take()),
            }
            next = match self.exchange.chunk().now_or_never() {
                Some(Ok(None)) if self.out.is_empty() && answer.ends_silently() => {
                    answer.finish(&mut self.out)?;
                    return Ok(Gathered::End(whole.unwrap_or_default()));
                }
                Some(Ok(ready)) if self.out.len() < GATHER_MAX_BYTES => ready,
                Some(Ok(Some(ready))) => {
                    // Over the bound by one piece at most; it is read already.
                    self.join(whole.take());
                    let pushed = answer.push(&ready, &mut self.out)?;
                    if pushed == Push::Whole {
                        self.out.extend_from_slice(&ready);
                    }
                    return Ok(Gathered::More(self.out.split().freeze()));
                }
                Some(Ok(None)) => None,
                Some(Err(_)) => {
                    // The client gets to see what came together with the break.
                    self.put_before(whole.take());
                    return Err(Stop::Broken);
                }
                None if self.holds(answer, whole.as_ref()) => {
                    self.join(whole.take());
                    self.next_chunk().await?
                }
                None => match whole.take() {
                    Some(first) => return Ok(Gathered::More(first)),
                    None if self.out.is_empty() => match self.next_or_sign().await? {
                        Next::Chunk(chunk) => chunk,
                        Next::SignOfLife(comment) => return Ok(Gathered::Silence(comment)),
                    },
                    None => return Ok(Gathered::More(self.out.split().freeze())),
                },
            };
        }
    }

    /// A status 200 over JSON says nothing yet: the body may still be an error's.
    fn may_be_error(&self, answer: &Answer) -> bool {
        !self.trip.committed && answer.is_plain_json()
    }

    /// A short answer is not begun before it is known not to be an error.
    fn holds(&self, answer: &Answer, whole: Option<&Bytes>) -> bool {
        let read = self.out.len() + whole.map_or(0, Bytes::len);
        self.may_be_error(answer) && read < ERROR_BODY_MAX_BYTES
    }

    fn put_before(&mut self, whole: Option<Bytes>) {
        if let Some(first) = whole {
            let after = self.out.split();
            self.out.extend_from_slice(&first);
            self.out.unsplit(after);
        }
    }

    fn join(&mut self, whole: Option<Bytes>) {
        if let Some(whole) = whole {
            self.out.extend_from_slice(&whole);
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Stop> {
        loop {
            if let Next::Chunk(chunk) = self.next_or_sign().await? {
                return Ok(chunk);
            }
        }
    }

    fn is_late(&self) -> bool {
        self.shared.clock.now() >= self.trip.deadline
    }

    /// Records the usage that the response has reported so far. The last time is before the event is handed
    /// over.
    fn note(&mut self, answer: &Answer) {
        note(self.trip, answer);
    }

    async fn forward(
        &mut self,
        answer: &mut Answer,
        told: &HeaderValue,
        bytes: Bytes,
    ) -> Result<(), Left> {
        if answer.token_seen() {
            self.trip.first_byte();
        }
        let sent = self.send(answer, told, bytes, false).await;
        match sent {
            // What is still kept here, the client has not got.
            Ok(()) if !self.backlog.is_empty() => {}
            Ok(()) => self.trip.progress(answer),
            Err(_) => {
                self.note(answer);
                self.unsent(answer);
            }
        }
        sent
    }

    async fn end(
        &mut self,
        answer: &mut Answer,
        told: &HeaderValue,
        bytes: Bytes,
    ) -> Result<(), Left> {
        self.note(answer);
        if !bytes.is_empty() {
            self.trip.first_byte();
        }
        self.trip.ends_as(Outcome::Completed);
        let sent = self.send(answer, told, bytes, true).await;
        if sent.is_err() && !answer.done_seen() {
            self.unsent(answer);
        }
        sent
    }

    /// Writes the head before the first bytes, then the bytes, until the deadline.
    async fn send(
        &mut self,
        answer: &mut Answer,
        told: &HeaderValue,
        bytes: Bytes,
        end: bool,
    ) -> Result<(), Left> {
        let whole = end.then_some(bytes.len());
        self.begin(answer, told, whole).await?;
        let bytes = self.one_event.piece(bytes, end);
        self.trip.received(&bytes);
        if let Some(progress) = &mut self.progress {
            progress.passes(&bytes);
        }
        if end {
            self.settle().await;
        }
        if end || answer.done_seen() || self.exchange.is_read() {
            self.trip.leaves_account();
        }
        self.write(answer, bytes, end).await
    }

    /// Writes the head unless it is out; `whole` is the length of an answer of which all is here.
    async fn begin(
        &mut self,
        answer: &mut Answer,
        told: &HeaderValue,
        whole: Option<usize>,
    ) -> Result<(), Left> {
        let deadline = self.shared.clock.instant(self.trip.deadline).into();
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        if self.trip.committed {
            return Ok(());
        }
        let length = self.length(answer, whole);
        self.trip.event().flags.streamed = answer.is_stream();
        self.verbatim = answer.passes_length();
        if whole.is_some() {
            // All is known before the head: it can say what the answer costs.
            self.trip.price();
        }
        let status = self.exchange.head().status.as_u16();
        self.write_head(status, told.clone(), length).await
    }

    /// The length to announce: the server's own where bytes pass unchanged, else that of the whole
    /// when all of it is here.
    fn length(&self, answer: &Answer, whole: Option<usize>) -> Option<HeaderValue> {
        let announced = self.exchange.head().headers.get(header::CONTENT_LENGTH);
        match announced {
            Some(length) if answer.passes_length() => Some(length.clone()),
            _ => whole.map(HeaderValue::from),
        }
    }

    /// The client did not take what was sent to it.
    fn unsent(&mut self, answer: &Answer) {
        match answer.done_seen() && self.backlog.is_empty() {
            true => self.trip.ends_as(Outcome::Completed),
            false if self.is_late() => {
                self.trip
                    .refused(&Refusal::DeadlinePassed, Outcome::CutByDeadline);
            }
            false => self.trip.client_gone(),
        }
    }

    /// Writes the end of something that went wrong. The deadline may have passed already, so this
    /// has a moment of its own: the permit is still held.
    async fn write_last(&mut self, bytes: Bytes) -> Result<(), Left> {
        self.settle().await;
        self.trip.leaves_account();
        let writing = self.session.write_response_body(bytes, true);
        match timeout(PARTING_TIMEOUT, writing).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Left::Cut),
        }
    }

    /// The last byte may have to wait for the event.
    async fn settle(&mut self) {
        if self.trip.world.event_before_last_byte {
            self.trip.settle_on_disk().await;
        }
    }

    /// The answer stopped before its end. A stream is told in its dialect; other framings are
    /// left broken, so that no client takes half an answer for a whole one.
    async fn broke_off(
        &mut self,
        stop: Stop,
        answer: &mut Answer,
        told: &HeaderValue,
    ) -> (Relayed, Result<(), Left>) {
        self.note(answer);
        let (relayed, refusal, outcome) = match stop {
            Stop::ClientGone if answer.done_seen() => {
                self.trip.ends_as(Outcome::Completed);
                return (Relayed::Abandoned, Err(Left::Cut));
            }
            Stop::ClientGone => {
                self.trip.client_gone();
                return (Relayed::Abandoned, Err(Left::Cut));
            }
            Stop::Deadline => (
                Relayed::Abandoned,
                Refusal::DeadlinePassed,
                Outcome::CutByDeadline,
            ),
            Stop::Silence | Stop::Broken => (
                Relayed::ServerFailed,
                Refusal::UpstreamLost,
                Outcome::CutByBackend,
            ),
            Stop::Task(refusal) => (Relayed::Abandoned, refusal, Outcome::Failed),
        };
        self.trip.refused(&refusal, outcome);
        // Events that came before the break are the client's, also when they came with it.
        let begins = !self.trip.committed && answer.is_stream() && !self.out.is_empty();
        if begins {
            let status = self.exchange.head().status.as_u16();
            if let Err(left) = self.write_head(status, told.clone(), None).await {
                return (relayed, Err(left));
            }
            self.trip.first_byte();
            self.trip.received(&self.out);
            self.trip.event().flags.streamed = true;
        }
        if !self.trip.committed {
            return (relayed, Err(Left::Refused(refusal)));
        }
        if answer.is_stream() {
            answer.abort(&mut self.out, &refusal);
            // The task may have counted to the end only now.
            self.note(answer);
            // The client may be gone as well; the event already says what happened.
            let event = self.out.split().freeze();
            let _ = self.write_last(event).await;
        }
        (relayed, Err(Left::Cut))
    }
}

fn note(trip: &mut Trip, answer: &Answer) {
    trip.used(answer.usage());
    trip.had_say(answer.task_uses());
    trip.spent(answer);
}
