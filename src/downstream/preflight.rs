//! Preflights of browsers, answered before any key is looked at: browsers send none with them.
//!
//! Not the rules, which are the configuration's. Specification:
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>.

use bytes::Bytes;
use infergate_core::Refusal;

use super::session::Session;
use crate::pipeline::{Downstream, DownstreamClosed, RequestHead, ResponseHead};
use crate::state::PageOrigin;

/// Time that a browser may keep the answer to a preflight, seconds: the most that Chromium keeps one.
const MAX_AGE_SECS: &str = "7200";
/// Methods that this gateway serves.
const METHODS: &str = "GET, POST, PATCH, DELETE";

/// Returns whether a browser asks if a page may make the request that it describes.
pub fn is_preflight(head: RequestHead<'_>) -> bool {
    head.method == "OPTIONS" && head.headers.contains("access-control-request-method")
}

/// Refusal of a preflight whose page is foreign; none for any other request.
pub fn refuse(session: &Session, page: &PageOrigin) -> Option<Refusal> {
    (page.is_foreign() && is_preflight(session.request_head())).then_some(Refusal::ForeignOrigin)
}

/// Answers a preflight of a listed page with 204. Any header that is asked for is granted: the request
/// itself is checked when it comes.
///
/// # Errors
/// The client is gone.
pub async fn grant(session: &mut Session, page: &PageOrigin) -> Result<(), DownstreamClosed> {
    let mut head = ResponseHead::new(204);
    head.extend(page.preflight_lines());
    head.append("vary", b"access-control-request-headers");
    head.append("access-control-allow-methods", METHODS.as_bytes());
    head.append("access-control-max-age", MAX_AGE_SECS.as_bytes());
    if let Some(asked) = session.fields().get("access-control-request-headers") {
        head.append("access-control-allow-headers", asked);
    }
    if !session.is_body_done() {
        session.close_after();
    }
    session.start(head).await?;
    session.finish(Bytes::new()).await
}
