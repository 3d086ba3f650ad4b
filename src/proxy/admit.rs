//! Step 9 of the walk: a permit here, a node that has one, a place in the queue, or a refusal.
//!
//! Not the order of the queue and not the choice among nodes. While it waits it listens to four others: the
//! deadline, the client, news of other nodes, and, on streams that want it, the time for a sign of life.

use std::sync::Arc;

use infergate_core::admission::Ask;
use infergate_core::routing::fleet::Wants;
use infergate_core::{Millis, Refusal};
use pingora_core::protocols::http::ServerSession;
use tokio::time::sleep_until;

use super::Shared;
use super::beat::Beats;
use super::call::{Left, Trip};
use super::interim;
use super::journey::Going;
use super::wire::Wire;
use crate::peer::Want;
use crate::telemetry::Admission;
use crate::upstream::{Entry, Lane, Permit, Waiter};

/// `Retry-After` of a request that is bound to one full site, until that site's next report.
const THERE_AGAIN: Millis = Millis::from_secs(1);

/// Where the request is served.
pub enum Turn {
    /// Here, with this permit.
    Here(Permit),
    /// At another node.
    There(Going),
}

/// Waits for a permit of the lane, or for a node that has one.
///
/// # Errors
/// The turnstile's refusal where no other node has room either, the deadline, or the client left.
pub async fn admit(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
    lane: &Arc<Lane>,
    ask: Ask,
    beats: &mut Beats,
) -> Result<Turn, Left> {
    interim::still_wanted(shared, session, trip)?;
    let may_stay = trip
        .journey
        .as_ref()
        .is_none_or(|journey| journey.may_stay(&trip.world.site));
    if !may_stay {
        let refusal = Refusal::QueueFull {
            retry_after: THERE_AGAIN,
        };
        return Ok(elsewhere(shared, trip, lane, refusal, ask.no_wait)?);
    }
    // Whoever has failed here already comes after nodes that have not.
    let all_tried = !ask.avoid.is_empty() && !lane.gate.has_fresh(&ask.avoid);
    if all_tried && let Some(going) = look(shared, trip, lane, Wants::Permit, Millis::ZERO) {
        return Ok(Turn::There(going));
    }
    let mut ask = ask;
    let no_wait = ask.no_wait;
    // Other nodes come before waiting for endpoints to come back.
    let in_fleet = trip.journey.is_some();
    let waits_for_health = !ask.elsewhere;
    ask.elsewhere |= in_fleet;
    let mut entry = enter(trip, lane, ask.clone());
    if let Err(refusal) = entry {
        let refusal = match elsewhere(shared, trip, lane, refusal, no_wait) {
            Ok(turn) => return Ok(turn),
            Err(refusal) => refusal,
        };
        let is_first = in_fleet && trip.is_first();
        let waits = refusal == Refusal::NoHealthyEndpoint && waits_for_health && is_first;
        if !waits {
            return Err(refusal.into());
        }
        ask.elsewhere = false;
        entry = enter(trip, lane, ask);
    }
    let waiter = match entry? {
        Entry::Leased(permit) => {
            trip.granted();
            return Ok(Turn::Here(permit));
        }
        Entry::Queued(waiter) => waiter,
    };
    trip.found_waiting(waiter.found_waiting);
    trip.queue_begins();
    let place = Place::new(shared, trip, lane, &waiter);
    let turn = place.wait(session, trip, waiter, beats).await;
    trip.queue_ends();
    trip.story.waited(shared.clock.micros(), &turn);
    if let Ok(Turn::Here(_)) = turn {
        trip.granted();
    }
    turn
}

/// Asks at the gate here.
fn enter(trip: &mut Trip, lane: &Lane, ask: Ask) -> Result<Entry, Refusal> {
    let (found, entry) = lane.gate.ask(ask);
    let waiting = found.gauges.depth;
    let entry = too_long(trip, entry);
    lane.metrics.admission(match &entry {
        Ok(Entry::Leased(_)) => Admission::Leased,
        Ok(Entry::Queued(_)) => Admission::Queued,
        Err(refusal) => Admission::NoSlots(refusal),
    });
    trip.story.admission(found, &entry);
    entry.inspect_err(|_| trip.found_waiting(waiting))
}

/// A request that another node forwards waits no longer than that node allows.
fn too_long(trip: &Trip, entry: Result<Entry, Refusal>) -> Result<Entry, Refusal> {
    let Some(journey) = trip.journey.as_ref().filter(|journey| !journey.is_first()) else {
        return entry;
    };
    match entry {
        Ok(Entry::Queued(waiter)) if waiter.expected_wait > journey.hops.wait_max => {
            let retry_after = waiter.expected_wait;
            Err(Refusal::QueueFull { retry_after })
        }
        entry => entry,
    }
}

