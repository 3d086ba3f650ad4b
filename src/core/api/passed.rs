//! APIs of the OpenAI dialect whose bodies pass between client and server: images, speech, transcriptions,
//! translations of speech, responses and reranks.
//!
//! Not a conversion: the model's name is replaced, and nothing else. Figures that each may be billed by are counted in
//! [`PassedMetrics`]. Specifications: <https://platform.openai.com/docs/api-reference>,
//! <https://api.jina.ai/scalar> for reranks.

mod metrics;
mod rerank;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use infergate_tasks::json::parse_string;

use super::body::{self, BodyMembers};
use super::form::{Form, RepeatedField};
use super::{ApiDialect, Call, Operation};
use crate::Refusal;

pub use super::passed_api::PassedApi;
pub use metrics::{PassedMetrics, response_texts};
pub use rerank::{RerankRequest, write_rerank};

/// Reads the body of a request.
///
/// # Errors
/// [`Refusal::BadRequest`] with the JSON pointer, or the field, of what is wrong.
pub(super) fn parse(
    api: PassedApi,
    content_type: Option<&str>,
    body: Bytes,
) -> Result<Call, Refusal> {
    if api.takes_form() {
        return parse_form(api, content_type.unwrap_or(""), body);
    }
    let members = BodyMembers::read(&body)?;
    let value = |name: &str| members.last(name).map(|range| &body[range]);
    let is_text = |value: &[u8]| value.starts_with(b"\"") && value != b"\"\"";
    match api {
        PassedApi::Images if !value("prompt").is_some_and(is_text) => {
            return Err(missing("/prompt", "a description of the image"));
        }
        PassedApi::Speech if !value("input").is_some_and(is_text) => {
            return Err(missing("/input", "the text to speak"));
        }
        PassedApi::Rerank if !value("query").is_some_and(is_text) => {
            return Err(missing("/query", "a text"));
        }
        PassedApi::Rerank if !value("documents").is_some_and(is_filled_list) => {
            return Err(missing("/documents", "a list of texts, not empty"));
        }
        _ => {}
    }
    let has_event_format = value("stream_format") == Some(br#""sse""#);
    let call = body::parse(
        ApiDialect::OpenAi,
        Operation::Passed(api),
        None,
        body.clone(),
    )?;
    Ok(Call {
        stream: match api {
            // A sound is streamed without events.
            PassedApi::Speech => has_event_format,
            PassedApi::Rerank => false,
            _ => call.stream,
        },
        // These have no `stream_options`: usage comes unasked.
        usage_requested: true,
        ..call
    })
}

fn is_filled_list(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    inner.is_some_and(|inner| !inner.starts_with(b"]"))
}

fn parse_form(api: PassedApi, content_type: &str, body: Bytes) -> Result<Call, Refusal> {
    let form = Form::read(content_type, &body).map_err(|problem| Refusal::BadRequest {
        pointer: String::new(),
        message: format!("the body is no multipart form: {problem}"),
    })?;
    let text = |name: &str| -> Result<Option<&str>, Refusal> {
        let value = form
            .field(name)
            .map_err(|RepeatedField| Refusal::BadRequest {
                pointer: format!("/{name}"),
                message: format!("`{name}` stands twice in the form"),
            })?;
        let value = value.map(|range| std::str::from_utf8(&body[range]));
        value.transpose().map_err(|_| missing(name, "a text"))
    };
    let model = text("model")?.filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| missing("/model", "the name of a model"))?;
    let file = form
        .file("file")
        .ok_or_else(|| missing("/file", "a file"))?;
    let call = Call {
        dialect: ApiDialect::OpenAi,
        operation: Operation::Passed(api),
        stream: text("stream")?.is_some_and(|stream| stream.eq_ignore_ascii_case("true")),
        usage_requested: true,
        model_value: form.field("model").unwrap_or_default(),
        files: vec![file],
        ..Call::opaque(model.to_owned(), content_type.into(), Bytes::new())
    };
    Ok(Call { body, ..call })
}

fn missing(pointer: &str, what: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: pointer.into(),
        message: format!("`{}` must be {what}", pointer.trim_start_matches('/')),
    }
}

/// Returns the value of a JSON string.
fn string(json: &[u8]) -> Option<String> {
    parse_string(std::str::from_utf8(json).ok()?).map(std::borrow::Cow::into_owned)
}
