//! Signs of life to a streaming client while its model server says nothing: `progress_comments`.
//!
//! No comment stands within an event, or while the client has not taken what came before.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::model::ModelSpec;
use tokio::time::{Instant, sleep_until};

use crate::pipeline::admission::heartbeat::{Heartbeat, send_sign};
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::respond::SignOfLife;
use crate::pipeline::suspension::next_io_poll;

/// Interval for a model with `progress_comments` and no `queue_heartbeat_secs`. Proxies on the way cut
/// connections that are silent for 30 to 60 s.
const COMMENT_INTERVAL: Duration = Duration::from_secs(10);

/// Comment that the client gets.
const WORKING: &[u8] = b": working\n\n";

/// Returns the span between two signs of life while a server of `spec` is silent, where the model has any.
pub fn comment_interval(spec: &ModelSpec) -> Option<Duration> {
    spec.progress_comments
        .then(|| match spec.queue_heartbeat_secs {
            0 => COMMENT_INTERVAL,
            secs => Duration::from_secs(secs),
        })
}

/// Outcome of the wait for the head of a server's response.
pub enum HeadWait<T> {
    Completed(T),
    Deadline,
}

/// Waits until `sending` has the head of an answer, with a sign of life to the client every so often.
/// `end` bounds it, and `deadline` the writing of a comment.
///
/// # Errors
/// The client is gone, or takes no comment.
pub async fn wait_for_head<T>(
    mut sending: impl Future<Output = T> + Unpin,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    end: Instant,
    deadline: Instant,
) -> Result<HeadWait<T>, RequestError> {
    let mut end = pin!(sleep_until(end));
    let mut heartbeat = Heartbeat::new(ctx.comment_interval);
    loop {
        tokio::select! {
            biased;
            sent = &mut sending => return Ok(HeadWait::Completed(sent)),
            () = downstream.closed() => {
                ctx.record_client_gone();
                return Err(RequestError::Aborted);
            }
            () = async { end.as_mut().await; next_io_poll().await } => return Ok(HeadWait::Deadline),
            // Boxed: most servers answer before a comment is due.
            () = heartbeat.due() => {
                let sign = SignOfLife::Comment(Bytes::from_static(WORKING));
                Box::pin(send_sign(downstream, ctx, sign, deadline)).await?;
            }
        }
    }
}

/// The signs of life of one answer under way.
pub struct ProgressComments {
    heartbeat: Heartbeat,
    /// The bytes sent so far end with the end of an event.
    is_between_events: bool,
}

impl ProgressComments {
    /// Creates comments at a fixed interval.
    pub fn new(every: Duration) -> ProgressComments {
        ProgressComments {
            heartbeat: Heartbeat::new(Some(every)),
            is_between_events: true,
        }
    }

    /// Returns the next one when it is due.
    pub async fn next(&mut self) -> Bytes {
        loop {
            self.heartbeat.due().await;
            if self.is_between_events {
                return Bytes::from_static(WORKING);
            }
        }
    }

    /// Puts the next one off: these bytes go to the client.
    pub fn record_bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.is_between_events = bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n");
            self.heartbeat.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_sign_of_life_stands_within_an_event() {
        let mut progress = ProgressComments::new(Duration::from_secs(1));
        assert_eq!(progress.next().await, WORKING);
        for (bytes, may_speak) in [
            (&b"data: 1\n\ndata: 2"[..], false),
            (b"", false),
            (b"\r\n\r\n", true),
            (b"data: 3\n", false),
            (b"data: 4\n\n", true),
        ] {
            progress.record_bytes(bytes);
            let spoke = tokio::time::timeout(Duration::from_secs(60), progress.next()).await;
            assert_eq!(spoke.is_ok(), may_speak, "{bytes:?}");
        }
    }
}
