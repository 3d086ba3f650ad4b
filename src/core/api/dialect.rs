//! The interface of an API dialect.
//!
//! Not a dialect itself: each has a folder with its `routes`, `request`, `response` and `error`, and a
//! row in [`DIALECTS`](super::dialects::DIALECTS).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::call::{ApiDialect, Call, Operation};
use super::route::{RequestPath, RouteTarget};
use super::sse;
use crate::Refusal;
use crate::model::Task;

/// Body of an inference request with the facts needed to parse it.
#[derive(Clone, Debug)]
pub struct RequestBody<'a> {
    /// Operation of the route.
    pub operation: Operation,
    /// Model in the path.
    pub path_model: Option<String>,
    /// Task of that model; none where there is no such model.
    pub task: Option<Task>,
    /// `Content-Type` of the request.
    pub content_type: Option<&'a str>,
    /// Path of the request, with its query.
    pub path: &'a str,
    /// `Inference-Header-Content-Length`: bytes of JSON before tensors in binary.
    pub json_bytes: Option<&'a str>,
    /// The body, or what has come of it.
    pub body: Bytes,
    /// Length of a body whose file is still coming, bytes; none of a whole one.
    pub length: Option<u64>,
}

/// An error to be written in a dialect.
#[derive(Clone, Copy, Debug)]
pub struct ApiError<'a> {
    /// HTTP status.
    pub status: u16,
    /// OpenAI `type`.
    pub kind: &'a str,
    /// OpenAI `code`.
    pub reason: &'a str,
    /// Workers AI number.
    pub code: u32,
    /// Text for the caller.
    pub message: &'a str,
    /// JSON Pointer into the body; empty for the whole body.
    pub pointer: Option<&'a str>,
    /// Id of the request; none within a stream.
    pub request_id: Option<&'a str>,
    /// Error of the model server in its own shape, where it is the caller's to know.
    pub server_error: Option<&'a Value>,
}

impl ApiError<'_> {
    /// Returns the message after the pointer, for dialects without a member for it.
    pub fn message_with_place(&self) -> Cow<'_, str> {
        match self.pointer {
            Some(pointer) if !pointer.is_empty() => {
                Cow::Owned(format!("{pointer}: {}", self.message))
            }
            _ => Cow::Borrowed(self.message),
        }
    }
}

/// A response that has no form in the client's dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTranslatable;

/// Translation of one response from the OpenAI shape into a dialect.
pub trait ResponseTranslator: Send {
    /// Appends a whole response.
    ///
    /// # Errors
    /// The body is no chat completion.
    fn whole(&mut self, body: &[u8], out: &mut BytesMut) -> Result<(), NotTranslatable>;

    /// Appends the translation of whole events, the end mark among them. `output_estimate` is the
    /// gateway's count of generated tokens so far, for a server that reports none.
    ///
    /// # Errors
    /// An event is no chunk of a chat completion.
    fn events(
        &mut self,
        events: &[u8],
        output_estimate: u64,
        out: &mut BytesMut,
    ) -> Result<(), NotTranslatable>;
}

/// Paths, requests, responses and errors of one API.
pub trait Dialect: Sync {
    /// Its variant.
    fn id(&self) -> ApiDialect;

    /// Name in events, metric labels and attributes of plugins.
    fn name(&self) -> &'static str;

    /// Returns the target of a path of this dialect; none for a path of another one.
    fn route<'a>(&self, request: &RequestPath<'a>) -> Option<RouteTarget<'a>>;

    /// Parses the body of an inference request. A dialect that is served by OpenAI-style servers
    /// translates it here.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`] with the JSON Pointer of the fault.
    fn parse(&self, request: RequestBody<'_>) -> Result<Call, Refusal>;

    /// Returns whether [`parse`](Dialect::parse) writes another body, which takes several times as long as
    /// reading one.
    fn translates_requests(&self) -> bool {
        false
    }

    /// Returns the translator of the response to `call`; none where the backends write it in this
    /// dialect.
    fn translator(&self, _call: &Call) -> Option<Box<dyn ResponseTranslator>> {
        None
    }

    /// Returns whether responses carry results of tasks (Workers AI) instead of the OpenAI shape.
    fn has_task_results(&self) -> bool {
        false
    }

    /// Returns the HTTP status of a refusal.
    fn status(&self, refusal: &Refusal) -> u16 {
        refusal.row().status
    }

    /// Returns the content type of errors.
    fn error_content_type(&self) -> &'static str {
        "application/json"
    }

    /// Returns the body of an error.
    fn error_body(&self, error: &ApiError<'_>) -> Vec<u8>;

    /// Returns the body of a model server's own error; `body` is as the server sent it.
    fn server_error_body(&self, error: &ApiError<'_>, _body: &[u8]) -> Vec<u8> {
        self.error_body(error)
    }

    /// Appends the event that ends a stream which cannot go on; `body` is that of the error.
    fn write_error_event(&self, body: &[u8], out: &mut BytesMut) {
        sse::event(body, out);
    }

    /// Returns the sign of life on a silent stream, in place of this comment.
    fn sign_of_life(&self, comment: Bytes) -> Bytes {
        comment
    }

    /// Returns the header that carries the id of the request besides `x-request-id`.
    fn request_id_header(&self) -> Option<&'static str> {
        None
    }
}
