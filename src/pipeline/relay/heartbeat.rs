//! Waiting for a server, with signs of life to the client of a stream.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::{Relay, RelayStop};
use crate::upstream::ResponseTransformer;

/// Event that ends a wait for the server.
pub(super) enum UpstreamEvent {
    Chunk(Option<Bytes>),
    Heartbeat(Bytes),
}

impl<D: Downstream> Relay<'_, D> {
    /// Waits for the server, or until the client has heard nothing for so long that a sign of life is due.
    pub(super) async fn next_or_heartbeat(&mut self) -> Result<UpstreamEvent, RelayStop> {
        let idle = Duration::from_secs(self.ctx.snapshot.timeouts.stream_idle_secs);
        let (timer, silent_from) = (&mut self.timer, &mut self.silent_from);
        let deadline = self.deadline;
        // First polled when there is nothing to be read: until then no clock is read.
        let late = async {
            let from = *silent_from.get_or_insert_with(Instant::now);
            timer.wait_until(deadline.min(from + idle)).await;
        };
        let progress = async {
            match &mut self.progress {
                Some(progress) => progress.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            chunk = self.response.chunk() => {
                self.silent_from = None;
                chunk.map(UpstreamEvent::Chunk).map_err(|_| RelayStop::Broken)
            }
            () = self.downstream.closed() => Err(RelayStop::ClientGone),
            () = late => Err(match self.is_late() {
                true => RelayStop::Deadline,
                false => RelayStop::Silence,
            }),
            comment = progress => Ok(UpstreamEvent::Heartbeat(comment)),
        }
    }

    /// Sends the client a sign that the server still works.
    pub(super) async fn send_heartbeat(
        &mut self,
        transformer: &mut ResponseTransformer,
        comment: Bytes,
    ) -> Result<(), RequestError> {
        let sign = self.ctx.dialect().rules().sign_of_life(comment);
        let started = self.start(transformer, None).await;
        let sent = match started {
            Ok(()) => self.write(transformer, sign, false).await,
            left => left,
        };
        if sent.is_err() {
            self.record_usage(transformer);
            self.record_write_failure(transformer);
        }
        sent
    }
}
