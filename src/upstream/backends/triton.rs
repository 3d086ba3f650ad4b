//! Triton and other servers of the Open Inference Protocol: tensors in, tensors out.
//!
//! A task's payload becomes a tensor for each member, and text generation a `generate`. Tensors of a client, and its own
//! requests to generate, pass as they are. Conversions are the core's. The health check asks for the model: a server is not ready as long as any
//! other model of it has failed.

use infergate_core::Refusal;
use infergate_core::api::{BarredNames, Call, Operation, open_inference};
use infergate_core::model::{BackendName, Payload, Task};

use super::descriptor::{
    AdapterForm, Backend, NO_WEBSOCKET, Probe, UpstreamRequest, answers_200, path_segment,
    wrong_model,
};
use crate::upstream::response::{GeneratedAnswer, ResponseDecoder, TensorAnswer, TensorResult};

/// The row of servers of the Open Inference Protocol.
pub(super) static TRITON: Backend = Backend {
    name: BackendName::TRITON,
    about: "Triton and other servers of the Open Inference Protocol",
    tasks: &Task::ALL,
    payload: Payload::Task,
    paths: &[
        "/v2/models/{model}/infer",
        "/v2/models/{model}/generate",
        "/v2/models/{model}/generate_stream",
    ],
    passed: &[],
    accepts,
    encode,
    response_decoder: decoder,
    adapter_form: Some(AdapterForm {
        config_member: Some("lora_config"),
        barred: BarredNames {
            // The last two are those of Triton's backend for TensorRT-LLM.
            names: &["lora_name", "lora_config", "lora_task_id", "lora_weights"],
            // Parameters of Triton's backend for vLLM:
            // <https://github.com/triton-inference-server/vllm_backend/blob/main/docs/llama_multi_lora_tutorial.md>.
            text: Some("sampling_parameters"),
        },
        ..AdapterForm::LORA
    }),
    probe: Probe {
        path: "/v2/models/{model}/ready",
        is_healthy: answers_200,
        metrics: None,
        report: None,
    },
};

fn accepts(call: &Call, task: Task) -> Result<(), Refusal> {
    match (call.operation, task) {
        (Operation::Infer | Operation::Generate | Operation::GenerateStream, _) => Ok(()),
        (Operation::WebSocket, _) => Err(wrong_model(call, NO_WEBSOCKET)),
        (Operation::Run, Task::DumbPipe) => {
            let path = format!("/v2/models/{}/infer", call.model);
            Err(wrong_model(
                call,
                &format!("takes tensors alone: POST to {path}"),
            ))
        }
        (Operation::Run, _) => Ok(()),
        (
            Operation::Chat | Operation::Completions | Operation::Embeddings | Operation::Passed(_),
            _,
        ) => {
            let path = format!("/ai/run/{}", call.model);
            Err(wrong_model(
                call,
                &format!("has no OpenAI interface: POST to {path}"),
            ))
        }
    }
}

fn encode(call: &Call, task: Task, backend_model: &str) -> Result<UpstreamRequest, Refusal> {
    accepts(call, task)?;
    let model = path_segment(backend_model);
    if let Some(tensors) = &call.tensors {
        let version = tensors.version.as_ref();
        let version = version.map_or(String::new(), |version| format!("/versions/{version}"));
        return Ok(UpstreamRequest {
            path: format!("/v2/models/{model}{version}/{}", verb_of(call)).into(),
            body: call.body.clone(),
            content_type: call.content_type.clone(),
            streams: call.stream,
        });
    }
    let payload = call.stripped_body();
    let (verb, body) = match (task, call.stream) {
        (Task::TextGeneration, true) => {
            ("generate_stream", open_inference::generate_body(&payload)?)
        }
        (Task::TextGeneration, false) => ("generate", open_inference::generate_body(&payload)?),
        _ => ("infer", open_inference::infer_body(&payload)?),
    };
    Ok(UpstreamRequest {
        path: format!("/v2/models/{model}/{verb}").into(),
        body: body.into(),
        content_type: None,
        streams: call.stream && task == Task::TextGeneration,
    })
}

/// Last part of the path that a client's own request goes to.
fn verb_of(call: &Call) -> &'static str {
    match call.operation {
        Operation::Generate => "generate",
        Operation::GenerateStream => "generate_stream",
        _ => "infer",
    }
}

fn decoder(call: &Call, task: Task) -> Box<dyn ResponseDecoder> {
    match &call.tensors {
        Some(tensors) if call.operation == Operation::Infer => {
            TensorAnswer::decoder(&call.model, &tensors.outputs)
        }
        Some(_) => GeneratedAnswer::decoder(&call.model),
        None => TensorResult::decoder(task == Task::TextGeneration),
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

    fn sent(call: &Call, task: Task) -> (String, Value, bool) {
        let encoded = encode(call, task, "a b").unwrap();
        let body = serde_json::from_slice(&encoded.body).unwrap();
        (encoded.path.into_owned(), body, encoded.streams)
    }

    #[test]
    fn a_payload_goes_to_the_model_of_the_server_without_the_gateways_members() {
        let call = run(json!({ "input_text": "a", "x_priority": 1, "stream": true }));
        let input =
            json!({ "name": "input_text", "shape": [1, 1], "datatype": "BYTES", "data": ["a"] });
        assert_eq!(
            sent(&call, Task::Summarization),
            (
                "/v2/models/a%20b/infer".to_owned(),
                json!({ "inputs": [input] }),
                false
            ),
        );
        for (stream, path) in [(false, "generate"), (true, "generate_stream")] {
            let call = run(json!({ "prompt": "a", "stream": stream }));
            assert_eq!(
                sent(&call, Task::TextGeneration),
                (
                    format!("/v2/models/a%20b/{path}"),
                    json!({ "text_input": "a" }),
                    stream
                ),
            );
        }
        assert_eq!(TRITON.probe.path_of("a/b"), "/v2/models/a%2Fb/ready");
    }

    #[test]
    fn a_pipe_takes_tensors_alone() {
        let refused = accepts(&run(json!({})), Task::DumbPipe);
        assert!(
            matches!(refused, Err(Refusal::BadRequest { .. })),
            "{refused:?}"
        );
    }
}
