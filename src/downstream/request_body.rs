//! Body of an HTTP/1 request: whole, within its bounds.
//!
//! Not parsed here, but for the beginning of a large form: its file goes on to the server as it comes. The bytes that are
//! kept count against one budget for all requests, and its account's part of it, until the request ends. Read once: a small
//! body is a slice of the connection's buffer, a large one goes from the socket to where it stays.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use infergate_core::admission::bodies::BodyPace;
use infergate_core::api::Operation;
use infergate_core::api::arriving_form::FormStart;
use infergate_core::api::passed::{PassedApi, begin_rest, find_start};
use infergate_core::{Millis, Refusal};
use tokio::time::timeout_at;

use super::session::{RequestReadError, Session};
use crate::http1::BodyStep;
use crate::pipeline::{ArrivingBody, RequestContext, RequestError, interim};
use crate::state::Account;
use crate::state::BodyShare;
use crate::state::Shared;

/// Memory for a body that comes in several pieces, at least; from there it doubles.
const SEVERAL_PIECES_BYTES: u64 = 64 * 1024;

/// A body that announces at most so many bytes gets one place for all of them: it is never moved. Pages that no
/// byte has come to take no memory, and what has come counts against the budget.
const WHOLE_PLACE_BYTES_MAX: u64 = 1024 * 1024;

/// Room that is taken for such a body at least, where the budget has little left: a read of single bytes would cost a
/// system call each.
const STEP_BYTES_MIN: u64 = 4 * 1024;

/// A body of known length that has come so far is read to its place from here on.
const DIRECT_FROM_BYTES: u64 = 2 * 1024;

/// A form of so many bytes goes on as it comes, where its file follows the name of its model.
const ARRIVING_BYTES_MIN: u64 = 1024 * 1024;
/// Bytes among which the file of such a form begins; forms whose file begins later are read whole.
const START_BYTES_MAX: usize = 64 * 1024;

/// So many bytes come first, and within this time: a slower client's form is read whole, so that no permit is held for the
/// client's sake.
const FIRST_BYTES: usize = 256 * 1024;
const FIRST_WITHIN: Millis = Millis::from_secs(2);

/// Beginning of a form, while it is looked for.
pub struct WantedStart {
    api: PassedApi,
    content_type: String,
    is_judged: bool,
    found: Option<FormStart>,
}

impl WantedStart {
    /// None for a body that is read whole: no large form, or one that another node may get.
    // Boxed: other requests have no room for it.
    pub fn of(
        shared: &Shared,
        session: &Session,
        operation: Operation,
    ) -> Option<Box<WantedStart>> {
        let Operation::Passed(api) = operation else {
            return None;
        };
        let is_large = session
            .body_length()
            .is_some_and(|length| length >= ARRIVING_BYTES_MIN);
        if !(api.takes_form() && is_large && !shared.cluster.has_joined()) {
            return None;
        }
        let content_type = session.fields().text_of("content-type");
        Some(Box::new(WantedStart {
            api,
            content_type: content_type.unwrap_or("").to_owned(),
            is_judged: false,
            found: None,
        }))
    }

    /// Returns whether the rest may go on: its beginning has come, and in time. Judged once.
    fn has_come(&mut self, received: &[u8], after: Millis) -> bool {
        if self.is_judged || received.len() < FIRST_BYTES {
            return false;
        }
        self.is_judged = true;
        if after <= FIRST_WITHIN {
            let beginning = &received[..START_BYTES_MAX];
            self.found = find_start(self.api, &self.content_type, beginning);
        }
        self.found.is_some()
    }
}

/// Reads a large form: its beginning, where the rest may go on as it comes; that is the context's.
///
/// # Errors
/// As [`read_body`]; [`Refusal::BadRequest`] where what has come of the form is broken.
// Boxed here: the state of a request has no room for what few have.
pub fn read_form<'a>(
    shared: &'a Shared,
    session: &'a mut Session,
    ctx: &'a mut RequestContext,
    account: &'a Account,
    mut start: Box<WantedStart>,
) -> Pin<Box<impl Future<Output = Result<(Bytes, BodyShare), RequestError>> + Send + 'a>> {
    Box::pin(async move {
        let reading = read_until(shared, session, ctx, account, Some(&mut start));
        let (body, share) = reading.await?;
        if let Some(start) = &start.found {
            let left = session.body_length().unwrap_or(0);
            let rest = begin_rest(start, &body)?;
            ctx.arriving = (left > 0).then(|| Box::new(ArrivingBody::new(rest, left)));
        }
        Ok((body, share))
    })
}

