//! Body of a run: the stored input, as the pipeline reads a request.
//!
//! Not the checks of the input: the pipeline makes them.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::Operation;
use infergate_core::model::Task;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::request::StoredRequest;

/// Returns what a trainer is told besides the input: the destination, and what is trained.
pub fn training_context(request: &StoredRequest) -> Value {
    json!({
        "destination": request.destination,
        "model": request.shown_model,
        "version": request.version,
    })
}

/// Returns the body of the run: the input, with its context where it has one, and as a stream where texts are
/// generated.
///
/// # Errors
/// An input that is no object and has to be one.
pub fn run_body(
    input: &RawValue,
    operation: Operation,
    task: Task,
    context: Option<Value>,
) -> Result<Bytes, Refusal> {
    debug_assert_eq!(operation, Operation::Run, "jobs are runs");
    let is_text = matches!(task, Task::TextGeneration | Task::ImageTextToText);
    let text = input.get();
    if !is_text && context.is_none() {
        return Ok(Bytes::copy_from_slice(text.as_bytes()));
    }
    let read: Map<String, Value> = serde_json::from_str(text).map_err(|_| Refusal::BadRequest {
        pointer: String::new(),
        message: "the input must be an object".to_owned(),
    })?;
    let mut body = read;
    if is_text {
        body.insert("stream".to_owned(), true.into());
    }
    if let Some(context) = context {
        body.insert("context".to_owned(), context);
    }
    Ok(serde_json::to_vec(&body).unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_streamed_and_other_inputs_stay_as_they_are() {
        let input = RawValue::from_string(r#"{"prompt": "x"}"#.to_owned()).unwrap();
        let body = |task| run_body(&input, Operation::Run, task, None).unwrap();
        assert_eq!(
            &body(Task::TextGeneration)[..],
            br#"{"prompt":"x","stream":true}"#
        );
        assert_eq!(&body(Task::TextToImage)[..], br#"{"prompt": "x"}"#);
        let list = RawValue::from_string("[1]".to_owned()).unwrap();
        assert!(run_body(&list, Operation::Run, Task::TextGeneration, None).is_err());
        let context = Some(json!({ "destination": "a/b" }));
        let trained = run_body(&input, Operation::Run, Task::DumbPipe, context).unwrap();
        assert_eq!(
            &trained[..],
            br#"{"prompt":"x","context":{"destination":"a/b"}}"#
        );
    }
}
