//! Requests of the generate extension, and answers to them without what reports costs.
//!
//! No tensor is here: members are the inputs and outputs of the model by their names, and pass as they are. Specification:
//! <https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md>.

use std::borrow::Cow;

use infergate_tasks::json::scan_members;

use super::answer::MalformedAnswer;
use super::cost::metric_of;
use super::routes;
use super::task_results::{GeneratedPiece, generated_piece};
use crate::Refusal;
use crate::api::body::BodyMembers;
use crate::api::call::{ApiDialect, Call, Operation};
use crate::api::dialect::RequestBody;
use crate::api::json::bad;
use crate::api::json_text::push_text;
use crate::api::tensor_request::TensorRequest;

/// Member with the text to go on with.
const INPUT: &str = "text_input";
/// Member with parameters of the request.
const PARAMETERS: &str = "parameters";

/// Parses the body of a request to generate.
///
/// # Errors
/// [`Refusal::BadRequest`]: the body is no JSON object.
pub(super) fn parse(request: RequestBody<'_>) -> Result<Call, Refusal> {
    let model = request.path_model.ok_or(Refusal::NoSuchRoute)?;
    if request.body.starts_with(&[0x1f, 0x8b]) {
        return Err(bad("", "the body is compressed: send it as it is"));
    }
    BodyMembers::read(&request.body)?.unique([INPUT, PARAMETERS])?;
    let tensors = TensorRequest {
        version: routes::version_in(request.path).map(str::to_owned),
        ..TensorRequest::default()
    };
    Ok(Call {
        dialect: ApiDialect::OpenInference,
        operation: request.operation,
        stream: request.operation == Operation::GenerateStream,
        content_type: None,
        tensors: Some(Box::new(tensors)),
        ..Call::opaque(model, "".into(), request.body)
    })
}

/// Answer to `generate`, or the data of an event, for its client.
#[derive(Clone, Debug, PartialEq)]
pub struct EditedPiece<'a> {
    /// JSON for the client.
    pub json: Vec<u8>,
    /// Text and costs in it.
    pub piece: GeneratedPiece<'a>,
}

/// Edits an answer to `generate`, or the data of an event of `generate_stream`: `model` is the name that the client used.
///
/// # Errors
/// The answer is no JSON object, or an error's.
pub fn edit_generated<'a>(
    answer: &'a [u8],
    model: &str,
) -> Result<EditedPiece<'a>, MalformedAnswer> {
    let piece = generated_piece(answer)?;
    let text = std::str::from_utf8(answer).map_err(|_| MalformedAnswer)?;
    let mut json = Vec::with_capacity(answer.len() + model.len());
    json.push(b'{');
    scan_members(text, |name: Cow<'_, str>, value| {
        if metric_of(&name).is_some() {
            return Ok(());
        }
        if json.len() > 1 {
            json.push(b',');
        }
        push_text(&mut json, &name);
        json.push(b':');
        match &*name {
            "model_name" => push_text(&mut json, model),
            _ => json.extend_from_slice(value.get().as_bytes()),
        }
        Ok::<(), &'static str>(())
    })
    .map_err(|_| MalformedAnswer)?;
    json.push(b'}');
    Ok(EditedPiece { json, piece })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::dialect::Dialect;

    fn read(path: &str, operation: Operation, body: &str) -> Result<Call, Refusal> {
        super::super::OpenInference.parse(RequestBody {
            operation,
            path_model: Some("m".into()),
            task: None,
            content_type: None,
            path,
            json_bytes: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            length: None,
        })
    }

    #[test]
    fn a_request_passes_as_it_is_and_its_path_says_whether_it_streams() {
        let body = r#"{"text_input":"hi","stream":true,"parameters":{"a":1},"x":[1]}"#;
        let path = "/v2/models/m/versions/2/generate";
        let whole = read(path, Operation::Generate, body).unwrap();
        assert_eq!((&whole.body[..], whole.stream), (body.as_bytes(), false));
        assert_eq!(whole.tensors.unwrap().version.as_deref(), Some("2"));
        let path = "/v2/models/m/generate_stream";
        let stream = read(path, Operation::GenerateStream, body).unwrap();
        assert!(stream.stream && stream.tensors.as_ref().unwrap().version.is_none());
        for bad in [
            "",
            "[]",
            r#"{"text_input":"a","text_input":"b"}"#,
            "\u{1f}\u{8b}",
        ] {
            assert!(read(path, Operation::Generate, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn costs_are_taken_out_of_an_answer_and_the_clients_name_is_put_in() {
        let answer = json!({ "COST_METRIC_steps": [2, 3], "model_name": "served", "text_output": "hi",
                             "extra": { "model_name": "kept" } });
        let answer = answer.to_string();
        let edited = edit_generated(answer.as_bytes(), "m").unwrap();
        let json: Value = serde_json::from_slice(&edited.json).unwrap();
        let expected = json!({ "model_name": "m", "text_output": "hi",
                               "extra": { "model_name": "kept" } });
        assert_eq!(json, expected);
        assert_eq!(edited.piece.costs.get("steps"), Some(5.0));
        assert_eq!(edited.piece.text, Some("\"hi\""));
        for bad in ["[]", "{", r#"{"error":"it broke"}"#] {
            assert!(edit_generated(bad.as_bytes(), "m").is_err(), "{bad}");
        }
    }
}
