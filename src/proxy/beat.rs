//! Signs of life for a streaming client that waits: for a permit here, or for another node.
//!
//! It does not wait for anything else. A client that did not ask for events gets none.

use std::time::Duration;

use infergate_core::Refusal;
use pingora_core::protocols::http::ServerSession;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout_at};

use super::call::{Left, Trip};
use super::respond;
use crate::telemetry::Outcome;

/// The signs of life of one request.
pub struct Beats(Option<Interval>);

impl Beats {
    /// One every so often; none at all without a span.
    pub fn new(every: Option<Duration>) -> Beats {
        Beats(every.map(|every| {
            let mut beats = interval_at(Instant::now() + every, every);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            beats
        }))
    }

    /// Returns when the next one is due.
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some(beats) => {
                beats.tick().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Sends one, until the deadline.
    ///
    /// # Errors
    /// The client is gone, or takes nothing.
    pub async fn beat(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        deadline: Instant,
    ) -> Result<(), Left> {
        match timeout_at(deadline, respond::heartbeat(session, trip)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => {
                trip.client_gone();
                Err(Left::Cut)
            }
            // Half a comment may be out: nothing can follow it.
            Err(_) => {
                trip.refused(&Refusal::DeadlinePassed, Outcome::CutByDeadline);
                Err(Left::Cut)
            }
        }
    }
}
