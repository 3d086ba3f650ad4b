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

use super::answer::{Answer, AnswerError, Reader, no_events, write_rows};
use super::backend::{Backend, Probe, Shaped, Wanted, answers_200, wrong_model};
use super::object::{Object, list};

/// The kind `tei`.
pub(super) struct Tei;

impl Backend for Tei {
    fn name(&self) -> &'static str {
        "tei"
    }

    fn shape_request(
        &self,
        call: &Call,
        task: Task,
        backend_model: &str,
    ) -> Result<Shaped, Refusal> {
        let wanted = Wanted::of(call, task)?;
        match wanted {
            Wanted::Embeddings => Ok(wanted.pass(call, backend_model)),
            Wanted::RunEmbeddings => shape_embed(call),
            Wanted::Chat | Wanted::Completions | Wanted::RunGeneration => Err(wrong_model(
                call,
                "runs on a server that cannot generate text",
            )),
        }
    }

    fn read_response(&self, call: &Call, task: Task) -> Answer {
        match Wanted::of(call, task) {
            Ok(Wanted::RunEmbeddings) => Answer::run(call, &READER),
            _ => Answer::pass(call),
        }
    }

    fn probe(&self) -> Probe {
        Probe {
            path: "/health",
            healthy: answers_200,
        }
    }
}

static READER: Reader = Reader {
    json: read_embed,
    event: no_events,
    input_tokens_header: Some("x-compute-tokens"),
};

fn shape_embed(call: &Call) -> Result<Shaped, Refusal> {
    let embeddings = TextEmbeddings::parse(&call.body)?;
    let texts = list(embeddings.texts.iter().map(|text| text.get()));
    let mut object = Object::with_capacity(call.body.len() + 64);
    object.member("inputs", &texts);
    for (name, value) in &embeddings.parameters {
        object.member(name, value.get());
    }
    Ok(Shaped {
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
) -> Result<Option<Usage>, AnswerError> {
    let rows: Vec<&RawValue> = serde_json::from_slice(body).map_err(|_| AnswerError::Malformed)?;
    write_rows(&rows, out)?;
    Ok(known)
}
