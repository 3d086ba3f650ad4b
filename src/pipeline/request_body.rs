//! Step 4: the body of a request as a call.
//!
//! Not received here. The core parses it; an image or a sound is not looked into. A large body that is
//! translated for the model server is parsed off the worker.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::dialect::RequestBody;
use infergate_core::api::open_inference::JSON_BYTES_HEADER;
use infergate_core::api::{Call, Operation};

use super::context::RequestContext;
use super::downstream::RequestHead;
use crate::state::LARGE_BYTES;
use crate::telemetry::off_the_worker;

/// Returns whether parsing would hold up the worker: the body is large, and its dialect writes another one.
pub fn is_costly(ctx: &RequestContext, body: &Bytes) -> bool {
    body.len() >= LARGE_BYTES && ctx.dialect().rules().translates_requests()
}

/// Parses the body in the dialect of the request. A model in the path may take bytes instead of JSON.
///
/// # Errors
/// [`Refusal::BadRequest`].
pub fn read_call(
    head: RequestHead<'_>,
    ctx: &RequestContext,
    operation: Operation,
    path_model: Option<String>,
    body: Bytes,
) -> Result<Call, Refusal> {
    if operation == Operation::WebSocket {
        return Ok(Call::websocket(
            ctx.dialect(),
            path_model.unwrap_or_default(),
        ));
    }
    let named = path_model.as_ref();
    let named = named.and_then(|model| ctx.snapshot.catalog.task_of(model));
    let content_type = head.headers.text_of("content-type");
    let leaves = is_costly(ctx, &body);
    let request = RequestBody {
        operation,
        task: named,
        path_model,
        content_type,
        path: head.target,
        // Looked up for tensors alone: other requests have no such header.
        json_bytes: match operation {
            Operation::Infer => head.headers.text_of(JSON_BYTES_HEADER),
            _ => None,
        },
        length: length_of(ctx, &body),
        body,
    };
    off_the_worker(leaves, || ctx.dialect().rules().parse(request))
}

/// Length of a body that is still coming; none of a whole one.
fn length_of(ctx: &RequestContext, body: &Bytes) -> Option<u64> {
    let arriving = ctx.arriving.as_ref()?;
    Some(body.len() as u64 + arriving.rest().length())
}
