//! Paths of the dialect, at the root and below an account.
//!
//! The list of models keeps the OpenAI shape: its path is the same in both APIs.

use crate::Refusal;
use crate::api::Operation;
use crate::api::route::{RequestPath, RouteTarget};

/// Returns the target of a path of this dialect.
pub(super) fn route<'a>(request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
    let prefix = match request.account {
        Some(_) => "/ai/v1/messages",
        None => "/v1/messages",
    };
    let rest = request.path.strip_prefix(prefix)?;
    match (request.method, rest) {
        ("POST", "") => Some(RouteTarget::Call(Operation::Chat, None)),
        ("POST", "/count_tokens") => Some(RouteTarget::Refused(Refusal::NotSupported(
            "tokens are counted by model servers only, so this gateway cannot count them before a \
             request: `message_start` of a stream has an estimate",
        ))),
        (_, rest) if rest.is_empty() || rest.starts_with('/') => Some(RouteTarget::Unknown),
        _ => None,
    }
}
