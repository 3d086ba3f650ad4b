//! Step 7 of the request pipeline: what the model's task makes of the input.
//!
//! Not the checks: the task makes them, in a session that goes on to the response. A model whose task has
//! nothing to say is asked for what the client sent, at no cost.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::api::{Call, Operation, body};
use infergate_core::{AccountId, Refusal};

use crate::pipeline::body_check::BodyCheck;
use crate::pipeline::context::RequestContext;
use crate::pipeline::fallback::ModelError;
use crate::plugin::{Caller, TaskInput, TaskPayload, TaskSession, index_bytes_max};
use crate::state::BodyShare;
use crate::telemetry::off_the_worker;
use crate::upstream::ModelRuntime;

const JSON: &str = "application/json";

/// A request as the model server is to be asked.
pub struct PreparedRequest {
    /// The client's request, or what has become of it.
    pub call: Call,
    /// Path under the endpoint's base URL, where the task names one.
    pub path: Option<String>,
    /// Bytes this holds beside the client's own body.
    pub copied_bytes: u64,
    /// Name of its adapter at the servers.
    pub adapter: Option<Arc<str>>,
}

/// Asks the model's task. Returns the session of a task with hooks for the response. The memory of
/// the check is a part of `share` meanwhile.
///
/// # Errors
/// Input that the task does not take, [`Refusal::PluginFailed`], [`Refusal::BodyBudgetSpent`].
pub fn prepare(
    ctx: &mut RequestContext,
    account: &AccountId,
    (model, call): (&ModelRuntime, Call),
    share: &mut BodyShare,
    check: BodyCheck<'_>,
) -> Result<(PreparedRequest, Option<TaskSession>), ModelError> {
    let passes = passes_task(&call);
    if passes {
        check_passes(model, &call).map_err(ModelError::Unfit)?;
    }
    if !model.task.is_active() || passes {
        let prepared = PreparedRequest {
            call,
            path: None,
            copied_bytes: 0,
            adapter: None,
        };
        return Ok((prepared, None));
    }
    model
        .backend
        .accepts(&call, model.spec.task)
        .map_err(ModelError::Unfit)?;
    let body = call.stripped_body();
    let is_checked = matches!(check, BodyCheck::Passed);
    let index = match is_checked {
        true => 0,
        false => index_bytes_max(body.len()),
    };
    if !share.grow(index) {
        return Err(ModelError::Unfit(Refusal::BodyBudgetSpent));
    }
    let mut task = model.task.has_hooks().then(|| {
        model.task.begin(Caller {
            account,
            request_id: ctx.request_id(),
        })
    });
    let is_off_worker = matches!(check, BodyCheck::OffWorker { .. });
    let prepared = off_the_worker(is_off_worker, || {
        run_task(model, task.as_mut(), (call, body), is_checked)
    });
    share.shrink(index);
    drop(check);
    let prepared = prepared.map_err(|refusal| {
        if let Some(task) = &task {
            ctx.record_plugins(task.uses());
        }
        ModelError::Unfit(refusal)
    })?;
    Ok((prepared, task))
}

/// Returns whether a request passes by the model's task, which knows the input of `/ai/run` and chats: a client's own
/// tensors and messages, and APIs whose bodies pass.
pub fn passes_task(call: &Call) -> bool {
    let is_unread = call.tensors.is_some() || call.operation == Operation::WebSocket;
    is_unread || call.passed_api().is_some()
}

/// Refuses a request that passes by the task where the operator has named who reads or sets members of the input.
fn check_passes(model: &ModelRuntime, call: &Call) -> Result<(), Refusal> {
    let takes_parameters = call.passed_api().is_some();
    let reader = match &model.spec {
        spec if spec.plugins.task.is_some() => "task plugin",
        spec if !spec.parameters.is_empty() && !takes_parameters => "parameters",
        _ => return Ok(()),
    };
    let what = match (call.operation, call.passed_api()) {
        (Operation::WebSocket, _) => "WebSocket".to_owned(),
        (Operation::Generate | Operation::GenerateStream, _) => "`generate`".to_owned(),
        (_, Some(api)) => format!("requests for {}", api.path()),
        (_, None) => "tensors".to_owned(),
    };
    Err(Refusal::BadRequest {
        pointer: String::new(),
        message: format!(
            "model `{0}` takes no {what} because of its {reader}: POST to /ai/run/{0}",
            call.model
        ),
    })
}

/// Checks the input; the hooks of `task` shape the payload, where it has any.
fn run_task(
    model: &ModelRuntime,
    task: Option<&mut TaskSession>,
    (call, body): (Call, Bytes),
    is_checked: bool,
) -> Result<PreparedRequest, Refusal> {
    let input = TaskInput {
        model: model.spec.id.as_str(),
        content_type: call.content_type.as_deref().unwrap_or(JSON),
        body: &body,
        is_read: call.content_type.is_none(),
        is_checked,
        attributes: match &task {
            Some(_) => attributes(&call),
            None => Vec::new(),
        },
    };
    let payload = match task {
        Some(task) => task.prepare(input)?,
        None => model.task.check(&input)?,
    };
    let copied = payload.body.as_ptr() != call.body.as_ptr();
    let copied_bytes = if copied { payload.body.len() as u64 } else { 0 };
    let path = payload.backend_path.clone();
    Ok(PreparedRequest {
        call: apply_payload(model, call, payload)?,
        path: path.filter(|_| model.backend.uses_task_path()),
        copied_bytes,
        adapter: None,
    })
}

/// Facts the gateway vouches for.
fn attributes(call: &Call) -> Vec<(String, String)> {
    let mut attributes = vec![
        ("face".to_owned(), call.dialect.name().to_owned()),
        ("stream".to_owned(), call.stream.to_string()),
    ];
    if let Some(lora) = call.lora() {
        attributes.push(("lora".to_owned(), lora.into_owned()));
    }
    attributes
}

fn apply_payload(model: &ModelRuntime, call: Call, payload: TaskPayload) -> Result<Call, Refusal> {
    let TaskPayload { body, changed, .. } = payload;
    if model.backend.uses_task_payload() {
        // A task that has put an image into JSON does not say so.
        let is_json = changed && is_json(&body);
        let content_type = call.content_type.clone().filter(|_| !is_json);
        return Ok(call.with_payload(body, content_type));
    }
    if !changed {
        return Ok(call);
    }
    // The client's own body could be read: what cannot be read now is the task's doing.
    body::reparse(call, body).map_err(|_| Refusal::PluginFailed)
}

fn is_json(body: &Bytes) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}
