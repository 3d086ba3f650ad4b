//! Step 9 of the walk: a permit now, a place in the queue, or a refusal.
//!
//! It does not order the queue. While it waits it listens to three others: the deadline, the
//! client, and, on streams that want it, the time for a sign of life.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::admission::Ask;
use pingora_core::protocols::http::ServerSession;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::call::{Left, Trip};
use super::wire::Wire;
use super::{Shared, respond};
use crate::telemetry::Outcome;
use crate::upstream::{Entry, Lane, Permit, Waiter};

/// Waits for a permit of the lane. `heartbeat` is the span between two signs of life.
///
/// # Errors
/// The turnstile's refusal, the deadline, or the client left.
pub async fn admit(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
    lane: &Arc<Lane>,
    ask: Ask,
    heartbeat: Option<Duration>,
) -> Result<Permit, Left> {
    let (found, entry) = lane.gate.ask(ask);
    let waiting = found.gauges.depth;
    trip.story.admission(found, &entry);
    let entry = entry.inspect_err(|_| trip.found_waiting(waiting))?;
    let permit = match entry {
        Entry::Leased(permit) => permit,
        Entry::Queued(waiter) => {
            trip.found_waiting(waiter.found_waiting);
            trip.queue_begins();
            let turn = wait(shared, session, trip, waiter, heartbeat).await;
            trip.queue_ends();
            trip.story.waited(shared.clock.micros(), &turn);
            turn?
        }
    };
    trip.granted();
    Ok(permit)
}

async fn wait(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
    mut waiter: Waiter,
    heartbeat: Option<Duration>,
) -> Result<Permit, Left> {
    let deadline = sleep_until(shared.clock.instant(trip.deadline).into());
    tokio::pin!(deadline);
    let mut beats = heartbeat.map(beats);
    loop {
        tokio::select! {
            biased;
            turn = waiter.turn() => return turn.map_err(Left::Refused),
            () = client_gone(session) => {
                trip.client_gone();
                return Err(Left::Cut);
            }
            () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
            () = next_beat(&mut beats) => {
                tokio::select! {
                    biased;
                    beat = respond::heartbeat(session, trip) => {
                        if beat.is_err() {
                            trip.client_gone();
                            return Err(Left::Cut);
                        }
                    }
                    // Half a comment may be out: nothing can follow it.
                    () = &mut deadline => {
                        trip.refused(&Refusal::DeadlinePassed, Outcome::CutByDeadline);
                        return Err(Left::Cut);
                    }
                }
            }
        }
    }
}

/// Returns when the client has closed or reset its connection. Bytes of a pipelined request are
/// not a departure.
pub async fn client_gone(session: &mut ServerSession) {
    let wire = session
        .stream()
        .and_then(|stream| stream.as_any().downcast_ref::<Wire>());
    if let Some(wire) = wire {
        return wire.departed().await;
    }
    while session.read_body_or_idle(true).await.is_ok() {}
}

fn beats(every: Duration) -> Interval {
    let mut beats = interval_at(Instant::now() + every, every);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

async fn next_beat(beats: &mut Option<Interval>) {
    match beats {
        Some(beats) => {
            beats.tick().await;
        }
        None => std::future::pending().await,
    }
}
