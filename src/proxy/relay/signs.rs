//! Waiting for a server, with signs of life to the client of a stream.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use tokio::time::Instant;

use super::super::admit::client_gone;
use super::super::call::Left;
use super::{Relay, Stop};
use crate::upstream::Answer;

/// Event that ends a wait for the server.
pub(super) enum Next {
    Chunk(Option<Bytes>),
    SignOfLife(Bytes),
}

impl Relay<'_> {
    /// Waits for the server, or until the client has heard nothing for so long that a sign of life is due.
    pub(super) async fn next_or_sign(&mut self) -> Result<Next, Stop> {
        let deadline = Instant::from(self.shared.clock.instant(self.trip.deadline));
        let idle = Duration::from_secs(self.trip.world.timeouts.stream_idle_secs);
        let from = *self.silent_from.get_or_insert_with(Instant::now);
        self.timer.as_mut().reset(deadline.min(from + idle));
        let progress = async {
            match &mut self.progress {
                Some(progress) => progress.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            chunk = self.exchange.chunk() => {
                self.silent_from = None;
                chunk.map(Next::Chunk).map_err(|_| Stop::Broken)
            }
            () = client_gone(self.session) => Err(Stop::ClientGone),
            () = self.timer.as_mut() => Err(match self.is_late() {
                true => Stop::Deadline,
                false => Stop::Silence,
            }),
            comment = progress => Ok(Next::SignOfLife(comment)),
        }
    }

    /// Tells the client that the server still works.
    pub(super) async fn give_sign(
        &mut self,
        answer: &mut Answer,
        told: &HeaderValue,
        comment: Bytes,
    ) -> Result<(), Left> {
        let begun = self.begin(answer, told, None).await;
        let sent = match begun {
            Ok(()) => self.write(answer, comment, false).await,
            left => left,
        };
        if sent.is_err() {
            self.note(answer);
            self.unsent(answer);
        }
        sent
    }
}
