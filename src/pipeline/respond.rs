//! Responses of the gateway itself: refusals, the catalog, and heartbeats while a client waits.
//!
//! Not the decision: a refusal comes here as a value and leaves in the caller's dialect. A body the client
//! is still sending is read for a moment, so that it sees the answer and not a reset.

use bytes::{Bytes, BytesMut};
use infergate_core::api::{ApiDialect, render};
use infergate_core::refusal::Refusal;

use crate::peer::ForwardRejection;
use crate::pipeline::context::{RequestContext, request_id};
use crate::pipeline::downstream::{Downstream, DownstreamClosed, ResponseHead};
use crate::state::PageOrigin;
use crate::telemetry::RequestOutcome;

/// The shortest wait a client library is asked for; below it, all that were refused come back at once.
const RETRY_AFTER_MS_MIN: u64 = 100;
/// Header with the milliseconds for which a request waited until its model was loaded.
pub const LOAD_MS: &str = "x-infergate-load-ms";

/// Bytes of a sign of life to the client of a stream.
pub enum SignOfLife {
    /// Comment, which a dialect may send in a form of its own.
    Comment(Bytes),
    /// Event of the client's dialect.
    Event(Bytes),
}

/// Returns the outcome of a request that ends with this refusal.
pub fn outcome_of(refusal: &Refusal) -> RequestOutcome {
    match refusal {
        Refusal::DeadlinePassed => RequestOutcome::CutByDeadline,
        Refusal::UpstreamFailed
        | Refusal::UpstreamLost
        | Refusal::ModelFailed { .. }
        | Refusal::UpstreamRejected
        | Refusal::UpstreamTimeout
        | Refusal::UpstreamNotTrusted
        | Refusal::PluginFailed
        | Refusal::InvalidResponse
        | Refusal::Internal => RequestOutcome::Failed,
        _ => RequestOutcome::Refused,
    }
}

/// Sends the refusal to the client, or to the node that forwards; whether the connection may carry
/// another request.
pub async fn finish_refused(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    refusal: &Refusal,
) -> bool {
    if let Some(rejection) = ctx.forward_rejection(refusal) {
        return send_rejection(downstream, &rejection).await.is_ok();
    }
    ctx.record_refusal(refusal, outcome_of(refusal));
    let sent = refuse(downstream, ctx, refusal).await;
    if sent.is_err() {
        ctx.record_client_gone();
    }
    sent.is_ok()
}

/// Sends the refusal to the client.
///
/// # Errors
/// The client is gone.
pub async fn refuse(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    refusal: &Refusal,
) -> Result<(), DownstreamClosed> {
    if ctx.response_started {
        return end_stream_with_error(downstream, ctx, refusal).await;
    }
    let rendered = render::refusal(ctx.dialect(), refusal, Some(ctx.request_id()));
    let mut head = error_head(
        rendered.status,
        rendered.body.len(),
        (ctx.dialect(), ctx.request_id()),
    );
    head.extend(ctx.page_origin.lines());
    if let Some(secs) = rendered.retry_after_secs {
        head.append("retry-after", secs.to_string().as_bytes());
        if let Some(ms) = retry_after_ms(refusal, secs) {
            head.append("retry-after-ms", ms.to_string().as_bytes());
        }
    }
    head.extend(ctx.rate_lines().iter());
    if let Some(ms) = ctx.load_ms() {
        head.append(LOAD_MS, ms.to_string().as_bytes());
    }
    if rendered.never_retry {
        head.append("x-should-retry", b"false");
    }
    if matches!(refusal, Refusal::UpgradeRequired(_)) {
        head.append("upgrade", b"websocket");
        head.append("sec-websocket-version", b"13");
    }
    ctx.status = rendered.status;
    downstream.respond(head, rendered.body.into()).await
}

/// The expected wait in milliseconds, never beyond `Retry-After`; absent where nothing was measured.
fn retry_after_ms(refusal: &Refusal, secs: u64) -> Option<u64> {
    let measured = refusal.retry_after().filter(|wait| wait.0 > 0)?.0;
    Some(measured.max(RETRY_AFTER_MS_MIN).min(secs * 1000))
}

/// Answers 200 with a JSON body.
///
/// # Errors
/// The client is gone.
pub async fn json(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    body: impl Into<Bytes>,
) -> Result<(), DownstreamClosed> {
    let body = body.into();
    let mut head = json_head(200, body.len(), (ctx.dialect(), ctx.request_id()));
    head.extend(ctx.page_origin.lines());
    ctx.status = 200;
    downstream.respond(head, body).await
}

