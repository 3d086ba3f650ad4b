//! The row of the dialect in `DIALECTS`.
//!
//! Answers of servers are edited by `answer`, for their decoder.

use super::{error, generate, request, routes};
use crate::Refusal;
use crate::api::call::{ApiDialect, Call, Operation};
use crate::api::dialect::{ApiError, Dialect, RequestBody};
use crate::api::route::{RequestPath, RouteTarget};

/// The Open Inference dialect.
pub(in crate::api) struct OpenInference;

impl Dialect for OpenInference {
    fn id(&self) -> ApiDialect {
        ApiDialect::OpenInference
    }

    fn name(&self) -> &'static str {
        "open-inference"
    }

    fn route<'a>(&self, request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
        routes::route(request)
    }

    fn parse(&self, request: RequestBody<'_>) -> Result<Call, Refusal> {
        match request.operation {
            Operation::Generate | Operation::GenerateStream => generate::parse(request),
            _ => request::parse(request),
        }
    }

    /// Tensors in JSON are long, and each input is looked at.
    fn translates_requests(&self) -> bool {
        true
    }

    fn error_body(&self, error: &ApiError<'_>) -> Vec<u8> {
        error::body(error)
    }
}