/// Reads the body; the share holds its bytes in the budget, as they arrive.
///
/// # Errors
/// Too large, too slow, no budget; or the client left.
pub fn read_body<'a>(
    shared: &'a Shared,
    session: &'a mut Session,
    ctx: &'a mut RequestContext,
    account: &'a Account,
) -> impl Future<Output = Result<(Bytes, BodyShare), RequestError>> + Send + 'a {
    read_until(shared, session, ctx, account, None)
}

/// Reads the body, or as much as shows its beginning where that is wanted.
async fn read_until(
    shared: &Shared,
    session: &mut Session,
    ctx: &mut RequestContext,
    account: &Account,
    start: Option<&mut WantedStart>,
) -> Result<(Bytes, BodyShare), RequestError> {
    let limit = ctx.snapshot.limits.request_body_bytes();
    let length = session.body_length();
    if length.is_some_and(|length| length > limit) {
        return Err(Refusal::BodyTooLarge.into());
    }
    let mut share = shared
        .bodies
        .share(&account.bodies, ctx.snapshot.body_limits());
    // A body that does not fit now is refused before it is sent; nothing is taken for its length.
    let wanted = length.unwrap_or(0);
    let wanted = match &start {
        None => wanted,
        Some(_) => wanted.min(FIRST_BYTES as u64),
    };
    if !share.has_room_for(wanted) {
        return Err(Refusal::BodyBudgetSpent.into());
    }
    if session.send_continue().await.is_err() {
        return Err(client_left(ctx));
    }
    let mut body = BodyBuffer {
        length_max: length.unwrap_or(limit),
        ..BodyBuffer::default()
    };
    // Most bodies have come with their head: no clock is read and no timer set for them.
    let is_whole = take_received(session, &mut body, limit, &mut share)?;
    interim::send_queued(shared, session, ctx).await?;
    if !is_whole {
        // Boxed: few requests have room for the wait.
        Box::pin(read_rest(
            shared,
            session,
            ctx,
            (&mut body, &mut share),
            start,
        ))
        .await?;
    }
    Ok((body.into_whole(), share))
}

/// Takes what has come; returns whether the body is whole.
fn take_received(
    session: &mut Session,
    body: &mut BodyBuffer,
    limit: u64,
    share: &mut BodyShare,
) -> Result<bool, Refusal> {
    loop {
        let piece = match session.take_body() {
            Ok(BodyStep::Data(piece)) => piece,
            // A chunk that cannot fit is not waited for.
            Ok(BodyStep::Partial) if session.announced_bytes() > limit - body.length => {
                return Err(Refusal::BodyTooLarge);
            }
            Ok(BodyStep::Partial) => return Ok(false),
            Ok(BodyStep::End) => return Ok(true),
            Err(_) => {
                return Err(Refusal::BadFraming("the body's chunked encoding is broken"));
            }
        };
        if body.length + piece.len() as u64 > limit {
            return Err(Refusal::BodyTooLarge);
        }
        if !body.push(piece, share) {
            return Err(Refusal::BodyBudgetSpent);
        }
    }
}

/// Reads what has not come, at the pace that is asked of clients.
async fn read_rest(
    shared: &Shared,
    session: &mut Session,
    ctx: &mut RequestContext,
    (body, share): (&mut BodyBuffer, &mut BodyShare),
    mut start: Option<&mut WantedStart>,
) -> Result<(), RequestError> {
    let limit = ctx.snapshot.limits.request_body_bytes();
    let idle = Millis::from_secs(ctx.snapshot.timeouts.request_body_idle_secs);
    let floor = ctx.snapshot.limits.body_min_kib_per_sec;
    let mut pace = BodyPace::new(ctx.arrival, idle, floor);
    let mut counted = 0;
    // Bytes of the framing alone (a chunk's size, an extension, a trailer) do not break the silence: a client
    // that lets them drip would hold the request for as long as it likes.
    let mut silent_at = shared.clock.now() + idle;
    loop {
        if body.length > counted {
            let now = shared.clock.now();
            if !pace.record(body.length - counted, now) {
                return Err(Refusal::RequestTimeout.into());
            }
            silent_at = now + idle;
        }
        counted = body.length;
        if session.is_body_done() {
            return Ok(());
        }
        if let Some(start) = &mut start
            && !start.is_judged
        {
            let left = session.body_length().unwrap_or(0);
            if start.has_come(body.received(), shared.clock.now().since(ctx.arrival)) {
                return Ok(());
            }
            // Read whole then: what has no room is not sent on.
            if start.is_judged
                && !share.has_room_for((body.length + left).saturating_sub(share.bytes()))
            {
                return Err(Refusal::BodyBudgetSpent.into());
            }
        }
        let is_last_wait = ctx.deadline <= silent_at;
        let until = shared.clock.instant(ctx.deadline.min(silent_at)).into();
        let (into, max) = body.room(session, share)?;
        match timeout_at(until, session.read_more(into, max)).await {
            Ok(Ok(read)) => body.length += read as u64,
            Ok(Err(RequestReadError::Closed)) => return Err(client_left(ctx)),
            Ok(Err(_)) => return Err(Refusal::BadFraming("the body could not be read").into()),
            Err(_) if is_last_wait => return Err(Refusal::DeadlinePassed.into()),
            Err(_) => return Err(Refusal::RequestTimeout.into()),
        }
        take_received(session, body, limit, share)?;
        interim::send_queued(shared, session, ctx).await?;
    }
}

