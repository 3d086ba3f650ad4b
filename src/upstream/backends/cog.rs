//! Cog: predictions under names of the gateway's, answered when they have ended.
//!
//! A task's payload is the input of the model, and the output is what the task's result is made of. Forms are the
//! core's. A model that fails is answered with 200, and its server is well. Runs go on when nobody waits for them:
//! [`cancel_left_work`](crate::upstream::cancel_left_work) ends those.

use infergate_core::Refusal;
use infergate_core::api::cog::{CogPayload, CogState, prediction_body, read_health};
use infergate_core::api::{Call, Operation};
use infergate_core::model::{BackendName, Payload, Task};

use super::descriptor::{
    AdapterForm, Backend, NO_TENSORS, NO_WEBSOCKET, Probe, ProbeReport, UpstreamRequest,
    wrong_model,
};
use crate::upstream::response::PredictionResult;

/// The row of Cog.
pub(super) static COG: Backend = Backend {
    name: BackendName::COG,
    about: "Containers of Cog",
    tasks: &Task::ALL,
    payload: Payload::Task,
    paths: &["PUT /predictions/{id}"],
    passed: &[],
    accepts,
    encode,
    response_decoder: |call, task| PredictionResult::decoder(is_streamed(call, task), task),
    adapter_form: Some(AdapterForm::LORA),
    probe: Probe {
        // Always 200: the state is in the body.
        path: "/health-check",
        is_healthy: |status, body| status == 200 && report(body).fault.is_none(),
        metrics: None,
        report: Some(report),
    },
};

fn accepts(call: &Call, _task: Task) -> Result<(), Refusal> {
    match call.operation {
        Operation::Run => Ok(()),
        Operation::Infer | Operation::Generate | Operation::GenerateStream => {
            Err(wrong_model(call, NO_TENSORS))
        }
        Operation::WebSocket => Err(wrong_model(call, NO_WEBSOCKET)),
        Operation::Chat | Operation::Completions | Operation::Embeddings | Operation::Passed(_) => {
            let path = format!("/ai/run/{}", call.model);
            Err(wrong_model(
                call,
                &format!("has no OpenAI interface: POST to {path}"),
            ))
        }
    }
}

/// The path is named anew for each attempt.
fn encode(call: &Call, task: Task, _backend_model: &str) -> Result<UpstreamRequest, Refusal> {
    let kind = match task {
        Task::DumbPipe => CogPayload::Own,
        Task::TextGeneration | Task::ImageTextToText => CogPayload::Text,
        _ => CogPayload::Task,
    };
    accepts(call, task)?;
    Ok(UpstreamRequest {
        path: "/predictions".into(),
        body: prediction_body(&call.stripped_body(), kind)?.into(),
        content_type: None,
        streams: is_streamed(call, task),
    })
}

/// The client gets events, although the server answers with the whole.
fn is_streamed(call: &Call, task: Task) -> bool {
    call.stream && matches!(task, Task::TextGeneration | Task::ImageTextToText)
}

fn report(body: &[u8]) -> ProbeReport {
    match read_health(body) {
        Some(health) => ProbeReport {
            fault: health.state.fault(),
            is_full: health.state == CogState::Busy,
            logs: health.logs,
        },
        None => ProbeReport {
            fault: Some("not a server of Cog"),
            ..ProbeReport::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use infergate_core::api::{ApiDialect, body};
    use serde_json::{Value, json};

    use super::*;

    fn run(json: Value) -> Call {
        let body = Bytes::from(json.to_string());
        body::parse(
            ApiDialect::WorkersAi,
            Operation::Run,
            Some("m".into()),
            body,
        )
        .unwrap()
    }

    fn sent(json: Value, task: Task) -> (Value, bool) {
        let encoded = encode(&run(json), task, "m").unwrap();
        let body = serde_json::from_slice(&encoded.body).unwrap();
        (body, encoded.streams)
    }

    #[test]
    fn a_payload_is_the_input_without_the_gateways_members() {
        let payload = json!({ "prompt": "a", "stream": true, "x_priority": 1 });
        assert_eq!(
            sent(payload.clone(), Task::TextGeneration),
            (json!({ "input": { "prompt": "a" } }), true)
        );
        assert_eq!(
            sent(payload, Task::DumbPipe),
            (json!({ "input": { "prompt": "a", "stream": true } }), false)
        );
    }

    #[test]
    fn a_check_reads_the_state_and_not_the_status() {
        for (state, fault) in [("READY", None), ("STARTING", Some("loading"))] {
            let body = format!(r#"{{"status":"{state}","setup":{{}}}}"#);
            assert_eq!(report(body.as_bytes()).fault, fault);
            assert_eq!(
                (COG.probe.is_healthy)(200, body.as_bytes()),
                fault.is_none()
            );
        }
        assert!(report(br#"{"status":"BUSY"}"#).is_full);
        assert!(report(b"ok").fault.is_some());
    }
}
