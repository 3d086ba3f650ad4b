//! Body of a run: the stored input, as the pipeline reads a request.
//!
//! Not the checks of the input: the pipeline makes them.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::job::JobKind;
use infergate_core::model::Task;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::request::StoredRequest;

impl StoredRequest {
    /// Returns the body of a run on a model of this task. A trainer is told besides the input the destination, and
    /// what is trained.
    ///
    /// # Errors
    /// As [`run_body`].
    pub fn run_body(&self, kind: JobKind, task: Task) -> Result<Bytes, Refusal> {
        let context = (kind == JobKind::Training).then(|| {
            json!({
                "destination": self.destination,
                "model": self.shown_model,
                "version": self.version,
            })
        });
        run_body(&self.input, task, context)
    }
}

/// Returns the body of the run: the input, with its context where it has one, and as a stream where texts are
/// generated.
///
/// # Errors
/// An input that is no object and has to be one.
fn run_body(input: &RawValue, task: Task, context: Option<Value>) -> Result<Bytes, Refusal> {
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
        let body = |task| run_body(&input, task, None).unwrap();
        assert_eq!(
            &body(Task::TextGeneration)[..],
            br#"{"prompt":"x","stream":true}"#
        );
        assert_eq!(&body(Task::TextToImage)[..], br#"{"prompt": "x"}"#);
        let list = RawValue::from_string("[1]".to_owned()).unwrap();
        assert!(run_body(&list, Task::TextGeneration, None).is_err());
        let context = Some(json!({ "destination": "a/b" }));
        let trained = run_body(&input, Task::DumbPipe, context).unwrap();
        assert_eq!(
            &trained[..],
            br#"{"prompt":"x","context":{"destination":"a/b"}}"#
        );
    }
}
