//! Step 11 of the request pipeline where another node serves: its answer to the client, piece by piece.
//!
//! Not a parser: the bytes are in the client's dialect already, and the other node counts their cost. Memory
//! is bounded by one piece. Every wait also listens to the client, to the deadline, to silence, and to
//! whether the node still lives.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use infergate_core::Refusal;
use infergate_core::routing::cluster::ForwardOutcome;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::peer::{ForwardGuard, NodeWatch};
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::{Downstream, ResponseHead};
use crate::pipeline::error::RequestError;
use crate::pipeline::forwarding::final_message_grace;
use crate::pipeline::respond;
use crate::pipeline::suspension::next_io_poll;
use crate::state::Shared;
use crate::state::header_filter::{self, ConnectionNamed};
use crate::telemetry::RequestOutcome;
use crate::upstream::UpstreamResponse;

/// An error that comes after a sign of life becomes an event; up to this size.
const ERROR_BODY_MAX_BYTES: usize = 64 * 1024;

/// An answer that another node has begun.
pub struct ForwardedResponse {
    response: UpstreamResponse,
    /// Its first piece; none when it has no body.
    first: Option<Bytes>,
    guard: ForwardGuard,
    watch: NodeWatch,
    ttft_us: u32,
    /// Wait for the final message of that node, beyond its own deadline.
    final_message_grace: Duration,
}

/// Reason for which the next chunk does not come.
enum ForwardedStop {
    ClientGone,
    /// The node is late: its own end of the answer may still be on the way.
    Deadline,
    /// The node broke off or fell silent.
    Broken,
}

impl ForwardedResponse {
    /// Creates the response from its head and its first chunk.
    pub fn new(
        response: UpstreamResponse,
        first: Option<Bytes>,
        sent: ForwardGuard,
        watch: NodeWatch,
        rtt_us: u32,
        ttft_us: u32,
    ) -> ForwardedResponse {
        ForwardedResponse {
            response,
            first,
            guard: sent,
            watch,
            ttft_us,
            final_message_grace: final_message_grace(rtt_us),
        }
    }

    /// Sends it to the client. Whatever comes of it, the node that works writes the event, unless it
    /// is lost under way.
    ///
    /// # Errors
    /// The client left, or the answer broke off after its first byte.
    pub async fn relay(
        mut self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
    ) -> Result<(), RequestError> {
        let relayed = match ctx.response_started && !self.response.head().status.is_success() {
            true => self.error_event(shared, downstream, ctx).await,
            false => self.pass(shared, downstream, ctx).await,
        };
        let ForwardedResponse {
            response,
            guard: sent,
            ..
        } = self;
        let ttft_us = self.ttft_us;
        match relayed {
            Ok(()) => {
                shared.peer_client.finish(response).await;
                sent.finish(ForwardOutcome::Answered { ttft_us });
                ctx.set_outcome(RequestOutcome::Completed);
                Ok(())
            }
            Err(ForwardedStop::ClientGone) => {
                ctx.record_client_gone();
                Err(RequestError::Aborted)
            }
            // That node writes the event, as it knows the deadline.
            Err(ForwardedStop::Deadline) => {
                ctx.record_refusal(&Refusal::DeadlinePassed, RequestOutcome::CutByDeadline);
                finish_cut(downstream, ctx, Refusal::DeadlinePassed).await
            }
            Err(ForwardedStop::Broken) => {
                sent.finish(ForwardOutcome::Failed);
                // It is lost and cannot write it: the event is ours.
                if let Some(forwarding) = &mut ctx.forwarding {
                    forwarding.set_event_elsewhere(false);
                }
                ctx.record_refusal(&Refusal::UpstreamLost, RequestOutcome::CutByBackend);
                finish_cut(downstream, ctx, Refusal::UpstreamLost).await
            }
        }
    }

