//! Step 2 of the walk: what the head says, before any of the body is read.
//!
//! It copies what later steps need, because reading the body takes the session.

use std::sync::Arc;

use bytes::BytesMut;
use http::header::HeaderMap;
use infergate_core::api::catalog::{self, Search};
use infergate_core::api::route::{Route, Target, route};
use infergate_core::api::{Face, Operation};
use infergate_core::{Millis, Refusal};
use pingora_core::protocols::http::ServerSession;
use pingora_error::Error;
use pingora_http::RequestHeader;

use super::accounts::Account;
use super::call::Trip;
use super::rules;

/// For whom a request is, and what of its head later steps need.
pub struct Head {
    /// The account whose key was presented.
    pub account: Arc<Account>,
    /// Header lines a backend may see, in wire form.
    pub passing: BytesMut,
    /// `x-infergate-timeout-ms`.
    pub wish: Option<Millis>,
    /// `x-infergate-queue: reject`.
    pub reject_if_busy: bool,
}

/// What is asked, owned.
pub enum Wanted {
    /// Run something; a model that stood in the path.
    Call(Operation, Option<String>),
    /// The models this key may use.
    Models,
    /// One of them.
    Model(String),
    /// Those that are looked for.
    Search(Search),
    /// The schemas of one of them.
    Schema(String),
}

impl Head {
    /// Finds the route and the account; the caller's wish bounds the trip from here on.
    ///
    /// # Errors
    /// Key, account, route and option refusals, in this order.
    pub fn read(session: &ServerSession, trip: &mut Trip) -> Result<(Head, Wanted), Refusal> {
        let head = session.req_header();
        let path = target_path(head);
        let Route {
            face,
            account: named,
            target,
        } = route(head.method.as_str(), path);
        trip.event().face = face;
        let account = Arc::clone(trip.world.accounts.identify(&head.headers)?);
        trip.event().account_id = Some(account.spec.id.clone());
        if named.is_some_and(|named| *named != *account.spec.id.as_str()) {
            return Err(Refusal::NotAllowed);
        }
        let wanted = match target {
            Target::Call(operation, model) => {
                if face == Face::WorkersAi && path.contains("queueRequest=true") {
                    return Err(Refusal::BadRequest {
                        pointer: String::new(),
                        message: "queued requests are not available here".into(),
                    });
                }
                Wanted::Call(operation, model.map(|model| model.into_owned()))
            }
            Target::Models => Wanted::Models,
            Target::Model(id) => Wanted::Model(id.into_owned()),
            Target::Search(query) => Wanted::Search(Search::parse(query)?),
            Target::Schema(query) => Wanted::Schema(catalog::wanted_model(query)?),
            Target::Unknown => return Err(Refusal::NoSuchRoute),
        };
        if account.spec.may_force_site {
            trip.forced_site = forced_site(&head.headers, &trip.world.site)?;
        }
        let wish = timeout_wish(&head.headers)?;
        if let Some(wish) = wish {
            trip.deadline = trip.deadline.min(trip.arrival + wish);
        }
        let read = Head {
            account,
            passing: rules::passing_headers(&head.headers),
            wish,
            reject_if_busy: head
                .headers
                .get("x-infergate-queue")
                .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"reject")),
        };
        Ok((read, wanted))
    }
}

/// How Pingora begins to say that a head is over its own, larger limit; its type is that of every
/// head it cannot read.
const OVER_PARSER_LIMIT: &str = "Request header larger than";

/// Why there is no head.
pub fn unreadable(error: &Error) -> Refusal {
    let context = error
        .context
        .as_ref()
        .map_or("", |context| context.as_str());
    match context.starts_with(OVER_PARSER_LIMIT) {
        true => Refusal::HeadersTooLarge,
        false => Refusal::BadFraming("the request head could not be read"),
    }
}

/// The dialect of a head that may not be acceptable otherwise.
pub fn face(head: &RequestHeader) -> Face {
    route(head.method.as_str(), target_path(head)).face
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

/// The site named by `x-infergate-site`. A node without peers knows one, its own.
fn forced_site(headers: &HeaderMap, own: &str) -> Result<Option<u32>, Refusal> {
    match headers.get("x-infergate-site") {
        None => Ok(None),
        Some(site) if site.as_bytes() == own.as_bytes() => Ok(Some(0)),
        Some(_) => Err(Refusal::BadRequest {
            pointer: String::new(),
            message: format!("`x-infergate-site` names no known site; known: {own}"),
        }),
    }
}

fn timeout_wish(headers: &HeaderMap) -> Result<Option<Millis>, Refusal> {
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
        let face_of =
            |target: &str| face(&RequestHeader::build("POST", target.as_bytes(), None).unwrap());
        assert_eq!(face_of("/v1/chat/completions"), Face::OpenAi);
        assert_eq!(face_of("/ai/run/m"), Face::WorkersAi);
        assert_eq!(
            face_of("http://h/client/v4/accounts/a/ai/run/m"),
            Face::WorkersAi
        );
    }
}
