//! Responses of the gateway itself: refusals, the catalog, and heartbeats while a client waits.
//!
//! Not the decision: a refusal comes here as a value and leaves in the caller's dialect. A body the client
//! is still sending is read for a moment, so that it sees the answer and not a reset.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header;
use infergate_core::api::{ApiDialect, render};
use infergate_core::refusal::Refusal;
use pingora_core::protocols::http::ServerSession;
use pingora_error::Error;
use pingora_http::ResponseHeader;
use tokio::time::timeout;

use crate::peer::ForwardRejection;
use crate::pipeline::context::{RequestContext, request_id};
use crate::state::PageOrigin;
use crate::telemetry::RequestOutcome;

/// An unread body up to this size is read before the answer, which keeps the connection usable.
const DRAIN_BEFORE_MAX_BYTES: u64 = 64 * 1024;
/// Bytes of a larger body that are read after the response, so that the client gets to see it.
const DRAIN_AFTER_MAX_BYTES: u64 = 1024 * 1024;
/// For this long at most, either way.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// The shortest wait a client library is asked for; below it, all that were refused come back at once.
const RETRY_AFTER_MS_MIN: u64 = 100;

type WriteResult = Result<(), Box<Error>>;

/// Returns the outcome of a request that ends with this refusal.
pub fn outcome_of(refusal: &Refusal) -> RequestOutcome {
    match refusal {
        Refusal::DeadlinePassed => RequestOutcome::CutByDeadline,
        Refusal::UpstreamFailed
        | Refusal::UpstreamLost
        | Refusal::UpstreamRejected
        | Refusal::UpstreamTimeout
        | Refusal::UpstreamNotTrusted
        | Refusal::PluginFailed
        | Refusal::InvalidResponse
        | Refusal::Internal => RequestOutcome::Failed,
        _ => RequestOutcome::Refused,
    }
}

/// Tells the client, or the node that forwards, why it is not served; whether the connection may carry
/// another request.
pub async fn finish_refused(
    session: &mut ServerSession,
    ctx: &mut RequestContext,
    refusal: &Refusal,
) -> bool {
    if let Some(rejection) = ctx.forward_rejection(refusal) {
        return send_rejection(session, &rejection).await.is_ok();
    }
    ctx.record_refusal(refusal, outcome_of(refusal));
    let told = refuse(session, ctx, refusal).await;
    if told.is_err() {
        ctx.record_client_gone();
    }
    told.is_ok()
}

/// Tells the client why it is not served.
///
/// # Errors
/// The client is gone.
pub async fn refuse(
    session: &mut ServerSession,
    ctx: &mut RequestContext,
    refusal: &Refusal,
) -> WriteResult {
    if ctx.response_started {
        return end_stream_with_error(session, ctx, refusal).await;
    }
    let said = render::refusal(ctx.dialect(), refusal, Some(ctx.request_id()));
    let mut head = json_head(
        said.status,
        said.body.len(),
        (ctx.dialect(), ctx.request_id()),
    )?;
    ctx.page_origin.write(&mut head)?;
    if let Some(secs) = said.retry_after_secs {
        head.insert_header(header::RETRY_AFTER, secs.to_string())?;
        if let Some(ms) = retry_after_ms(refusal, secs) {
            head.insert_header("retry-after-ms", ms.to_string())?;
        }
    }
    for (name, value) in ctx.rate_lines() {
        head.insert_header(name, value)?;
    }
    if said.never_retry {
        head.insert_header("x-should-retry", "false")?;
    }
    ctx.event().status = said.status;
    send(session, head, said.body.into()).await
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
    session: &mut ServerSession,
    ctx: &mut RequestContext,
    body: Vec<u8>,
) -> WriteResult {
    let mut head = json_head(200, body.len(), (ctx.dialect(), ctx.request_id()))?;
    ctx.page_origin.write(&mut head)?;
    ctx.event().status = 200;
    send(session, head, body.into()).await
}

/// Hands a request back to the node that forwards it.
///
/// # Errors
/// The node is gone.
pub async fn send_rejection(
    session: &mut ServerSession,
    rejection: &ForwardRejection,
) -> WriteResult {
    let lines = rejection.lines();
    let mut head = ResponseHeader::build_no_case(503, Some(lines.len() + 1))?;
    for (name, value) in lines {
        head.insert_header(name, value)?;
    }
    head.insert_header(header::CONTENT_LENGTH, 0)?;
    send(session, head, Bytes::new()).await
}

