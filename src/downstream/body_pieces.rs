//! Body of an HTTP/1 request in pieces, for what is larger than memory.
//!
//! Not counted in the budget of bodies: a piece is a slice of the connection's buffer, and the next one is read once
//! the caller has come back. The pace asked of clients is that of whole bodies.

use bytes::{Bytes, BytesMut};
use infergate_core::admission::bodies::BodyPace;
use infergate_core::{Millis, Refusal};
use tokio::time::timeout_at;

use super::session::{RequestReadError, Session};
use crate::http1::BodyStep;
use crate::pipeline::{RequestContext, RequestError, interim};
use crate::state::Shared;

/// Body that is read piece by piece.
pub struct BodyPieces {
    pace: BodyPace,
    idle: Millis,
    silent_at: Millis,
    left: u64,
}

impl BodyPieces {
    /// Begins to read a body of at most `limit` bytes.
    ///
    /// # Errors
    /// Too large by its head; or the client left.
    pub async fn begin(
        shared: &Shared,
        session: &mut Session,
        ctx: &RequestContext,
        limit: u64,
    ) -> Result<BodyPieces, RequestError> {
        if session.body_length().is_some_and(|length| length > limit) {
            return Err(Refusal::BodyTooLarge.into());
        }
        let idle = Millis::from_secs(ctx.snapshot.timeouts.request_body_idle_secs);
        let floor = ctx.snapshot.limits.body_min_kib_per_sec;
        session
            .send_continue()
            .await
            .map_err(|_| RequestError::Aborted)?;
        Ok(BodyPieces {
            pace: BodyPace::new(ctx.arrival, idle, floor),
            idle,
            silent_at: shared.clock.now() + idle,
            left: limit,
        })
    }

    /// Returns the next piece; none at the end.
    ///
    /// # Errors
    /// Too large, too slow, broken; or the client left.
    pub async fn next(
        &mut self,
        shared: &Shared,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<Option<Bytes>, RequestError> {
        loop {
            match session.take_body() {
                Ok(BodyStep::Data(piece)) => return self.take(shared, piece).map(Some),
                Ok(BodyStep::End) => return Ok(None),
                Ok(BodyStep::Partial) if session.announced_bytes() > self.left => {
                    return Err(Refusal::BodyTooLarge.into());
                }
                Ok(BodyStep::Partial) => {}
                Err(_) => {
                    let refusal = Refusal::BadFraming("the body's chunked encoding is broken");
                    return Err(refusal.into());
                }
            }
            interim::send_queued(shared, session, ctx).await?;
            let is_last_wait = ctx.deadline <= self.silent_at;
            let until = ctx.deadline.min(self.silent_at);
            let until = shared.clock.instant(until).into();
            let mut none = BytesMut::new();
            match timeout_at(until, session.read_more(&mut none, 0)).await {
                Ok(Ok(_)) => {}
                Ok(Err(RequestReadError::Closed)) => return Err(RequestError::Aborted),
                Ok(Err(_)) => return Err(Refusal::BadFraming("the body could not be read").into()),
                Err(_) if is_last_wait => return Err(Refusal::DeadlinePassed.into()),
                Err(_) => return Err(Refusal::RequestTimeout.into()),
            }
        }
    }

    fn take(&mut self, shared: &Shared, piece: Bytes) -> Result<Bytes, RequestError> {
        let length = piece.len() as u64;
        self.left = self.left.checked_sub(length).ok_or(Refusal::BodyTooLarge)?;
        let now = shared.clock.now();
        if !self.pace.record(length, now) {
            return Err(Refusal::RequestTimeout.into());
        }
        self.silent_at = now + self.idle;
        Ok(piece)
    }
}
