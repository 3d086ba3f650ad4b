//! Chats as the servers of a model want them: with a prompt written here, or with a word about thinking.
//!
//! Applied to a request that is encoded already, whatever API it came by. Models without `chat` pass by.

use std::borrow::Cow;

use infergate_core::Refusal;
use infergate_core::api::chat_template::{completion_request, with_thinking};
use infergate_core::api::{Call, Operation};
use infergate_core::model::{ChatSpec, ChatTemplate, Thinking};

use crate::upstream::UpstreamRequest;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Returns the request in the form of `chat`.
///
/// # Errors
/// A member that the template has no form for.
pub fn apply(chat: &ChatSpec, encoded: UpstreamRequest) -> Result<UpstreamRequest, Refusal> {
    if encoded.path != CHAT {
        return Ok(encoded);
    }
    if chat.template != ChatTemplate::Server {
        return Ok(UpstreamRequest {
            path: Cow::Borrowed(COMPLETIONS),
            body: completion_request(chat.template, &encoded.body)?.into(),
            ..encoded
        });
    }
    let thinks = match chat.thinking {
        Thinking::Default => return Ok(encoded),
        Thinking::On => true,
        Thinking::Off => false,
    };
    Ok(match with_thinking(&encoded.body, thinks) {
        Some(body) => UpstreamRequest {
            body: body.into(),
            ..encoded
        },
        None => encoded,
    })
}

/// Returns whether the server was asked for a completion in place of a chat.
pub fn is_completion(chat: &ChatSpec, call: &Call, encoded: &UpstreamRequest) -> bool {
    chat.template != ChatTemplate::Server
        && call.operation != Operation::Completions
        && encoded.path == COMPLETIONS
}
