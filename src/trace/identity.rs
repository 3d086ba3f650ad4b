//! Identity of a request in its distributed trace.
//!
//! Not the decision whether it is recorded, which the core makes.

use std::sync::Arc;

use infergate_core::trace_context::{SpanId, TraceContext};

/// Identity of a recorded request in its distributed trace.
#[derive(Clone, Debug)]
pub struct SpanIdentity {
    /// The trace, and the span of the request at this node.
    pub context: TraceContext,
    /// The span that sent the request.
    pub parent: Option<SpanId>,
    /// Value of `tracestate`, passed on as it came.
    pub state: Option<Arc<str>>,
}
