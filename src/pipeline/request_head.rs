//! Step 2 of the request pipeline: what the head says, before any of the body is read.
//!
//! Copies what later steps need, because reading the body takes the session.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::BytesMut;
use infergate_core::api::catalog::{self, CatalogQuery};
use infergate_core::api::dialects::route;
use infergate_core::api::open_inference::{JSON_BYTES_HEADER, OpenInferenceRoute};
use infergate_core::api::replicate::ReplicateRoute;
use infergate_core::api::route::{Route, RouteTarget};
use infergate_core::api::workers_ai::FinetuneScope;
use infergate_core::api::{ApiDialect, Operation};
use infergate_core::{AccountId, Millis, Refusal};

use crate::http1::{Fields, as_text};
use crate::peer::{ClusterHandle, ForwardedHead};
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::RequestHead;
use crate::pipeline::origin::Origin;
use crate::pipeline::websocket;
use crate::state::header_filter::PassedHeaders;
use crate::state::{Account, has_key};
use crate::tls::CertificateNames;

/// Longest `x-client-request-id` that an event keeps.
const CLIENT_REQUEST_ID_BYTES_MAX: usize = 128;

/// Account of a request, and the parts of its head that later steps need.
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
    /// The tasks of the models in the catalogue.
    Tasks,
    /// A request of the durable path.
    Replicate(Box<ReplicateRoute>),
    /// Finetunes of the models this key may use.
    Finetunes(FinetuneScope),
    /// The document that describes all routes.
    Description,
    /// A page of the Open Inference Protocol.
    OpenInference(Box<OpenInferenceRoute>),
}

impl RequestedOperation {
    /// The operation of a route; the handshake of a WebSocket is checked.
    fn of(target: RouteTarget<'_>, head: RequestHead<'_>) -> Result<RequestedOperation, Refusal> {
        Ok(match target {
            RouteTarget::Call(operation, model) => {
                if operation == Operation::WebSocket {
                    websocket::check_request(head)?;
                }
                RequestedOperation::Call(operation, model.map(Cow::into_owned))
            }
            RouteTarget::Models => RequestedOperation::Models,
            RouteTarget::Model(id) => RequestedOperation::Model(id.into_owned()),
            RouteTarget::Search(query) => RequestedOperation::Search(CatalogQuery::parse(query)?),
            RouteTarget::Schema(query) => {
                RequestedOperation::Schema(catalog::requested_model(query)?)
            }
            RouteTarget::Tasks => RequestedOperation::Tasks,
            RouteTarget::Replicate(route) => RequestedOperation::Replicate(route),
            RouteTarget::Finetunes(scope) => RequestedOperation::Finetunes(scope),
            RouteTarget::Description => RequestedOperation::Description,
            RouteTarget::OpenInference(route) => RequestedOperation::OpenInference(route),
            RouteTarget::Refused(refusal) => return Err(refusal),
            RouteTarget::Unknown => return Err(Refusal::NoSuchRoute),
        })
    }
}

impl AuthenticatedRequest {
    /// Finds the route and the account; the caller's wish bounds the ctx from here on.
    ///
    /// # Errors
    /// Key, account, route and option refusals, in this order.
    pub fn read(
        head: RequestHead<'_>,
        ctx: &mut RequestContext,
    ) -> Result<(AuthenticatedRequest, RequestedOperation), Refusal> {
        if !matches!(ctx.origin(), Origin::Client) {
            return AuthenticatedRequest::from_origin(head, ctx);
        }
        let path = head.target;
        let Route {
            dialect,
            account: named,
            target,
        } = route(head.method, path);
        ctx.set_route(dialect, client_request_id(head.headers));
        let needs_no_key = match &target {
            RouteTarget::Replicate(route) => route.has_token(),
            RouteTarget::Description => true,
            RouteTarget::OpenInference(route) => route.is_open(),
            _ => false,
        };
        let account = match needs_no_key {
            true => ctx
                .snapshot
                .accounts
                .by_id(&AccountId::from(AccountId::ANONYMOUS)),
            false => Arc::clone(ctx.snapshot.accounts.identify(head.headers)?),
        };
        if ctx.page_origin.is_foreign() && !needs_no_key && !has_key(head.headers) {
            // Any web page could spend what this network may.
            return Err(Refusal::ForeignOrigin);
        }
        ctx.set_account(account.spec.id.clone());
        if named.is_some_and(|named| *named != *account.spec.id.as_str()) {
            return Err(Refusal::NotAllowed);
        }
        let requested = RequestedOperation::of(target, head)?;
        if account.spec.may_force_site {
            ctx.forced_site = forced_site(head.headers, ctx)?;
        }
        let timeout = requested_timeout(head.headers)?;
        if let Some(timeout) = timeout {
            ctx.deadline = ctx.deadline.min(ctx.arrival + timeout);
        }
        let passed_headers = match requested {
            RequestedOperation::Call(Operation::WebSocket, _) => {
                websocket::server_lines(head.headers, &ctx.passed_headers(head.headers))
            }
            _ => ctx.passed_headers(head.headers),
        };
        let read = AuthenticatedRequest {
            account,
            passed_headers,
            requested_timeout: timeout,
            reject_if_busy: head
                .headers
                .get("x-infergate-queue")
                .is_some_and(|value| value.eq_ignore_ascii_case(b"reject")),
        };
        Ok((read, requested))
    }

