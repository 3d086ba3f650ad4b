//! Paths of the dialect: `run`, at the root and below an account, and the catalogue.
//!
//! Every other path below `/ai/` and `/client/v4/` is refused in this dialect.

use super::finetunes::FinetuneScope;
use crate::Refusal;
use crate::api::Operation;
use crate::api::route::{RequestPath, RouteTarget, decoded};

/// Returns the target of a path of this dialect.
pub(super) fn route<'a>(request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
    if let Some(model) = request.path.strip_prefix("/ai/run/") {
        return Some(run(request, model));
    }
    if let Some(rest) = request.path.strip_prefix("/ai/finetunes") {
        return Some(finetunes(request, rest));
    }
    let has_account = request.account.is_some();
    let below = request.path.strip_prefix("/ai/");
    if has_account && let Some(rest) = below.filter(|rest| !rest.starts_with("v1/")) {
        return Some(match (request.method, rest) {
            ("GET", "models/search") => RouteTarget::Search(request.query),
            ("GET", "models/schema") => RouteTarget::Schema(request.query),
            // The libraries ask for the second.
            ("GET", "tasks") => RouteTarget::Tasks,
            ("GET", "tasks/search") => RouteTarget::Tasks,
            _ => RouteTarget::Unknown,
        });
    }
    let is_ours = match has_account {
        true => !request.path.starts_with("/ai/v1/"),
        false => request.path.starts_with("/client/v4/") || request.path.starts_with("/ai/"),
    };
    is_ours.then_some(RouteTarget::Unknown)
}

fn finetunes<'a>(request: &RequestPath<'a>, rest: &str) -> RouteTarget<'a> {
    match rest {
        _ if request.account.is_none() || request.method != "GET" => RouteTarget::Unknown,
        "" | "/" => RouteTarget::Finetunes(FinetuneScope::OfAccount),
        "/public" => RouteTarget::Finetunes(FinetuneScope::Public),
        _ => RouteTarget::Unknown,
    }
}

fn run<'a>(request: &RequestPath<'a>, model: &'a str) -> RouteTarget<'a> {
    if model.is_empty() {
        return RouteTarget::Unknown;
    }
    match request.method {
        "POST" => {}
        "GET" => return RouteTarget::Call(Operation::WebSocket, Some(decoded(model))),
        _ => return RouteTarget::Unknown,
    }
    if request.query.contains("queueRequest=true") {
        return RouteTarget::Refused(Refusal::BadRequest {
            pointer: String::new(),
            message: "queued requests are not available here".into(),
        });
    }
    RouteTarget::Call(Operation::Run, Some(decoded(model)))
}
