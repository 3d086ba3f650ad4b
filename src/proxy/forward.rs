//! Step 10 of the walk where another node serves: the request goes there, and its answer begins or it
//! comes back.
//!
//! Only the body is held here meanwhile. The node that responds owns the event. A request that is rejected,
//! or whose node is lost before a permit was granted, goes on here with the rest of its budget. A request
//! that is given up is reset, so that the other node does not start it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use infergate_core::routing::fleet::{Chosen, Ended};
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
use super::interim;
use super::journey::{Going, last_word};
use crate::peer::{CameBack, Cause, Hearing, Sent, Visit, Watch};
use crate::telemetry::ForwardResult;
use crate::upstream::{Exchange, Lane, Outgoing, SendError, saturated};

/// Result of a forward.
pub enum Reply {
    /// The node has begun to answer.
    Answer(Box<Away>),
    /// The node has no capacity.
    NoRoom,
    /// The node could not be reached, was lost before it had granted a permit, or its model servers failed.
    /// The value is the class of failure for the retry budget.
    Failed(Failure),
    /// The node was lost after it had granted a permit: a model server may have started to work.
    Lost,
}

/// Forward in flight.
struct Forward<'a> {
    shared: &'a Shared,
    lane: &'a Lane,
    going: Going,
    sent: Sent,
    lent: Hops,
    began_us: u64,
    hearing: Hearing,
    watch: Watch,
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
    let generation = shared.others.here().generation;
    let (lent, headers) = headers(trip, lane, &going, (generation, left))?;
    let forward = Forward {
        shared,
        lane,
        hearing: Hearing::begin(shared.clock),
        watch: shared.others.watch(&going.chosen.node),
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
    (generation, left): (u64, Millis),
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
        generation,
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
        tariff: match journey.is_first() {
            true => lane.tariff_text.clone(),
            false => journey.tariff().cloned(),
        },
    };
    let mut headers = BytesMut::with_capacity(journey.parcel.headers.len() + 512);
    headers.extend_from_slice(&journey.parcel.headers);
    visit.write(&mut headers);
    Ok((visit.hops, headers))
}

impl Forward<'_> {
    async fn run(
        mut self,
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

    /// The head of an answer and its first piece, while listening to client, deadline, and whether the
    /// node still lives.
    async fn wait(
        &mut self,
        session: &mut ServerSession,
        trip: &mut Trip,
        headers: &[u8],
        beats: &mut Beats,
    ) -> Result<Result<(Exchange, Option<Bytes>), SendError>, Left> {
        let Forward {
            shared,
            going: Going { chosen, .. },
            hearing,
            watch,
            ..
        } = self;
        let Some(journey) = &trip.journey else {
            return Err(Refusal::Internal.into());
        };
        let (target, body) = (journey.parcel.target.clone(), journey.parcel.body.clone());
        let outgoing = Outgoing {
            method: "POST",
            path: &target,
            headers,
            body: &body,
            fresh: false,
        };
        let begun = begun(shared, chosen, outgoing, hearing);
        tokio::pin!(begun);
        let last_word =
            Instant::from(shared.clock.instant(trip.deadline)) + last_word(chosen.rtt_us);
        let deadline = sleep_until(last_word);
        tokio::pin!(deadline);
        let lost_in_line = shared.others.lost_in_line(&chosen.node, hearing);
        let lost_at_work = watch.lost();
        tokio::pin!(lost_in_line, lost_at_work);
        let mut is_granted = false;
        loop {
            tokio::select! {
                biased;
                answered = &mut begun => return Ok(answered),
                () = client_gone(session) => {
                    trip.client_gone();
                    return Err(Left::Cut);
                }
                () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
                () = hearing.grant(), if !is_granted => {
                    is_granted = true;
                    // Whoever forwards it here may not repeat it from now on.
                    interim::granted(shared, session, trip).await?;
                }
                () = &mut lost_in_line, if !is_granted => return Ok(Err(fell_silent())),
                () = &mut lost_at_work, if is_granted => return Ok(Err(fell_silent())),
                () = beats.next() => beats.beat(shared, session, trip, last_word).await?,
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
        let rtt_us = self.going.chosen.rtt_us;
        Away::new(exchange, first, self.sent, self.watch, rtt_us, ttft_us)
    }

    /// Records that the node could not be reached or was lost. No server has started to work unless a permit
    /// was granted.
    fn lost(self, trip: &mut Trip, error: &SendError) -> Reply {
        let is_granted = self.hearing.is_granted();
        tracing::warn!(
            request_id = &**trip.request_id(),
            node = &*self.going.chosen.node.name,
            granted = is_granted,
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
                ForwardResult::Lost if is_granted => journey.hops.lost(&self.lent),
                ForwardResult::Lost => journey.hops.lost_in_line(),
                _ => journey.hops.tries.error(),
            };
        }
        self.ends(trip, Ended::Failed, result);
        match is_granted {
            true => Reply::Lost,
            false => Reply::Failed(Failure::NotConnected),
        }
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
        if result != ForwardResult::NoRoom {
            let site = &self.going.chosen.site;
            self.shared.metrics.forward_failed(site, result);
        }
        self.sent.ended(ended);
    }
}

/// Sends it, and reads the head of an answer with its first piece.
async fn begun(
    shared: &Shared,
    chosen: &Chosen,
    outgoing: Outgoing<'_>,
    hearing: &Hearing,
) -> Result<(Exchange, Option<Bytes>), SendError> {
    let channel = &shared.channel;
    let sending = channel.forward(&chosen.node, &chosen.address, outgoing, hearing);
    let mut exchange = sending.await?;
    // The client has seen nothing before this.
    let first = exchange.chunk().await;
    let first = first.map_err(|error| SendError::Lost(error.into()))?;
    Ok((exchange, first))
}

fn fell_silent() -> SendError {
    SendError::Lost("the node fell silent".into())
}
