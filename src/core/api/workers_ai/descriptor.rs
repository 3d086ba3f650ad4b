//! The row of the dialect in `DIALECTS`.
//!
//! Results are written by the backends with [`write_text`](super::write_text) and its like.

use super::{error, opaque, routes};
use crate::Refusal;
use crate::api::body;
use crate::api::call::{ApiDialect, Call};
use crate::api::dialect::{ApiError, Dialect, RequestBody};
use crate::api::route::{RequestPath, RouteTarget};

/// The Workers AI dialect.
pub(in crate::api) struct WorkersAi;

impl Dialect for WorkersAi {
    fn id(&self) -> ApiDialect {
        ApiDialect::WorkersAi
    }

    fn name(&self) -> &'static str {
        "workers-ai"
    }

    fn route<'a>(&self, request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
        routes::route(request)
    }

    /// Parses a `run`. A model in the path may take bytes instead of JSON.
    fn parse(&self, request: RequestBody<'_>) -> Result<Call, Refusal> {
        let RequestBody {
            operation,
            path_model,
            task,
            content_type,
            body,
            ..
        } = request;
        // A model that does not exist is refused when it is looked up.
        if let (Some(task), Some(model)) = (task, &path_model)
            && let Some(kind) = opaque::content_type(task, content_type, &body)?
        {
            return Ok(Call::opaque(model.clone(), kind, body));
        }
        body::parse(ApiDialect::WorkersAi, operation, path_model, body)
    }

    fn has_task_results(&self) -> bool {
        true
    }

    fn status(&self, refusal: &Refusal) -> u16 {
        refusal.row().workers_ai_status
    }

    fn error_body(&self, error: &ApiError<'_>) -> Vec<u8> {
        error::body(error)
    }
}
