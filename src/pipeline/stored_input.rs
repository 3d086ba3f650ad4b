//! Check of a body that is kept to run later, before it is accepted.
//!
//! Not the run, which makes its own check: the model may have another task by then. Hooks of a plugin see the body at
//! the run alone.

use bytes::Bytes;
use infergate_core::api::dialect::RequestBody;
use infergate_core::api::{ApiDialect, Call, Operation, body};
use infergate_core::{AccountId, Refusal};

use super::body_check;
use super::context::RequestContext;
use super::downstream::Downstream;
use super::error::RequestError;
use super::lora;
use crate::plugin::{TaskInput, index_bytes_max};
use crate::state::{BodyShare, LARGE_BYTES, Shared};
use crate::telemetry::off_the_worker;
use crate::upstream::ModelRuntime;

const JSON: &str = "application/json";
/// Name of the model at its server: nothing is sent.
const NO_NAME: &str = "";

/// Checks a body of a run as its steps 4 and 7 will. They read its members with the operator's parameters, and hold it
/// against the schema of the model's task and the server's protocol. Its memory is a part of `share` meanwhile.
///
/// # Errors
/// The body does not fit, does not fit into the account's share, or its turn did not come before the deadline.
pub async fn check_stored_input(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    (model, body): (&ModelRuntime, Bytes),
    share: &mut BodyShare,
) -> Result<(), RequestError> {
    let bytes = body.len() as u64 + index_bytes_max(body.len());
    if !share.grow(bytes) {
        return Err(Refusal::BodyBudgetSpent.into());
    }
    let slot = match body.len() >= LARGE_BYTES || model.task.is_heavy() {
        true => Some(Box::pin(body_check::acquire_slot(shared, downstream, ctx)).await?),
        false => None,
    };
    let account = ctx.account();
    let checked = off_the_worker(slot.is_some(), || check(model, body, account));
    share.shrink(bytes);
    Ok(checked?)
}

fn check(model: &ModelRuntime, body: Bytes, account: Option<&AccountId>) -> Result<(), Refusal> {
    let request = RequestBody {
        operation: Operation::Run,
        task: Some(model.spec.task),
        path_model: Some(model.spec.id.as_str().to_owned()),
        content_type: Some(JSON),
        path: "",
        json_bytes: None,
        body,
        length: None,
    };
    let call = ApiDialect::WorkersAi.rules().parse(request)?;
    let call = body::with_parameters(call, &model.spec.parameters)?;
    if let Some(account) = account {
        lora::find_adapter(account, model, &call)?;
    }
    model.backend.accepts(&call, model.spec.task)?;
    if model.task.is_active() {
        check_schema(model, &call)?;
    }
    // What a hook makes of the body is not known yet, and a server of the task gets the task's payload.
    if model.backend.uses_task_payload() || model.task.has_hooks() {
        return Ok(());
    }
    let encoded = model.backend.encode(&call, model.spec.task, NO_NAME);
    encoded.map(drop)
}

fn check_schema(model: &ModelRuntime, call: &Call) -> Result<(), Refusal> {
    let content_type = call.content_type.as_deref().unwrap_or(JSON);
    let input = TaskInput {
        model: model.spec.id.as_str(),
        content_type,
        body: &call.stripped_body(),
        is_read: call.content_type.is_none(),
        is_checked: false,
        attributes: Vec::new(),
    };
    match model.task.check(&input) {
        // A plugin that fails now may work when the job has its turn.
        Ok(_) | Err(Refusal::PluginFailed) => Ok(()),
        Err(refusal) => Err(refusal),
    }
}
