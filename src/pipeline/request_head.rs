//! Step 2 of the walk: what the head says, before any of the body is read.
//!
//! Copies what later steps need, because reading the body takes the session.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use infergate_core::api::catalog::{self, CatalogQuery};
use infergate_core::api::dialects::route;
use infergate_core::api::route::{Route, RouteTarget};
use infergate_core::api::{ApiDialect, Operation};
use infergate_core::{Millis, Refusal};
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;

use crate::peer::{ClusterHandle, ForwardedHead, PeerName};
use crate::pipeline::connection::DownstreamConnection;
use crate::pipeline::context::RequestContext;
use crate::pipeline::forwarding::ReplayableRequest;
use crate::state::header_filter::PassedHeaders;
use crate::state::{Account, has_key};

/// Longest `x-client-request-id` that an event keeps.
const CLIENT_REQUEST_ID_BYTES_MAX: usize = 128;

/// For whom a request is, and what of its head later steps need.
pub struct AuthenticatedRequest {
    /// The account whose key was presented.
    pub account: Arc<Account>,
    /// Header lines that model servers may see.
    pub passed_headers: PassedHeaders,
    /// `x-infergate-timeout-ms`.
    pub requested_timeout: Option<Millis>,
    /// `x-infergate-queue: reject`.
    pub reject_if_busy: bool,
}

/// Requested operation, owned.
pub enum RequestedOperation {
    /// Run something; a model that stood in the path.
    Call(Operation, Option<String>),
    /// The models this key may use.
    Models,
    /// Show one model.
    Model(String),
    /// Search the models.
    Search(CatalogQuery),
    /// The schemas of one of them.
    Schema(String),
}

impl AuthenticatedRequest {
    /// Finds the route and the account; the caller's wish bounds the ctx from here on.
    ///
    /// # Errors
    /// Key, account, route and option refusals, in this order.
    pub fn read(
        session: &ServerSession,
        ctx: &mut RequestContext,
    ) -> Result<(AuthenticatedRequest, RequestedOperation), Refusal> {
        let head = session.req_header();
        if !ctx.is_from_client() {
            return AuthenticatedRequest::from_peer(head, ctx);
        }
        let path = target_path(head);
        let Route {
            dialect,
            account: named,
            target,
        } = route(head.method.as_str(), path);
        ctx.event().face = dialect;
        ctx.event().client_request_id = client_request_id(&head.headers);
        let account = Arc::clone(ctx.snapshot.accounts.identify(&head.headers)?);
        if ctx.page_origin.is_foreign() && !has_key(&head.headers) {
            // Any page that somebody looks at could spend what this network may.
            return Err(Refusal::ForeignOrigin);
        }
        ctx.event().account_id = Some(account.spec.id.clone());
        if named.is_some_and(|named| *named != *account.spec.id.as_str()) {
            return Err(Refusal::NotAllowed);
        }
        let wanted = match target {
            RouteTarget::Call(operation, model) => {
                RequestedOperation::Call(operation, model.map(|model| model.into_owned()))
            }
            RouteTarget::Models => RequestedOperation::Models,
            RouteTarget::Model(id) => RequestedOperation::Model(id.into_owned()),
            RouteTarget::Search(query) => RequestedOperation::Search(CatalogQuery::parse(query)?),
            RouteTarget::Schema(query) => {
                RequestedOperation::Schema(catalog::requested_model(query)?)
            }
            RouteTarget::Refused(refusal) => return Err(refusal),
            RouteTarget::Unknown => return Err(Refusal::NoSuchRoute),
        };
        if account.spec.may_force_site {
            ctx.only_site = forced_site(&head.headers, ctx)?;
        }
        let wish = requested_timeout(&head.headers)?;
        if let Some(wish) = wish {
            ctx.deadline = ctx.deadline.min(ctx.arrival + wish);
        }
        let read = AuthenticatedRequest {
            account,
            passed_headers: ctx.passed_headers(&head.headers),
            requested_timeout: wish,
            reject_if_busy: head
                .headers
                .get("x-infergate-queue")
                .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"reject")),
        };
        Ok((read, wanted))
    }

    /// Returns the request as another node may get it: target, headers that may pass, body.
    pub fn replayable(&self, session: &ServerSession, body: &Bytes) -> ReplayableRequest {
        let head = session.req_header();
        let mut headers = BytesMut::from(self.passed_headers.towards(false));
        if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
            headers.extend_from_slice(b"content-type: ");
            headers.extend_from_slice(kind.as_bytes());
            headers.extend_from_slice(b"\r\n");
        }
        ReplayableRequest {
            target: target_path(head).to_owned(),
            headers,
            body: body.clone(),
        }
    }

    /// Reads the head of a forwarded request: account and deadline come from the other node.
    fn from_peer(
        head: &RequestHeader,
        ctx: &mut RequestContext,
    ) -> Result<(AuthenticatedRequest, RequestedOperation), Refusal> {
        let Route {
            dialect, target, ..
        } = route(head.method.as_str(), target_path(head));
        ctx.event().face = dialect;
        ctx.event().client_request_id = client_request_id(&head.headers);
        let RouteTarget::Call(operation, model) = target else {
            return Err(Refusal::NoSuchRoute);
        };
        let account = ctx
            .forwarding
            .as_ref()
            .and_then(|journey| journey.account());
        let account = account.ok_or(Refusal::Internal)?;
        let read = AuthenticatedRequest {
            account: ctx.snapshot.accounts.by_id(account),
            passed_headers: ctx.passed_headers(&head.headers),
            requested_timeout: None,
            // The node before says how long it may wait here.
            reject_if_busy: false,
        };
        Ok((
            read,
            RequestedOperation::Call(operation, model.map(Cow::into_owned)),
        ))
    }
}