    /// Writes the header lines that another node gets: those that may pass, and those of the body.
    pub fn write_forwarded(&self, head: RequestHead<'_>, lines: &mut BytesMut) {
        lines.extend_from_slice(self.passed_headers.towards(false));
        let names = match head.target.starts_with("/v2/") {
            true => &["content-type", JSON_BYTES_HEADER][..],
            false => &["content-type"],
        };
        for &name in names {
            if let Some(value) = head.headers.get(name) {
                for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                    lines.extend_from_slice(part);
                }
            }
        }
    }

    /// Reads the head of a forwarded request or a job: account and deadline come with the origin.
    fn from_origin(
        head: RequestHead<'_>,
        ctx: &mut RequestContext,
    ) -> Result<(AuthenticatedRequest, RequestedOperation), Refusal> {
        let Route {
            dialect, target, ..
        } = route(head.method, head.target);
        ctx.set_route(dialect, client_request_id(head.headers));
        let RouteTarget::Call(operation, model) = target else {
            return Err(Refusal::NoSuchRoute);
        };
        let account = match ctx.origin() {
            Origin::Job(job) => Some(&job.account),
            _ => ctx.forwarding.as_ref().and_then(|state| state.account()),
        };
        let account = account.ok_or(Refusal::Internal)?;
        let read = AuthenticatedRequest {
            account: ctx.snapshot.accounts.by_id(account),
            passed_headers: ctx.passed_headers(head.headers),
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

/// Reason for the rejection of a request that another node forwards.
pub enum ForwardArrivalError {
    /// The head is malformed, not the sender's to write, or has a loop.
    Malformed(String),
    /// The sender is not a member of the cluster, as far as the gossip of this node knows.
    NotMember(Arc<str>),
    /// The sender, by its certificate, speaks another version of the protocol between nodes.
    OtherProtocol(Arc<str>),
}

/// Reads the metadata that another node reports of the request it forwards.
///
/// # Errors
/// The request is rejected; the [`ForwardArrivalError`] names the reason.
pub fn read_forward(
    others: &ClusterHandle,
    headers: &Fields,
    peer: &CertificateNames,
    ctx: &mut RequestContext,
) -> Result<(), ForwardArrivalError> {
    let head =
        ForwardedHead::read(headers).map_err(|error| match error.is_of_other_protocol() {
            true => ForwardArrivalError::OtherProtocol(peer.first().into()),
            false => ForwardArrivalError::Malformed(error.to_string()),
        })?;
    let (from, generation) = accept(head, peer, ctx).map_err(ForwardArrivalError::Malformed)?;
    match others.is_member(&from, generation) {
        true => Ok(()),
        false => Err(ForwardArrivalError::NotMember(from)),
    }
}

/// Returns the sender's name and generation.
fn accept(
    forwarded: ForwardedHead,
    peer: &CertificateNames,
    ctx: &mut RequestContext,
) -> Result<(Arc<str>, u64), String> {
    let is_senders = peer.has(&forwarded.from);
    if !is_senders || !forwarded.hops.visited.contains(&forwarded.from) {
        return Err("the request says to come from another node than its certificate".to_owned());
    }
    let sender = (Arc::clone(&forwarded.from), forwarded.generation);
    ctx.accept_forward(forwarded)
        .map_err(|error| error.to_string())?;
    Ok(sender)
}

/// The dialect of a head that may not be acceptable otherwise.
pub fn dialect_of(head: RequestHead<'_>) -> ApiDialect {
    route(head.method, head.target).dialect
}

/// The site named by `x-infergate-site`: this one, or one where a node is.
fn forced_site(headers: &Fields, ctx: &RequestContext) -> Result<Option<Arc<str>>, Refusal> {
    let Some(named) = headers.get("x-infergate-site") else {
        return Ok(None);
    };
    let own = &ctx.snapshot.site;
    if named == own.as_bytes() {
        return Ok(Some(Arc::clone(own)));
    }
    let sites = ctx.known_sites();
    if let Some(site) = sites.iter().find(|site| site.as_bytes() == named) {
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
fn client_request_id(headers: &Fields) -> Option<Arc<str>> {
    let named = headers.text_of("x-client-request-id")?;
    (1..=CLIENT_REQUEST_ID_BYTES_MAX)
        .contains(&named.len())
        .then(|| named.into())
}

fn requested_timeout(headers: &Fields) -> Result<Option<Millis>, Refusal> {
    let mut values = headers.get_all("x-infergate-timeout-ms");
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let number = as_text(value).and_then(|text| text.parse().ok());
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
    fn the_path_decides_on_the_dialect_of_what_is_refused() {
        let headers = Fields::default();
        let face_of = |target| {
            dialect_of(RequestHead {
                method: "POST",
                target,
                headers: &headers,
            })
        };
        assert_eq!(face_of("/v1/chat/completions"), ApiDialect::OpenAi);
        assert_eq!(face_of("/ai/run/m"), ApiDialect::WorkersAi);
        assert_eq!(
            face_of("/client/v4/accounts/a/ai/run/m"),
            ApiDialect::WorkersAi
        );
    }
}
