//! Preflights of browsers, answered before any key is looked at: browsers send none with them.
//!
//! Not the rules, which are the configuration's. Specification:
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>.

use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderMap};
use infergate_core::Refusal;
use pingora_core::protocols::http::ServerSession;
use pingora_http::{RequestHeader, ResponseHeader};

use crate::state::PageOrigin;

/// Time that a browser may keep the answer to a preflight, seconds: the most that Chromium keeps one.
const MAX_AGE_SECS: u32 = 7200;
/// Methods that this gateway serves.
const METHODS: &str = "GET, POST";

/// Returns whether a browser asks if a page may make the request that it describes.
pub fn is_preflight(head: &RequestHeader) -> bool {
    head.method == Method::OPTIONS
        && head
            .headers
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Refusal of a preflight whose page is foreign; none for any other request.
pub fn refuse(session: &ServerSession, page: &PageOrigin) -> Option<Refusal> {
    (page.is_foreign() && is_preflight(session.req_header())).then_some(Refusal::ForeignOrigin)
}

/// Answers a preflight of a listed page with 204. Any header that is asked for is granted: the request
/// itself is checked when it comes.
///
/// # Errors
/// The client is gone.
pub async fn grant(session: &mut ServerSession, page: &PageOrigin) -> pingora_error::Result<()> {
    let mut head = ResponseHeader::build_no_case(204, Some(6))?;
    let mut fields = HeaderMap::new();
    page.write(&mut fields);
    fields.remove(header::ACCESS_CONTROL_EXPOSE_HEADERS);
    for (name, value) in &fields {
        head.append_header(name.clone(), value.clone())?;
    }
    head.append_header(header::VARY, "access-control-request-headers")?;
    head.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS)?;
    head.insert_header(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECS)?;
    let asked = session.get_header(header::ACCESS_CONTROL_REQUEST_HEADERS);
    if let Some(asked) = asked.cloned() {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, asked)?;
    }
    if !session.is_body_done() {
        session.set_keepalive(None);
    }
    session.write_response_header(Box::new(head)).await?;
    session.write_response_body(Bytes::new(), true).await
}