/// Returns whether another node has sent this, as its certificate says.
pub fn is_from_node(session: &ServerSession) -> bool {
    peer(session).is_some()
}

fn peer(session: &ServerSession) -> Option<&PeerName> {
    connection(session)?.peer_name()
}

/// Begins to count the bytes of a head; beyond `max` reading it fails.
pub fn begin_count(session: &ServerSession, max: usize) {
    if let Some(wire) = connection(session) {
        wire.begin_head(max);
    }
}

/// Ends the count.
pub fn end_count(session: &ServerSession) {
    if let Some(wire) = connection(session) {
        wire.end_head();
    }
}

/// Returns whether a head has reached its limit without an end.
pub fn is_over_limit(session: &ServerSession) -> bool {
    connection(session).is_some_and(DownstreamConnection::is_head_over)
}

/// Lets go of a session, then reads on for a moment, so that the client sees why it was refused.
pub async fn linger(session: ServerSession) {
    let ServerSession::H1(session) = session else {
        return;
    };
    let Some(mut wire) = session
        .into_inner()
        .into_any()
        .downcast::<DownstreamConnection>()
        .ok()
    else {
        return;
    };
    wire.linger().await;
}

fn connection(session: &ServerSession) -> Option<&DownstreamConnection> {
    session
        .stream()?
        .as_any()
        .downcast_ref::<DownstreamConnection>()
}

/// Why a request that another node forwards is not taken.
pub enum ForwardArrivalError {
    /// The head is malformed, not the sender's to write, or has a loop.
    Malformed(String),
    /// The sender is not one of the fleet, as far as this node has heard.
    NotMember(Arc<str>),
}

/// Reads what another node says of the request it forwards.
///
/// # Errors
/// Why it is not taken.
pub fn read_forward(
    others: &ClusterHandle,
    session: &ServerSession,
    ctx: &mut RequestContext,
) -> Result<(), ForwardArrivalError> {
    let (from, generation) = read(session, ctx).map_err(ForwardArrivalError::Malformed)?;
    match others.is_member(&from, generation) {
        true => Ok(()),
        false => Err(ForwardArrivalError::NotMember(from)),
    }
}