/// Answers with a JSON body, a status and further lines.
///
/// # Errors
/// The client is gone.
pub async fn json_with(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    (status, body): (u16, Vec<u8>),
    lines: &[(&'static str, String)],
) -> Result<(), DownstreamClosed> {
    let mut head = json_head(status, body.len(), (ctx.dialect(), ctx.request_id()));
    head.extend(lines.iter().map(|(name, value)| (*name, value.as_bytes())));
    head.extend(ctx.page_origin.lines());
    head.extend(ctx.rate_lines().iter());
    ctx.status = status;
    downstream.respond(head, body.into()).await
}

/// Hands a request back to the node that forwards it.
///
/// # Errors
/// The node is gone.
pub async fn send_rejection(
    downstream: &mut impl Downstream,
    rejection: &ForwardRejection,
) -> Result<(), DownstreamClosed> {
    let mut head = ResponseHead::new(503);
    for (name, value) in rejection.lines() {
        head.append(name, value.as_bytes());
    }
    head.set_length(0);
    downstream.respond(head, Bytes::new()).await
}

/// Answers a malformed forward of another node, which takes the forward for lost.
///
/// # Errors
/// The node is gone.
pub async fn reject_malformed_forward(
    downstream: &mut impl Downstream,
) -> Result<(), DownstreamClosed> {
    let mut head = ResponseHead::new(400);
    let (name, value) = ForwardRejection::malformed_line();
    head.append(name, value.as_bytes());
    head.set_length(0);
    downstream.respond(head, Bytes::new()).await
}

/// Refuses what is no acceptable request: there is no ctx, and `face` is the dialect as far as
/// it can be told.
///
/// # Errors
/// The client is gone.
pub async fn refuse_unread(
    downstream: &mut impl Downstream,
    dialect: ApiDialect,
    refusal: &Refusal,
    page: &PageOrigin,
) -> Result<(), DownstreamClosed> {
    let id = request_id();
    let rendered = render::refusal(dialect, refusal, Some(&id));
    tracing::debug!(request_id = &*id, ?refusal, "not a request");
    let mut head = error_head(rendered.status, rendered.body.len(), (dialect, &id));
    head.extend(page.lines());
    if let Some(secs) = rendered.retry_after_secs {
        head.append("retry-after", secs.to_string().as_bytes());
    }
    if rendered.never_retry {
        head.append("x-should-retry", b"false");
    }
    downstream.start(head).await?;
    downstream.finish(rendered.body.into()).await
}

/// A sign of life to a streaming client that still waits; the first one commits the status 200.
///
/// # Errors
/// The client is gone.
pub async fn sign_of_life(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    sign: SignOfLife,
) -> Result<(), DownstreamClosed> {
    if !ctx.response_started {
        let mut head = ResponseHead::new(200);
        head.append("content-type", b"text/event-stream");
        head.append("cache-control", b"no-cache");
        write_request_id(&mut head, ctx.dialect(), ctx.request_id());
        head.extend(ctx.page_origin.lines());
        head.extend(ctx.rate_lines().iter());
        downstream.start(head).await?;
        ctx.response_started = true;
        ctx.status = 200;
        ctx.is_streaming = true;
    }
    let bytes = match sign {
        SignOfLife::Comment(text) => ctx.dialect().rules().sign_of_life(text),
        SignOfLife::Event(event) => event,
    };
    downstream.write(bytes).await
}

/// Ends a committed stream with an error event and no end mark.
async fn end_stream_with_error(
    downstream: &mut impl Downstream,
    ctx: &RequestContext,
    refusal: &Refusal,
) -> Result<(), DownstreamClosed> {
    let mut event = BytesMut::new();
    render::error_event(ctx.dialect(), refusal, &mut event);
    downstream.finish(event.freeze()).await
}

fn json_head(status: u16, length: usize, names: (ApiDialect, &str)) -> ResponseHead {
    body_head("application/json", status, length, names)
}

fn error_head(status: u16, length: usize, names: (ApiDialect, &str)) -> ResponseHead {
    body_head(names.0.rules().error_content_type(), status, length, names)
}

fn body_head(
    content_type: &str,
    status: u16,
    length: usize,
    (dialect, request_id): (ApiDialect, &str),
) -> ResponseHead {
    let mut head = ResponseHead::new(status);
    head.append("content-type", content_type.as_bytes());
    head.set_length(length as u64);
    write_request_id(&mut head, dialect, request_id);
    head
}

/// Writes the id of the request under every name that the dialect has for it.
pub fn write_request_id(head: &mut ResponseHead, dialect: ApiDialect, request_id: &str) {
    head.append("x-request-id", request_id.as_bytes());
    if let Some(name) = dialect.rules().request_id_header() {
        head.append(name, request_id.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::Millis;

    use super::*;

    #[test]
    fn an_expected_wait_is_sent_as_measured_and_within_its_bounds() {
        let ms = |wait, secs| {
            let retry_after = Millis(wait);
            retry_after_ms(&Refusal::QueueFull { retry_after }, secs)
        };
        assert_eq!(ms(0, 1), None);
        assert_eq!(ms(1, 1), Some(100));
        assert_eq!(ms(1_400, 2), Some(1_400));
        assert_eq!(ms(90_000, 60), Some(60_000));
        assert_eq!(retry_after_ms(&Refusal::Draining, 1), None);
    }
}
