//! Text Generation Inference: chat in the OpenAI shape, bare prompts by `/generate`.
//!
//! Embeddings are not served. `/generate_stream` ends with a `details` event and no `[DONE]`. API:
//! <https://huggingface.github.io/text-generation-inference/>.

use std::borrow::Cow;

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::workers_ai::{
    GenerationInput, Parameter, TextGeneration, TextResult, write_text,
};
use infergate_core::api::{BarredNames, Call};
use infergate_core::billing::Usage;
use infergate_core::model::{Payload, Task};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::descriptor::{
    AdapterForm, Backend, BackendOperation, Probe, UpstreamRequest, accepts, answers_200,
    wrong_model,
};
use super::json_object::{JsonObject, list};
use super::openai;
use crate::upstream::response::{
    ConvertingDecoder, Delta, FormatDecoder, OPENAI_TEXT, Passthrough, ResponseDecoder,
    ResponseError,
};

/// The row of Text Generation Inference.
pub(super) static TGI: Backend = Backend {
    name: "tgi",
    about: "Text Generation Inference",
    tasks: &[Task::TextGeneration],
    payload: Payload::Protocol,
    paths: &[
        "/v1/chat/completions",
        "/v1/completions",
        "/generate",
        "/generate_stream",
    ],
    passed: &[],
    accepts,
    encode,
    response_decoder: decoder,
    // Chats name it as their model, `/generate` as a parameter.
    adapter_form: Some(AdapterForm {
        member: Some("lora"),
        barred: BarredNames::only(&["adapter_id"]),
        ..AdapterForm::MODEL
    }),
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
        BackendOperation::Chat | BackendOperation::Completions | BackendOperation::Passed(_) => {
            Ok(operation.pass(call, backend_model))
        }
        BackendOperation::Embeddings | BackendOperation::RunEmbeddings => Err(wrong_model(
            call,
            "runs on a server that cannot make embeddings",
        )),
        BackendOperation::RunGeneration => {
            let generation = TextGeneration::parse(&call.body)?;
            Ok(match generation.input {
                GenerationInput::Prompt { text, .. } => {
                    encode_generate(call, text, &generation.parameters)
                }
                GenerationInput::Messages(_) => {
                    openai::encode_generation(call, &generation, backend_model, |name| name)
                }
            })
        }
    }
}

fn decoder(call: &Call, task: Task) -> Box<dyn ResponseDecoder> {
    match BackendOperation::from_call(call, task) {
        Ok(BackendOperation::RunGeneration) => ConvertingDecoder::decoder(call, &READER),
        _ => Passthrough::decoder(call),
    }
}

static READER: FormatDecoder = FormatDecoder {
    json: read_json,
    event: read_event,
    input_tokens_header: Some("x-prompt-tokens"),
};

fn encode_generate(call: &Call, text: &RawValue, parameters: &[Parameter<'_>]) -> UpstreamRequest {
    let mut shaped = JsonObject::with_capacity(call.body.len() + 64);
    for (name, value) in parameters {
        if let Some((name, json)) = parameter(name, value.get()) {
            shaped.member(name, &json);
        }
    }
    // Without them there is no token count.
    shaped.member("details", "true");
    let parameters = shaped.finish();
    let mut object = JsonObject::with_capacity(text.get().len() + parameters.len() + 64);
    object.member("inputs", text.get());
    object.member("parameters", &parameters);
    let path = if call.stream {
        "/generate_stream"
    } else {
        "/generate"
    };
    UpstreamRequest {
        path: path.into(),
        body: object.finish().into(),
        content_type: None,
        streams: call.stream,
    }
}

/// The server's name and form of a parameter. TGI refuses values that mean "off" elsewhere
/// (`temperature` 0, `top_p` 1, `top_k` 0), so those are left out.
fn parameter<'a>(name: &'a str, json: &'a str) -> Option<(&'a str, Cow<'a, str>)> {
    let number = || json.parse::<f64>().unwrap_or(f64::NAN);
    match name {
        "max_tokens" => Some(("max_new_tokens", json.into())),
        "lora" => Some(("adapter_id", json.into())),
        "stop" if json.starts_with('"') => Some((name, list([json]).into())),
        "temperature" | "top_k" if number() <= 0.0 => None,
        "top_p" if number() <= 0.0 || number() >= 1.0 => None,
        "details" => None,
        _ => Some((name, json.into())),
    }
}

/// Response to `/generate`; all members are empty where the response is to chat.
#[derive(Deserialize)]
struct TgiResult<'a> {
    #[serde(borrow)]
    generated_text: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<&'a RawValue>,
}

/// Event of `/generate_stream`; all members are empty where the stream is of chat.
#[derive(Deserialize)]
struct TgiEvent<'a> {
    #[serde(borrow)]
    token: Option<TgiToken<'a>>,
    #[serde(borrow)]
    generated_text: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TgiToken<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(default)]
    special: bool,
}

fn read_json(
    body: &[u8],
    known: Option<Usage>,
    out: &mut BytesMut,
) -> Result<Option<Usage>, ResponseError> {
    let generated: TgiResult<'_> =
        serde_json::from_slice(body).map_err(|_| ResponseError::Malformed)?;
    let Some(text) = generated.generated_text else {
        return (OPENAI_TEXT.json)(body, known, out);
    };
    let usage = Usage::join(known, usage(generated.details));
    let json = usage.map(Usage::to_openai);
    let result = TextResult {
        response: Some(text),
        usage: json.as_deref(),
        ..TextResult::default()
    };
    write_text(&result, out);
    Ok(usage)
}

fn read_event(data: &[u8]) -> Result<Delta<'_>, ResponseError> {
    let event: TgiEvent<'_> = serde_json::from_slice(data).map_err(|_| ResponseError::Malformed)?;
    if event.error.is_some() {
        return Err(ResponseError::BackendFailed);
    }
    let Some(token) = event.token else {
        return (OPENAI_TEXT.event)(data);
    };
    Ok(Delta {
        // Special tokens are control, such as the end of a turn.
        text: token.text.filter(|_| !token.special),
        usage: usage(event.details),
        last: event.generated_text.is_some() || event.details.is_some(),
        ..Delta::default()
    })
}

fn usage(details: Option<&RawValue>) -> Option<Usage> {
    Usage::from_tgi_details(details?.get().as_bytes())
}
