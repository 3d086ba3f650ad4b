//! Text Embeddings Inference: `/embed` for the Workers AI dialect, `/v1/embeddings` passed through.
//!
//! Text is not generated. `/embed` returns bare vectors, and the tokens in a header. API:
//! <https://huggingface.github.io/text-embeddings-inference/>.

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::api::workers_ai::TextEmbeddings;
use infergate_core::billing::Usage;
use infergate_core::model::Task;
use serde_json::value::RawValue;

use super::backend::{Backend, BackendOperation, Probe, UpstreamRequest, answers_200, wrong_model};
use super::json_object::{JsonObject, list};
use super::response::{FormatDecoder, ResponseError, ResponseTransformer, no_events, write_rows};

/// The kind `tei`.
pub(super) struct Tei;

impl Backend for Tei {
    fn name(&self) -> &'static str {
        "tei"
    }

    fn encode(
        &self,
        call: &Call,
        task: Task,
        backend_model: &str,
    ) -> Result<UpstreamRequest, Refusal> {
        let wanted = BackendOperation::from_call(call, task)?;
        match wanted {
            BackendOperation::Embeddings => Ok(wanted.pass(call, backend_model)),
            BackendOperation::RunEmbeddings => shape_embed(call),
            BackendOperation::Chat
            | BackendOperation::Completions
            | BackendOperation::RunGeneration => Err(wrong_model(
                call,
                "runs on a server that cannot generate text",
            )),
        }
    }

    fn decoder(&self, call: &Call, task: Task) -> ResponseTransformer {
        match BackendOperation::from_call(call, task) {
            Ok(BackendOperation::RunEmbeddings) => ResponseTransformer::run(call, &READER),
            _ => ResponseTransformer::pass(call),
        }
    }

    fn probe(&self) -> Probe {
        Probe {
            path: "/health",
            healthy: answers_200,
        }
    }
}

static READER: FormatDecoder = FormatDecoder {
    json: read_embed,
    event: no_events,
    input_tokens_header: Some("x-compute-tokens"),
};

fn shape_embed(call: &Call) -> Result<UpstreamRequest, Refusal> {
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