/// Selects another node that has a permit, or a queue with one in sight, where this node has no room.
fn elsewhere(
    shared: &Shared,
    trip: &mut Trip,
    lane: &Lane,
    refusal: Refusal,
    no_wait: bool,
) -> Result<Turn, Refusal> {
    let Some(journey) = trip.journey.as_ref() else {
        return Err(refusal);
    };
    if !refusal.is_out_of_capacity() {
        return Err(refusal);
    }
    let left = trip.deadline.since(shared.clock.now());
    let (is_first, may_stay) = (journey.is_first(), journey.may_stay(&trip.world.site));
    // Who forwarded it sees more of its way than this node: it waits nowhere else but comes back.
    let may_wait = is_first && !no_wait;
    let wait_max = match may_wait {
        true => journey.hops.may_wait(left),
        false => Millis::ZERO,
    };
    let permit = look(shared, trip, lane, Wants::Permit, wait_max);
    let line = Wants::Line {
        wait_max: left,
        crowded: !may_stay || lane.spec.endpoints.is_empty(),
    };
    let going = permit.or_else(|| {
        let line = may_wait.then(|| look(shared, trip, lane, line, left));
        line.flatten()
    });
    match going {
        Some(going) => Ok(Turn::There(going)),
        None => {
            if is_first {
                shared.others.refused(&lane.spec.id);
            }
            Err(refusal)
        }
    }
}

/// The node that has what is wanted now.
fn look(
    shared: &Shared,
    trip: &mut Trip,
    lane: &Lane,
    wants: Wants,
    wait_max: Millis,
) -> Option<Going> {
    let journey = trip.journey.as_ref()?;
    if !journey.hops.may_forward() {
        return None;
    }
    let sites = lane.routing.sites(journey.class, shared.clock.now());
    let seek = journey.seek(&lane.spec.id, sites.as_deref(), wants);
    let chosen = shared.others.next(&seek);
    trip.story.looked(
        &shared.others,
        shared.clock.micros(),
        &seek,
        sites.as_ref(),
        chosen.as_ref(),
    );
    let chosen = chosen?;
    Some(Going { chosen, wait_max })
}

/// A place in the line here, for as long as nothing better is seen.
struct Place<'a> {
    shared: &'a Shared,
    lane: &'a Lane,
    /// None where there is nobody to go to.
    want: Option<Want>,
    /// When its turn was expected when it joined.
    until: Millis,
}

impl<'a> Place<'a> {
    fn new(shared: &'a Shared, trip: &Trip, lane: &'a Lane, waiter: &Waiter) -> Place<'a> {
        let journey = trip.journey.as_ref();
        let journey = journey.filter(|journey| journey.hops.may_forward());
        Place {
            shared,
            lane,
            want: journey.map(|journey| shared.others.want(&lane.spec.id, journey.is_first())),
            until: shared.clock.now() + waiter.expected_wait,
        }
    }

    async fn wait(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        mut waiter: Waiter,
        beats: &mut Beats,
    ) -> Result<Turn, Left> {
        if let Some(going) = self.look(trip) {
            return Ok(Turn::There(going));
        }
        let late = self.shared.clock.instant(trip.deadline).into();
        let deadline = sleep_until(late);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                turn = waiter.turn() => return turn.map(Turn::Here).map_err(Left::Refused),
                () = client_gone(session) => {
                    trip.client_gone();
                    return Err(Left::Cut);
                }
                () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
                () = self.news() => {
                    if let Some(going) = self.look(trip) {
                        return Ok(Turn::There(going));
                    }
                }
                () = beats.next() => beats.beat(self.shared, session, trip, late).await?,
            }
        }
    }

    async fn news(&self) {
        match &self.want {
            Some(want) => want.news().await,
            None => std::future::pending().await,
        }
    }

    /// Selects a node that is better than waiting; notifies the next waiter unless there is no capacity.
    fn look(&self, trip: &mut Trip) -> Option<Going> {
        let want = self.want.as_ref()?;
        let journey = trip.journey.as_ref()?;
        let now = self.shared.clock.now();
        let sites = self.lane.routing.sites(journey.class, now);
        let seek = journey.seek_again(&self.lane.spec.id, sites.as_deref());
        let others = &self.shared.others;
        let chosen = others.next(&seek)?;
        want.pass_on();
        // Who should have had its turn already is as one who comes now.
        let gate = &self.lane.gate;
        let wait = match self.until > now {
            // Nobody knows when an endpoint comes back.
            _ if gate.gauges().usable_endpoints == 0 => Millis::MAX,
            true => self.until.since(now),
            false => gate.expected_wait(),
        };
        if others.worth_waiting_here(wait, &chosen) {
            return None;
        }
        let now_us = self.shared.clock.micros();
        let story = &mut trip.story;
        story.looked(others, now_us, &seek, sites.as_ref(), Some(&chosen));
        let wait_max = Millis::ZERO;
        Some(Going { chosen, wait_max })
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

/// Takes back what was charged ahead for a permit that came to no answer.
pub fn uncharge(lane: &Lane, ask: &Ask) {
    let charged = u64::from(ask.tokens);
    lane.gate
        .correct_tokens(&ask.account, ask.weight, charged, 0);
}
