//! The row of the dialect in `DIALECTS`.
//!
//! Translates nothing; the files beside it do.

use super::{error, routes};
use crate::Refusal;
use crate::api::call::{ApiDialect, Call};
use crate::api::dialect::{ApiError, Dialect, RequestBody};
use crate::api::route::{RequestPath, RouteTarget};

/// The Replicate dialect.
pub(in crate::api) struct Replicate;

impl Dialect for Replicate {
    fn id(&self) -> ApiDialect {
        ApiDialect::Replicate
    }

    fn name(&self) -> &'static str {
        "replicate"
    }

    fn route<'a>(&self, request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
        routes::route(request)
    }

    fn parse(&self, _request: RequestBody<'_>) -> Result<Call, Refusal> {
        // No route of this dialect is a call: its requests are jobs.
        Err(Refusal::NoSuchRoute)
    }

    fn error_body(&self, error: &ApiError<'_>) -> Vec<u8> {
        error::body(error)
    }

    fn error_content_type(&self) -> &'static str {
        "application/problem+json"
    }
}
