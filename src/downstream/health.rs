//! `GET /healthz` at a listener for clients, where its configuration asks for it: for balancers that reach no other.
//!
//! Models and accounts are not told of. Operators have `/readyz` at their own listener.

use bytes::Bytes;

use super::session::Session;
use crate::pipeline::{Downstream, DownstreamClosed, RequestHead, ResponseHead};
use crate::state::Shared;

const PATH: &str = "/healthz";

/// Returns whether a request asks for the health of this gateway.
pub fn asks(head: RequestHead<'_>) -> bool {
    let path = head.target.split('?').next();
    path == Some(PATH) && matches!(head.method, "GET" | "HEAD")
}

/// Answers 200, or 503 once the gateway drains.
///
/// # Errors
/// The client is gone.
pub async fn answer(shared: &Shared, session: &mut Session) -> Result<(), DownstreamClosed> {
    let (status, body) = match shared.drain.is_draining() {
        false => (200, "ok\n"),
        true => (503, "draining\n"),
    };
    let mut head = ResponseHead::new(status);
    head.append("content-type", b"text/plain");
    head.append("cache-control", b"no-store");
    head.set_length(body.len() as u64);
    if !session.is_body_done() {
        session.close_after();
    }
    session.start(head).await?;
    session.finish(Bytes::from_static(body.as_bytes())).await
}
