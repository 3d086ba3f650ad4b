//! Text Embeddings Inference: `/embed` for the Workers AI dialect, `/v1/embeddings` passed through, `/rerank`
//! for `/v1/rerank`.
//!
//! Text is not generated. `/embed` returns bare vectors, and the tokens in a header. API:
//! <https://huggingface.github.io/text-embeddings-inference/>.

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::api::passed::{PassedApi, RerankRequest};
use infergate_core::api::workers_ai::TextEmbeddings;
use infergate_core::billing::Usage;
use infergate_core::model::{Payload, Task};
use serde_json::value::RawValue;

use super::descriptor::{
    Backend, BackendOperation, Probe, UpstreamRequest, accepts, answers_200, wrong_model,
};
use super::json_object::{JsonObject, list};
use crate::upstream::response::{
    ConvertingDecoder, FormatDecoder, Passthrough, RerankAnswer, ResponseDecoder, ResponseError,
    no_events, write_rows,
};

/// The row of Text Embeddings Inference.
pub(super) static TEI: Backend = Backend {
    name: "tei",
    about: "Text Embeddings Inference",
    tasks: &[Task::TextEmbeddings, Task::TextClassification],
    payload: Payload::Protocol,
    paths: &["/v1/embeddings", "/embed", "/rerank"],
    passed: &[PassedApi::Rerank],
    accepts,
    encode,
    response_decoder: decoder,
    adapter_form: None,
    probe: Probe {
        path: "/health",
        is_healthy: answers_200,
        metrics: None,
        report: None,
    },
};

fn encode(call: &Call, task: Task, backend_model: &str) -> Result<UpstreamRequest, Refusal> {
    let operation = BackendOperation::from_call(call, task)?;
    match operation {
        BackendOperation::Embeddings => Ok(operation.pass(call, backend_model)),
        BackendOperation::RunEmbeddings => encode_embed(call),
        BackendOperation::Passed(_) => Ok(UpstreamRequest {
            path: "/rerank".into(),
            body: RerankRequest::read(&call.body)?.to_tei().into(),
            content_type: None,
            streams: false,
        }),
        BackendOperation::Chat
        | BackendOperation::Completions
        | BackendOperation::RunGeneration => Err(wrong_model(
            call,
            "runs on a server that cannot generate text",
        )),
    }
}

fn decoder(call: &Call, task: Task) -> Box<dyn ResponseDecoder> {
    match BackendOperation::from_call(call, task) {
        Ok(BackendOperation::RunEmbeddings) => ConvertingDecoder::decoder(call, &READER),
        Ok(BackendOperation::Passed(_)) => RerankAnswer::decoder(call),
        _ => Passthrough::decoder(call),
    }
}

static READER: FormatDecoder = FormatDecoder {
    json: read_embed,
    event: no_events,
    input_tokens_header: Some("x-compute-tokens"),
};

fn encode_embed(call: &Call) -> Result<UpstreamRequest, Refusal> {
    let embeddings = TextEmbeddings::parse(&call.body)?;
    let texts = list(embeddings.texts.iter().map(|text| text.get()));
    let mut object = JsonObject::with_capacity(call.body.len() + 64);
    object.member("inputs", &texts);
    for (name, value) in &embeddings.parameters {
        object.member(name, value.get());
    }
    Ok(UpstreamRequest {
        path: "/embed".into(),
        body: object.finish().into(),
        content_type: None,
        streams: false,
    })
}

/// `[[0.1, …], …]`
fn read_embed(
    body: &[u8],
    known: Option<Usage>,
    out: &mut BytesMut,
) -> Result<Option<Usage>, ResponseError> {
    let rows: Vec<&RawValue> =
        serde_json::from_slice(body).map_err(|_| ResponseError::Malformed)?;
    write_rows(&rows, out)?;
    Ok(known)
}
