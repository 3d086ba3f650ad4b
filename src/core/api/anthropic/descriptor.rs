//! The row of the dialect in `DIALECTS`.
//!
//! Translates nothing; the files beside it do.

use bytes::{Bytes, BytesMut};

use super::{error, request, response, routes};
use crate::Refusal;
use crate::api::body;
use crate::api::call::{ApiDialect, Call, Operation};
use crate::api::dialect::{ApiError, Dialect, RequestBody, ResponseTranslator};
use crate::api::route::{RequestPath, RouteTarget};

/// The Anthropic dialect.
pub(in crate::api) struct Anthropic;

impl Dialect for Anthropic {
    fn id(&self) -> ApiDialect {
        ApiDialect::Anthropic
    }

    fn name(&self) -> &'static str {
        "anthropic"
    }

    fn route<'a>(&self, request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
        routes::route(request)
    }

    fn parse(&self, request: RequestBody<'_>) -> Result<Call, Refusal> {
        // The input of a tool becomes a string, in which no depth is counted.
        body::check_depth(&request.body)?;
        let chat = request::to_chat(&request.body)?;
        body::parse(ApiDialect::Anthropic, Operation::Chat, None, chat)
    }

    fn translates_requests(&self) -> bool {
        true
    }

    fn translator(&self, call: &Call) -> Option<Box<dyn ResponseTranslator>> {
        Some(Box::new(response::Translator::new(call.prompt_tokens())))
    }

    fn status(&self, refusal: &Refusal) -> u16 {
        error::status(refusal)
    }

    fn error_body(&self, error: &ApiError<'_>) -> Vec<u8> {
        error::body(error)
    }

    fn write_error_event(&self, body: &[u8], out: &mut BytesMut) {
        response::named_event("error", body, out);
    }

    fn sign_of_life(&self, _comment: Bytes) -> Bytes {
        Bytes::from_static(response::PING)
    }

    fn request_id_header(&self) -> Option<&'static str> {
        Some("request-id")
    }
}
