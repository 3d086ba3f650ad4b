//! Check of a create's input, so that a client is told at once what its job would fail of.
//!
//! Not the schema: the task of the model that will run the job has it.

use infergate_core::Refusal;
use serde_json::Value;
use serde_json::value::RawValue;

use super::create::PreparedSubmit;
use crate::downstream::session::Session;
use crate::files::file_in_url;
use crate::jobs::CatalogModel;
use crate::pipeline::{RequestContext, RequestError, check_stored_input};
use crate::state::{BodyShare, Shared};

/// Checks the input as the run will.
///
/// # Errors
/// 422 with the place below `/input`; 413 for an input that is too complex.
pub(super) async fn check(
    shared: &Shared,
    session: &mut Session,
    ctx: &mut RequestContext,
    (model, submit): (&CatalogModel, &PreparedSubmit),
    share: &mut BodyShare,
) -> Result<(), RequestError> {
    let Some(place) = model.place(submit.kind) else {
        return Ok(());
    };
    let task = place.model.spec.task;
    let checked = match submit.request.run_body(submit.kind, task) {
        Ok(body) => check_stored_input(shared, session, ctx, (place.model, body), share).await,
        Err(refusal) => Err(refusal.into()),
    };
    match checked {
        Err(RequestError::Refused(refusal)) => in_input(refusal, &submit.request.input),
        checked => checked,
    }
}

/// Moves a refusal of the input to its place in the body of the create. A URL of a file of ours is another value at
/// the run, which is checked then.
fn in_input(refusal: Refusal, input: &RawValue) -> Result<(), RequestError> {
    let (pointer, message) = match refusal {
        Refusal::BadRequest { pointer, message } => (pointer, message),
        Refusal::Rejected {
            pointer, message, ..
        } => (pointer, message),
        other => return Err(other.into()),
    };
    if is_file(input, &pointer) {
        return Ok(());
    }
    let refusal = Refusal::Rejected {
        status: 422,
        pointer: format!("/input{pointer}"),
        message,
    };
    Err(refusal.into())
}

/// Returns whether a value of the input names a file.
fn is_file(input: &RawValue, pointer: &str) -> bool {
    let read: Option<Value> = serde_json::from_str(input.get()).ok();
    let value = read.as_ref().and_then(|value| value.pointer(pointer));
    value
        .and_then(Value::as_str)
        .is_some_and(|text| file_in_url(text).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileId, file_url};

    #[test]
    fn a_refusal_is_moved_below_the_input_and_urls_of_files_are_left_to_the_run() {
        let url = file_url("http://h", FileId::random());
        let text = format!(r#"{{"image":"{url}","n":1}}"#);
        let input = RawValue::from_string(text).unwrap();
        let refused = |pointer: &str| {
            let refusal = Refusal::BadRequest {
                pointer: pointer.to_owned(),
                message: "must be a string".to_owned(),
            };
            match in_input(refusal, &input) {
                Err(RequestError::Refused(Refusal::Rejected {
                    status, pointer, ..
                })) => (status, pointer),
                other => panic!("{other:?}"),
            }
        };
        let image = Refusal::BadRequest {
            pointer: "/image".to_owned(),
            message: "must be a list".to_owned(),
        };
        assert!(in_input(image, &input).is_ok());
        assert_eq!(refused("/n"), (422, "/input/n".to_owned()));
        assert_eq!(refused(""), (422, "/input".to_owned()));
        assert!(matches!(
            in_input(Refusal::BodyTooLarge, &input),
            Err(RequestError::Refused(Refusal::BodyTooLarge))
        ));
    }
}
