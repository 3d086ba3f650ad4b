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

use super::arriving_form::{FormRest, FormRestError, FormStart};
use super::body::{self, BodyMembers};
use super::form::{Form, RepeatedField};
use super::{ApiDialect, Call, Operation};
use crate::Refusal;

pub use super::passed_api::PassedApi;
pub use metrics::{PassedMetrics, response_texts};
pub use rerank::{RerankRequest, write_rerank};

/// Field of the file of a form.
const FILE: &str = "file";
/// Fields that count only before the file of a form that goes on as it comes.
const BEFORE_FILE: &[&str] = &["model", "stream", FILE];

/// Finds the beginning of a form whose model stands before its file; none before the first byte of that has come.
pub fn find_start(api: PassedApi, content_type: &str, received: &[u8]) -> Option<FormStart> {
    let start = FormStart::read(content_type, received, FILE).filter(|_| api.takes_form())?;
    let model = start.form.field("model").ok()??;
    (!model.is_empty()).then_some(start)
}

/// Begins the check of what comes behind `received`.
///
/// # Errors
/// As [`check_rest`].
pub fn begin_rest(start: &FormStart, received: &[u8]) -> Result<FormRest, Refusal> {
    start.rest(received, BEFORE_FILE).map_err(refuse_rest)
}

/// Checks the next piece of a form, before it goes on; the last one with `is_last`.
///
/// # Errors
/// [`Refusal::BadRequest`]: a field stands behind the file that counts only before it, or the form is broken.
pub fn check_rest(rest: &mut FormRest, piece: &[u8], is_last: bool) -> Result<(), Refusal> {
    rest.push(piece).map_err(refuse_rest)?;
    match is_last && !rest.is_whole() {
        true => Err(broken_form("its last boundary is missing")),
        false => Ok(()),
    }
}

fn refuse_rest(error: FormRestError) -> Refusal {
    match error {
        FormRestError::Broken(problem) => broken_form(problem),
        FormRestError::Late(name) => Refusal::BadRequest {
            pointer: format!("/{name}"),
            message: format!(
                "`{name}` must stand once in a form this large, and before the bytes of its file"
            ),
        },
    }
}

fn broken_form(problem: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: String::new(),
        message: format!("the body is no multipart form: {problem}"),
    }
}

/// Reads the body of a request, of which `length` bytes come where not all of them are here.
///
/// # Errors
/// [`Refusal::BadRequest`] with the JSON pointer, or the field, of what is wrong.
pub(super) fn parse(
    api: PassedApi,
    content_type: Option<&str>,
    body: Bytes,
    length: Option<u64>,
) -> Result<Call, Refusal> {
    if api.takes_form() {
        return parse_form(api, content_type.unwrap_or(""), body, length);
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
        PassedApi::Responses if value("background").is_some_and(is_set) => {
            return Err(Refusal::BadRequest {
                pointer: "/background".into(),
                message: "`background` must be left out: a response is billed as it ends here, and its server would \
                          work on after that"
                    .into(),
            });
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

/// Whether a server may take the value for true: some read `1` and `"yes"` as that.
fn is_set(value: &[u8]) -> bool {
    !matches!(value, b"false" | b"null")
}

fn is_filled_list(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    inner.is_some_and(|inner| !inner.starts_with(b"]"))
}

fn parse_form(
    api: PassedApi,
    content_type: &str,
    body: Bytes,
    length: Option<u64>,
) -> Result<Call, Refusal> {
    let (form, file) = match length {
        None => {
            let form = Form::read(content_type, &body).map_err(broken_form)?;
            let file = form.file(FILE);
            (form, file)
        }
        Some(length) => {
            let start = FormStart::read(content_type, &body, FILE);
            let start = start.ok_or_else(|| broken_form("its file does not come"))?;
            let bytes = usize::try_from(start.file_bytes(length)).unwrap_or(usize::MAX);
            let file = start.file..start.file.saturating_add(bytes);
            (start.form, Some(file))
        }
    };
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
    let file = file.ok_or_else(|| missing("/file", "a file"))?;
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