/// Returns the sender's name and generation.
fn read(session: &ServerSession, ctx: &mut RequestContext) -> Result<(Arc<str>, u64), String> {
    let visit =
        ForwardedHead::read(&session.req_header().headers).map_err(|error| error.to_string())?;
    let is_senders = peer(session).is_some_and(|peer| peer.has(&visit.from));
    if !is_senders || !visit.hops.visited.contains(&visit.from) {
        return Err("the request says to come from another node than its certificate".to_owned());
    }
    let sender = (Arc::clone(&visit.from), visit.generation);
    ctx.accept_forward(visit)
        .map_err(|error| error.to_string())?;
    Ok(sender)
}

/// Why there is no head.
pub fn unreadable(session: &ServerSession) -> Refusal {
    match is_over_limit(session) {
        true => Refusal::HeadersTooLarge,
        false => Refusal::BadFraming("the request head could not be read"),
    }
}

/// The dialect of a head that may not be acceptable otherwise.
pub fn dialect_of(head: &RequestHeader) -> ApiDialect {
    route(head.method.as_str(), target_path(head)).dialect
}

/// The path and query asked for: of an absolute URI, whose host the parser has compared with the
/// `Host` header, what follows that host (RFC 9112 section 3.2.2).
fn target_path(head: &RequestHeader) -> &str {
    let target = std::str::from_utf8(head.raw_path()).unwrap_or("");
    match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |path| &rest[path..])
        }
        _ => target,
    }
}

/// The site named by `x-infergate-site`: this one, or one where a node is.
fn forced_site(headers: &HeaderMap, ctx: &RequestContext) -> Result<Option<Arc<str>>, Refusal> {
    let Some(named) = headers.get("x-infergate-site") else {
        return Ok(None);
    };
    let own = &ctx.snapshot.site;
    if named.as_bytes() == own.as_bytes() {
        return Ok(Some(Arc::clone(own)));
    }
    let sites = ctx.known_sites();
    if let Some(site) = sites
        .iter()
        .find(|site| site.as_bytes() == named.as_bytes())
    {
        return Ok(Some(Arc::clone(site)));
    }
    let known: Vec<&str> = std::iter::once(own)
        .chain(&sites)
        .map(|site| &**site)
        .collect();
    Err(Refusal::BadRequest {
        pointer: String::new(),
        message: format!(
            "`x-infergate-site` names no known site; known: {}",
            known.join(", ")
        ),
    })
}

/// Returns the client's own id of the request, where that fits into an event.
fn client_request_id(headers: &HeaderMap) -> Option<Arc<str>> {
    let named = headers.get("x-client-request-id")?.to_str().ok()?;
    (1..=CLIENT_REQUEST_ID_BYTES_MAX)
        .contains(&named.len())
        .then(|| named.into())
}

fn requested_timeout(headers: &HeaderMap) -> Result<Option<Millis>, Refusal> {
    let mut values = headers.get_all("x-infergate-timeout-ms").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    match (number, values.next()) {
        (Some(ms), None) if ms > 0 => Ok(Some(Millis(ms))),
        _ => Err(Refusal::BadRequest {
            pointer: String::new(),
            message: "`x-infergate-timeout-ms` must be a positive number of milliseconds".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absolute_uri_asks_for_its_path() {
        let path = |target: &str| {
            let head = RequestHeader::build("POST", target.as_bytes(), None).unwrap();
            target_path(&head).to_owned()
        };
        assert_eq!(path("http://h:1/v1/x?a=b"), "/v1/x?a=b");
        assert_eq!(path("http://h"), "/");
        assert_eq!(path("/v1/x?u=http://h/v1/y"), "/v1/x?u=http://h/v1/y");
        assert_eq!(path("*"), "*");
    }

    #[test]
    fn the_path_decides_on_the_dialect_of_what_is_refused() {
        let face_of = |target: &str| {
            dialect_of(&RequestHeader::build("POST", target.as_bytes(), None).unwrap())
        };
        assert_eq!(face_of("/v1/chat/completions"), ApiDialect::OpenAi);
        assert_eq!(face_of("/ai/run/m"), ApiDialect::WorkersAi);
        assert_eq!(
            face_of("http://h/client/v4/accounts/a/ai/run/m"),
            ApiDialect::WorkersAi
        );
    }
}