/// A body as far as it has come.
#[derive(Default)]
struct BodyBuffer {
    /// The only piece so far, kept as it is.
    first: Option<Bytes>,
    rest: BytesMut,
    length: u64,
    /// The length that was announced, or else the largest there may be, bytes.
    length_max: u64,
}

impl BodyBuffer {
    /// Adds a piece and takes memory for it; false, and nothing added, where there is none.
    fn push(&mut self, piece: Bytes, share: &mut BodyShare) -> bool {
        let length = self.length + piece.len() as u64;
        let is_first = share.bytes() == 0 && self.rest.is_empty();
        if !self.grow(length, share) {
            return false;
        }
        self.length = length;
        if is_first {
            self.first = Some(piece);
            return true;
        }
        self.gather(share);
        self.rest.extend_from_slice(&piece);
        true
    }

    /// Takes memory for so many bytes in all.
    fn grow(&self, length: u64, share: &mut BodyShare) -> bool {
        let held = share.bytes();
        // Of a body in several pieces as much again as has come, so that it is seldom moved.
        let target = match held {
            0 => length,
            _ => (2 * held)
                .max(SEVERAL_PIECES_BYTES)
                .min(self.length_max)
                .max(length),
        };
        let more = [target - held.min(target), length - held.min(length)];
        length <= held || more.into_iter().any(|more| share.grow(more))
    }

    /// Moves all pieces to one place with the memory that is held, or with room for the whole body.
    fn gather(&mut self, share: &BodyShare) {
        let bytes = match self.length_max <= WHOLE_PLACE_BYTES_MAX {
            true => self.length_max.max(share.bytes()),
            false => share.bytes(),
        };
        let capacity = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.rest.reserve(capacity.saturating_sub(self.rest.len()));
        if let Some(first) = self.first.take() {
            self.rest.extend_from_slice(&first);
        }
    }

    /// Returns the place of the next bytes of a body of known length, past the connection's buffer, and the most that
    /// may be read there.
    fn room(
        &mut self,
        session: &Session,
        share: &mut BodyShare,
    ) -> Result<(&mut BytesMut, u64), Refusal> {
        // Bytes that have not come take nothing from others: a client has to begin.
        if session.body_length().is_none() || self.length < DIRECT_FROM_BYTES {
            return Ok((&mut self.rest, 0));
        }
        if self.length >= share.bytes() {
            // Not beyond its end, which has not come.
            let next = (self.length + STEP_BYTES_MIN).min(self.length_max);
            if !self.grow(next, share) {
                return Err(Refusal::BodyBudgetSpent);
            }
            self.gather(share);
        }
        Ok((&mut self.rest, share.bytes() - self.length))
    }

    /// Bytes that have come.
    fn received(&self) -> &[u8] {
        self.first.as_deref().unwrap_or(&self.rest)
    }

    fn into_whole(self) -> Bytes {
        self.first.unwrap_or_else(|| self.rest.freeze())
    }
}

fn client_left(ctx: &mut RequestContext) -> RequestError {
    ctx.record_client_gone();
    RequestError::Aborted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> WantedStart {
        WantedStart {
            api: PassedApi::Transcriptions,
            content_type: "multipart/form-data; boundary=b".into(),
            is_judged: false,
            found: None,
        }
    }

    #[test]
    fn a_form_goes_on_when_its_client_is_quick_and_its_model_stands_before_the_file() {
        let model = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n";
        let file = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
        let data = vec![b'x'; FIRST_BYTES];
        let form = [model.as_bytes(), file.as_bytes(), &data].concat();
        let soon = FIRST_WITHIN;
        let late = Millis(FIRST_WITHIN.0 + 1);
        assert!(wanted().has_come(&form, soon));
        assert!(!wanted().has_come(&form[..FIRST_BYTES - 1], soon));
        let mut slow = wanted();
        assert!(!slow.has_come(&form, late));
        assert!(!slow.has_come(&form, soon), "judged once");
        let file_first = [file.as_bytes(), &data, model.as_bytes()].concat();
        assert!(!wanted().has_come(&file_first, soon));
        let hidden = vec![b'-'; START_BYTES_MAX];
        assert!(!wanted().has_come(&[&hidden, &form[..]].concat(), soon));
    }
}
