//! Paths of the dialect, at the root and below an account.
//!
//! Bodies are not read here.

use crate::Refusal;
use crate::api::Operation;
use crate::api::passed::PassedApi;
use crate::api::route::{RequestPath, RouteTarget, decoded};

/// Returns the target of a path of this dialect.
pub(super) fn route<'a>(request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
    let prefix = match request.account {
        Some(_) => "/ai/v1/",
        None => "/v1/",
    };
    let rest = request.path.strip_prefix(prefix)?;
    Some(match (request.method, rest) {
        ("POST", "chat/completions") => RouteTarget::Call(Operation::Chat, None),
        ("POST", "completions") => RouteTarget::Call(Operation::Completions, None),
        ("POST", "embeddings") => RouteTarget::Call(Operation::Embeddings, None),
        ("POST", "images/generations") => passed(PassedApi::Images),
        ("POST", "audio/speech") => passed(PassedApi::Speech),
        ("POST", "audio/transcriptions") => passed(PassedApi::Transcriptions),
        ("POST", "audio/translations") => passed(PassedApi::Translations),
        ("POST", "responses") => passed(PassedApi::Responses),
        ("POST", "rerank") => passed(PassedApi::Rerank),
        ("GET", "models") => RouteTarget::Models,
        ("GET", "realtime") => realtime(request.query),
        ("GET", _) => match rest.strip_prefix("models/") {
            Some(id) if !id.is_empty() => RouteTarget::Model(decoded(id)),
            _ => RouteTarget::Unknown,
        },
        _ => RouteTarget::Unknown,
    })
}

/// The WebSocket of the realtime API, whose model stands in the query.
fn realtime(query: &str) -> RouteTarget<'_> {
    let mut members = query.split('&').filter_map(|member| member.split_once('='));
    match members.find(|(name, value)| *name == "model" && !value.is_empty()) {
        Some((_, model)) => RouteTarget::Call(Operation::WebSocket, Some(decoded(model))),
        None => RouteTarget::Refused(Refusal::BadRequest {
            pointer: String::new(),
            message: "the query names no model: `/v1/realtime?model=…`".into(),
        }),
    }
}

fn passed<'a>(api: PassedApi) -> RouteTarget<'a> {
    RouteTarget::Call(Operation::Passed(api), None)
}
