//! Step 10 of the walk where another node serves: the request goes there, and its answer begins or it
//! comes back.
//!
//! Nothing is held here meanwhile but the body. Whoever answers tells the event; a request that comes
//! back, or whose node is lost before the first byte for the client, goes on here as if it had not been
//! away, with what is left of its budget.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use infergate_core::routing::fleet::Ended;
use infergate_core::routing::{Failure, Hops};
use infergate_core::{Millis, Refusal};
use pingora_core::protocols::http::ServerSession;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::admit::client_gone;
use super::away::Away;
use super::beat::Beats;
use super::call::{Left, Trip};
use super::explain::Forwarded;
use super::journey::{Going, last_word};
use crate::peer::{CameBack, Cause, Sent, Visit};
use crate::telemetry::ForwardResult;
use crate::upstream::{Exchange, Lane, Marks, Outgoing, SendError, saturated};

/// What came of a forward.
pub enum Reply {
    /// The node has begun to answer.
    Answer(Box<Away>),
    /// It has no room.
    NoRoom,
    /// It could not be reached, was lost, or its model servers failed. What another try counts as.
    Failed(Failure),
}

/// One forward on its way.
struct Forward<'a> {
    shared: &'a Shared,
    lane: &'a Lane,
    going: Going,
    sent: Sent,
    lent: Hops,
    began_us: u64,
}

/// Sends the request to another node and waits until it answers or comes back. `beats` go to the
/// client while it waits there.
///
/// # Errors
/// The deadline, or the client left.
pub async fn forward(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
    lane: &Lane,
    going: Going,
    beats: &mut Beats,
) -> Result<Reply, Left> {
    let began_us = shared.clock.micros();
    // The way there and back is not the other node's to use up.
    let left = trip.deadline.since(Millis(began_us / 1000));
    let left = left.since(Millis(u64::from(going.chosen.rtt_us).div_ceil(1000)));
    let sent = shared.others.sent(&going.chosen);
    let (lent, headers) = headers(trip, lane, &going, left)?;
    let forward = Forward {
        shared,
        lane,
        going,
        sent,
        lent,
        began_us,
    };
    trip.story.forwards(began_us, &forward.going);
    forward.run(session, trip, &headers, beats).await
}

/// The head of the forwarded request, and what it takes along.
fn headers(
    trip: &mut Trip,
    lane: &Lane,
    going: &Going,
    left: Millis,
) -> Result<(Hops, BytesMut), Refusal> {
    let request_id = Arc::clone(trip.request_id());
    let (elapsed_us, is_limited) = (trip.elapsed_us(), trip.is_limited());
    let event = trip.event();
    let account = event.account_id.clone().ok_or(Refusal::Internal)?;
    let asked_model = event.asked_model_id.clone();
    let (attempts, queued_us) = (event.attempts, event.queuing_time_us);
    let journey = trip.journey.as_mut().ok_or(Refusal::Internal)?;
    let lent = journey.go(going, left);
    let visit = Visit {
        from: Arc::clone(&trip.world.node),
        hops: lent,
        request_id,
        account,
        is_limited,
        model: lane.spec.id.clone(),
        asked_model,
        path: journey.path.clone(),
        attempts,
        elapsed_us,
        queued_us,
        only_site: journey.only_site.clone(),
    };
    let mut headers = BytesMut::with_capacity(journey.parcel.headers.len() + 512);
    headers.extend_from_slice(&journey.parcel.headers);
    visit.write(&mut headers);
    Ok((visit.hops, headers))
}

