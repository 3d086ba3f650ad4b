//! The row of the dialect in `DIALECTS`.
//!
//! Bodies are parsed by `body`, which is shared with the dialects that are translated to this one.

use super::{error, routes};
use crate::Refusal;
use crate::api::call::{ApiDialect, Call, Operation};
use crate::api::dialect::{ApiError, Dialect, RequestBody};
use crate::api::route::{RequestPath, RouteTarget};
use crate::api::{body, passed};

/// The OpenAI dialect.
pub(in crate::api) struct OpenAi;

impl Dialect for OpenAi {
    fn id(&self) -> ApiDialect {
        ApiDialect::OpenAi
    }

    fn name(&self) -> &'static str {
        "openai"
    }

    fn route<'a>(&self, request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
        routes::route(request)
    }

    fn parse(&self, request: RequestBody<'_>) -> Result<Call, Refusal> {
        let RequestBody {
            operation,
            content_type,
            body,
            length,
            ..
        } = request;
        match operation {
            Operation::Passed(api) => passed::parse(api, content_type, body, length),
            _ => body::parse(ApiDialect::OpenAi, operation, None, body),
        }
    }

    fn error_body(&self, error: &ApiError<'_>) -> Vec<u8> {
        error::body(error)
    }

    fn server_error_body(&self, error: &ApiError<'_>, body: &[u8]) -> Vec<u8> {
        match error.server_error.is_some_and(error::is_complete) {
            true => body.to_vec(),
            false => error::server_body(error),
        }
    }
}