    async fn pass(
        &mut self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
    ) -> Result<(), ForwardedStop> {
        if !ctx.response_started {
            let head = self.head(ctx);
            ctx.is_streaming = is_stream(&head);
            ctx.status = head.status.as_u16();
            let written = downstream.start(head).await;
            written.map_err(|_| ForwardedStop::ClientGone)?;
            ctx.response_started = true;
        }
        ctx.record_first_byte();
        let mut next = self.first.take();
        while let Some(piece) = next {
            // The end goes out together with the last piece where both are here.
            let after = self.response.chunk().now_or_never();
            let is_last = matches!(after, Some(Ok(None)));
            self.send(shared, downstream, ctx, piece, is_last).await?;
            next = match after {
                Some(Ok(None)) => return Ok(()),
                Some(Ok(more)) => more,
                Some(Err(_)) => return Err(ForwardedStop::Broken),
                None => self.next(shared, downstream, ctx).await?,
            };
        }
        self.send(shared, downstream, ctx, Bytes::new(), true).await
    }

    /// The client has been told that events follow: an error is one as well.
    async fn error_event(
        &mut self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
    ) -> Result<(), ForwardedStop> {
        let mut body = BytesMut::new();
        let mut next = self.first.take();
        while let Some(piece) = next {
            if body.len() + piece.len() > ERROR_BODY_MAX_BYTES {
                return Err(ForwardedStop::Broken);
            }
            body.extend_from_slice(&piece);
            next = self.next(shared, downstream, ctx).await?;
        }
        let mut event = BytesMut::with_capacity(body.len() + 32);
        let rules = ctx.dialect().rules();
        rules.write_error_event(&body, &mut event);
        self.send(shared, downstream, ctx, event.freeze(), true)
            .await
    }

    async fn next(
        &mut self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &RequestContext,
    ) -> Result<Option<Bytes>, ForwardedStop> {
        let idle = Duration::from_secs(ctx.snapshot.timeouts.stream_idle_secs);
        let idle = Instant::now() + idle + self.final_message_grace;
        let deadline = self.deadline(shared, ctx);
        tokio::select! {
            biased;
            piece = self.response.chunk() => piece.map_err(|_| ForwardedStop::Broken),
            () = downstream.closed() => Err(ForwardedStop::ClientGone),
            () = self.watch.lost() => Err(ForwardedStop::Broken),
            () = async { sleep_until(deadline.min(idle)).await; next_io_poll().await } => Err(match idle < deadline {
                true => ForwardedStop::Broken,
                false => ForwardedStop::Deadline,
            }),
        }
    }

    fn deadline(&self, shared: &Shared, ctx: &RequestContext) -> Instant {
        Instant::from(shared.clock.instant(ctx.deadline)) + self.final_message_grace
    }

    async fn send(
        &self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        piece: Bytes,
        is_last: bool,
    ) -> Result<(), ForwardedStop> {
        if is_last {
            ctx.release_concurrency();
        }
        let writing = downstream.send(piece, is_last);
        match timeout_at(self.deadline(shared, ctx), writing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ForwardedStop::ClientGone),
        }
    }

    /// The head as the client gets it.
    fn head(&self, ctx: &RequestContext) -> ResponseHead {
        let from = self.response.head();
        let mut head = ResponseHead::new(from.status.as_u16());
        let named = ConnectionNamed::of(&from.fields);
        let rate = ctx.rate_lines();
        let id_headers = [
            Some("x-request-id"),
            ctx.dialect().rules().request_id_header(),
        ];
        let is_own = |name: &str| {
            name == "content-length"
                || id_headers.contains(&Some(name))
                || rate.iter().any(|(own, _)| own == name)
        };
        for (name, value) in from.fields.iter() {
            if header_filter::passes_from_node(name)
                && !named.contains(name.as_bytes())
                && !is_own(name)
            {
                head.pass(name.as_bytes(), value);
            }
        }
        if let Some(length) = self.response.announced_length() {
            head.set_length(length);
        }
        head.extend(ctx.page_origin.lines());
        for name in id_headers.into_iter().flatten() {
            head.append(name, ctx.request_id().as_bytes());
        }
        head.extend(rate.iter());
        head
    }
}

fn is_stream(head: &ResponseHead) -> bool {
    let kind = head.get("content-type");
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

/// Ends what cannot be ended well: a stream in its dialect, other framings broken.
async fn finish_cut(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    refusal: Refusal,
) -> Result<(), RequestError> {
    if !ctx.response_started {
        return Err(RequestError::Refused(refusal));
    }
    if ctx.is_streaming {
        // The client may be gone as well; the event already says what happened.
        let _ = respond::refuse(downstream, ctx, &refusal).await;
    }
    Err(RequestError::Aborted)
}
