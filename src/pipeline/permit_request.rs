//! Request for a permit, as the model's queue orders it, and the tokens that are charged ahead.
//!
//! Not the wait for it, which is step 9.

use infergate_core::admission::{PermitClass, PermitRequest};
use infergate_core::api::Call;
use infergate_core::model::Algorithm;

use super::context::RequestContext;
use super::origin::Origin;
use super::terms;
use crate::state::Account;
use crate::upstream::ModelRuntime;

/// Generated tokens assumed when the caller sets no bound, and the most that is charged ahead:
/// the rest is corrected when the server reports what it used.
const TOKENS_AHEAD_MAX: u64 = 256;
/// Upper bound of prompt tokens charged in advance: no model reads more, and a larger debt would be held
/// against other requests of the account.
const PROMPT_AHEAD_MAX: u64 = 1 << 20;
/// `x_priority` of requests that name none.
const PRIORITY_DEFAULT: u8 = 5;

/// Tokens that an account is charged before they are known.
pub fn tokens_ahead(call: &Call) -> u64 {
    let generated = call.max_tokens.unwrap_or(TOKENS_AHEAD_MAX);
    let prompt = call.prompt_tokens().min(PROMPT_AHEAD_MAX);
    prompt.saturating_add(generated.min(TOKENS_AHEAD_MAX))
}

/// Builds the request for a permit from the client's request. A task's payload may hide the images in it.
pub fn permit_request(
    ctx: &RequestContext,
    account: &Account,
    model: &ModelRuntime,
    call: &Call,
    reject_if_busy: bool,
) -> PermitRequest {
    // No other discipline reads tokens.
    let prompt = match model.spec.queue.algorithm {
        Algorithm::TokenFair => call.prompt_tokens().min(PROMPT_AHEAD_MAX),
        Algorithm::Fifo | Algorithm::Fair | Algorithm::Priority => 1,
    };
    let generated = call
        .max_tokens
        .unwrap_or(TOKENS_AHEAD_MAX)
        .min(TOKENS_AHEAD_MAX);
    // Lower is more urgent, so the account's best is a floor for the number.
    let priority = call
        .priority
        .unwrap_or(PRIORITY_DEFAULT)
        .max(account.spec.max_priority);
    PermitRequest {
        account: account.spec.id.clone(),
        weight: account.spec.weight,
        priority,
        is_warm: false,
        tokens: u32::try_from(prompt.saturating_add(generated)).unwrap_or(u32::MAX),
        deadline: ctx.deadline,
        no_wait: reject_if_busy || call.reject_if_busy,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: !ctx.can.queue_bound,
        has_alternative: false,
        client: terms::demand_client(ctx, model, call),
        class: match ctx.origin() {
            Origin::Job(_) => PermitClass::Durable,
            Origin::Client | Origin::Peer => PermitClass::Live,
        },
    }
}