/// Tells another node that it sent no visit; it takes the forward for lost.
///
/// # Errors
/// The node is gone.
pub async fn reject_malformed_forward(session: &mut ServerSession) -> WriteResult {
    let mut head = ResponseHeader::build_no_case(400, Some(2))?;
    head.insert_header("x-infergate-came-back", "not-read")?;
    head.insert_header(header::CONTENT_LENGTH, 0)?;
    send(session, head, Bytes::new()).await
}

/// Refuses what is no acceptable request: there is no ctx, and `face` is the dialect as far as
/// it can be told.
///
/// # Errors
/// The client is gone.
pub async fn refuse_unread(
    session: &mut ServerSession,
    face: ApiDialect,
    refusal: &Refusal,
    page: &PageOrigin,
) -> WriteResult {
    let id = request_id();
    let said = render::refusal(face, refusal, Some(&id));
    tracing::debug!(request_id = &*id, ?refusal, "not a request");
    session.set_keepalive(None);
    let mut head = json_head(said.status, said.body.len(), (face, &id))?;
    page.write(&mut head)?;
    if said.never_retry {
        head.insert_header("x-should-retry", "false")?;
    }
    session.write_response_header(Box::new(head)).await?;
    session.write_response_body(said.body.into(), true).await
}

/// A comment to a streaming client that still waits; the first one commits the status 200.
///
/// # Errors
/// The client is gone.
pub async fn comment(
    session: &mut ServerSession,
    ctx: &mut RequestContext,
    text: &'static [u8],
) -> WriteResult {
    if !ctx.response_started {
        let mut head = ResponseHeader::build_no_case(200, Some(6))?;
        head.insert_header(header::CONTENT_TYPE, "text/event-stream")?;
        head.insert_header(header::CACHE_CONTROL, "no-cache")?;
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
        write_request_id(&mut head, ctx.dialect(), ctx.request_id())?;
        ctx.page_origin.write(&mut head)?;
        for (name, value) in ctx.rate_lines() {
            head.insert_header(name, value)?;
        }
        session.write_response_header(Box::new(head)).await?;
        ctx.response_started = true;
        ctx.event().status = 200;
        ctx.event().flags.streamed = true;
    }
    let sign = ctx.dialect().rules().sign_of_life(Bytes::from_static(text));
    session.write_response_body(sign, false).await
}

/// Ends a committed stream with an error event and no end mark.
async fn end_stream_with_error(
    session: &mut ServerSession,
    ctx: &RequestContext,
    refusal: &Refusal,
) -> WriteResult {
    let mut event = BytesMut::new();
    render::error_event(ctx.dialect(), refusal, &mut event);
    session.write_response_body(event.freeze(), true).await
}

fn json_head(
    status: u16,
    length: usize,
    (dialect, request_id): (ApiDialect, &str),
) -> Result<ResponseHeader, Box<Error>> {
    let mut head = ResponseHeader::build_no_case(status, Some(8))?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, length)?;
    write_request_id(&mut head, dialect, request_id)?;
    Ok(head)
}

/// Writes the id of the request under every name that the dialect has for it.
///
/// # Errors
/// Never, as an id is a header value.
pub fn write_request_id(
    head: &mut ResponseHeader,
    dialect: ApiDialect,
    request_id: &str,
) -> pingora_error::Result<()> {
    head.insert_header("x-request-id", request_id)?;
    match dialect.rules().request_id_header() {
        Some(name) => head.insert_header(name, request_id),
        None => Ok(()),
    }
}

async fn send(session: &mut ServerSession, head: ResponseHeader, body: Bytes) -> WriteResult {
    let small = unread_bytes(session).is_some_and(|left| left <= DRAIN_BEFORE_MAX_BYTES);
    if small {
        drain(session, DRAIN_BEFORE_MAX_BYTES).await;
    }
    let unread = !session.is_body_done();
    if unread {
        session.set_keepalive(None);
    }
    session.write_response_header(Box::new(head)).await?;
    session.write_response_body(body, true).await?;
    if unread {
        drain(session, DRAIN_AFTER_MAX_BYTES).await;
    }
    Ok(())
}

/// Bytes of the body that are still to come, when the client said so and did not ask first
/// whether to send them.
fn unread_bytes(session: &mut ServerSession) -> Option<u64> {
    if session.is_body_done() || session.get_header(header::EXPECT).is_some() {
        return None;
    }
    session
        .get_header(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

async fn drain(session: &mut ServerSession, max_bytes: u64) {
    let reading = async {
        let mut read = 0;
        while read <= max_bytes {
            match session.read_request_body().await {
                Ok(Some(piece)) => read += piece.len() as u64,
                _ => return,
            }
        }
    };
    // Past the limit the connection is closed with bytes unread, which is the client's doing.
    let _ = timeout(DRAIN_TIMEOUT, reading).await;
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
