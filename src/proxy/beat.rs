//! Signs of life while a request waits, for a permit here or for another node: comments for a streaming
//! client, interim answers for a node that forwards.
//!
//! It does not wait for anything else. A client that did not ask for events gets none.

use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::routing::fleet::QUEUED_EVERY;
use pingora_core::protocols::http::ServerSession;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout_at};

use super::Shared;
use super::call::{Left, Trip};
use super::interim;
use super::respond;
use crate::telemetry::Outcome;

/// The signs of life of one request.
pub struct Beats {
    every: Option<Interval>,
    of_forward: bool,
}

impl Beats {
    /// One every so often; none at all without a span.
    pub fn new(every: Option<Duration>) -> Beats {
        Beats {
            every: every.map(|every| {
                let mut beats = interval_at(Instant::now() + every, every);
                beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
                beats
            }),
            of_forward: false,
        }
    }

    /// Those of a request that another node forwards.
    pub fn of_forward() -> Beats {
        Beats {
            of_forward: true,
            ..Beats::new(Some(Duration::from_millis(QUEUED_EVERY.0)))
        }
    }

    /// Returns when the next one is due.
    pub async fn next(&mut self) {
        match &mut self.every {
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
        shared: &Shared,
        session: &mut ServerSession,
        trip: &mut Trip,
        deadline: Instant,
    ) -> Result<(), Left> {
        if self.of_forward {
            return interim::queued(shared, session, trip).await;
        }
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
