//! Any model behind plain HTTP: the task's payload is posted, and the response is the result.
//!
//! Tasks are not known here: the payload and its path are made before, and a JSON response is
//! shaped by the task afterwards. Any other response (an image, a sound) is passed to the client
//! unchanged. Such a server has no OpenAI paths but those of APIs whose bodies pass. Its health route is `/health`, and a server that
//! has none is well as long as it answers below 500.

use infergate_core::Refusal;
use infergate_core::api::passed::PassedApi;
use infergate_core::api::{ApiDialect, Call, Operation};
use infergate_core::model::{BackendName, Payload, Task};
use infergate_core::task::backend_path;

use super::descriptor::{
    AdapterForm, Backend, NO_TENSORS, Probe, UpstreamRequest, pass, path_segment, wrong_model,
};
use crate::upstream::response::{Opaque, PassedAnswer, ResponseDecoder, TaskResult};

/// The row of plain HTTP servers.
pub(super) static HTTP: Backend = Backend {
    name: BackendName::HTTP,
    about: "Any HTTP server, shaped by the task",
    tasks: &Task::ALL,
    payload: Payload::Task,
    paths: &[],
    passed: PassedApi::ALL,
    accepts,
    encode,
    response_decoder: decoder,
    adapter_form: Some(AdapterForm::LORA),
    probe: Probe {
        path: "/health",
        is_healthy: |status, _body| status < 500,
        metrics: None,
        report: None,
    },
};

fn accepts(call: &Call, _task: Task) -> Result<(), Refusal> {
    match call.operation {
        Operation::Run | Operation::WebSocket | Operation::Passed(_) => Ok(()),
        Operation::Infer | Operation::Generate | Operation::GenerateStream => {
            Err(wrong_model(call, NO_TENSORS))
        }
        Operation::Chat | Operation::Completions | Operation::Embeddings => {
            Err(Refusal::BadRequest {
                pointer: "/model".into(),
                message: format!(
                    "model `{0}` has no OpenAI interface: POST to /ai/run/{0}",
                    call.model
                ),
            })
        }
    }
}

fn encode(call: &Call, task: Task, backend_model: &str) -> Result<UpstreamRequest, Refusal> {
    accepts(call, task)?;
    if let Operation::Passed(api) = call.operation {
        return Ok(pass(call, api, backend_model));
    }
    let is_realtime = call.operation == Operation::WebSocket && call.dialect == ApiDialect::OpenAi;
    Ok(UpstreamRequest {
        path: match is_realtime {
            true => format!("/v1/realtime?model={}", path_segment(backend_model)).into(),
            false => backend_path(task).into(),
        },
        body: call.stripped_body(),
        content_type: call.content_type.clone(),
        streams: call.stream && matches!(task, Task::TextGeneration | Task::ImageTextToText),
    })
}

fn decoder(call: &Call, task: Task) -> Box<dyn ResponseDecoder> {
    match (call.operation, task) {
        (Operation::Passed(api), _) => PassedAnswer::decoder(call, api),
        // An answer in place of a WebSocket passes as it is.
        (Operation::WebSocket, _) | (_, Task::DumbPipe) => Opaque::decoder(),
        _ => TaskResult::decoder(),
    }
}