impl Forward<'_> {
    async fn run(
        self,
        session: &mut ServerSession,
        trip: &mut Trip,
        headers: &[u8],
        beats: &mut Beats,
    ) -> Result<Reply, Left> {
        match self.wait(session, trip, headers, beats).await {
            Ok(Ok((exchange, first))) => self.answered(trip, exchange, first).await,
            Ok(Err(error)) => Ok(self.lost(trip, &error)),
            Err(left) => {
                self.lane.metrics.forwarded(ForwardResult::CutOff);
                // It had all the time there was, and then some for its word to arrive.
                if let Left::Refused(Refusal::DeadlinePassed) = left {
                    self.sent.ended(Ended::Failed);
                }
                Err(left)
            }
        }
    }

    /// The head of an answer and its first piece, while listening to client and deadline.
    async fn wait(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        headers: &[u8],
        beats: &mut Beats,
    ) -> Result<Result<(Exchange, Option<Bytes>), SendError>, Left> {
        let shared = self.shared;
        let mut marks = Marks::on(shared.clock);
        let (target, body) = match &trip.journey {
            Some(journey) => (journey.parcel.target.clone(), journey.parcel.body.clone()),
            None => return Err(Refusal::Internal.into()),
        };
        let chosen = &self.going.chosen;
        let begun = async {
            let outgoing = Outgoing {
                method: "POST",
                path: &target,
                headers,
                body: &body,
                fresh: false,
            };
            let sending = shared
                .channel
                .send(&chosen.node, &chosen.address, outgoing, &mut marks);
            let mut exchange = sending.await?;
            // The client has seen nothing before this: until it is here, another node may answer.
            let first = exchange.chunk().await;
            let first = first.map_err(|error| SendError::Lost(error.into()))?;
            Ok((exchange, first))
        };
        tokio::pin!(begun);
        let last_word = last_word(chosen.rtt_us);
        let last_word = Instant::from(shared.clock.instant(trip.deadline)) + last_word;
        let deadline = sleep_until(last_word);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                answered = &mut begun => return Ok(answered),
                () = client_gone(session) => {
                    trip.client_gone();
                    return Err(Left::Cut);
                }
                () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
                () = beats.next() => beats.beat(session, trip, last_word).await?,
            }
        }
    }

    /// A head came: an answer for the client, or the request comes back.
    async fn answered(
        self,
        trip: &mut Trip,
        exchange: Exchange,
        first: Option<Bytes>,
    ) -> Result<Reply, Left> {
        let came_back = match CameBack::read(&exchange.head().headers) {
            Ok(None) => return Ok(Reply::Answer(Box::new(self.begins(trip, exchange, first)))),
            Ok(Some(came_back)) => came_back,
            Err(error) => return Ok(self.lost(trip, &SendError::Lost(error.into()))),
        };
        let journey = trip.journey.as_mut().ok_or(Refusal::Internal)?;
        if let Err(error) = journey.hops.came_back(&self.lent, &came_back.hops) {
            return Ok(self.lost(trip, &SendError::Lost(error.into())));
        }
        self.shared.channel.finish(exchange).await;
        let (reply, ended, result) = match came_back.cause {
            Cause::NoRoom { free, wait_ms } => {
                journey.hops.tries.no_room();
                let ended = Ended::Refused { free, wait_ms };
                (Reply::NoRoom, ended, ForwardResult::NoRoom)
            }
            Cause::Failed => {
                let reply = Reply::Failed(Failure::Failed);
                (reply, Ended::ServersFailed, ForwardResult::Failed)
            }
        };
        let event = trip.event();
        event.attempts = event.attempts.max(came_back.attempts);
        self.ends(trip, ended, result);
        Ok(reply)
    }

    fn begins(self, trip: &mut Trip, exchange: Exchange, first: Option<Bytes>) -> Away {
        let now_us = self.shared.clock.micros();
        let status = exchange.head().status.as_u16();
        trip.story.forwarded(now_us, Forwarded::Answers(status));
        self.lane.metrics.forwarded(ForwardResult::Answered);
        self.sent.answers();
        if let Some(journey) = &mut trip.journey {
            journey.set_told_elsewhere(true);
        }
        let ttft_us = saturated(now_us.saturating_sub(self.began_us));
        Away::new(exchange, first, self.sent, &self.going.chosen, ttft_us)
    }

    /// It could not be reached, or was lost on the way. The work of a lost node is lost with it, so
    /// another try adds none.
    fn lost(self, trip: &mut Trip, error: &SendError) -> Reply {
        tracing::warn!(
            request_id = &**trip.request_id(),
            node = &*self.going.chosen.node.name,
            error = error as &dyn std::error::Error,
            "no answer from another node"
        );
        let result = match error {
            SendError::Connect(_) => ForwardResult::ConnectFailed,
            SendError::NotTrusted(_) => ForwardResult::NotTrusted,
            SendError::Lost(_) => ForwardResult::Lost,
        };
        if let Some(journey) = &mut trip.journey {
            match result {
                ForwardResult::Lost => journey.hops.lost(&self.lent),
                _ => journey.hops.tries.error(),
            };
        }
        self.ends(trip, Ended::Failed, result);
        Reply::Failed(Failure::NotConnected)
    }

    fn ends(self, trip: &mut Trip, ended: Ended, result: ForwardResult) {
        let how = match ended {
            Ended::Refused { free, wait_ms } => Forwarded::ComesBack {
                result,
                free,
                wait_ms,
            },
            _ => Forwarded::Ended(result),
        };
        trip.story.forwarded(self.shared.clock.micros(), how);
        self.lane.metrics.forwarded(result);
        self.sent.ended(ended);
    }
}
