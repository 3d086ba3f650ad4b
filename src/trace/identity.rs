//! Identity of a request in its distributed trace.
//!
//! Not the decision whether it is recorded, which the core makes.

use std::sync::Arc;

use infergate_core::trace_context::{SpanId, TraceContext, TraceId};

/// Identity of a recorded request in its distributed trace.
#[derive(Clone, Debug)]
pub struct SpanIdentity {
    /// The trace, and the span of the request at this node.
    pub context: TraceContext,
    /// The span that sent the request.
    pub parent: Option<SpanId>,
    /// Value of `tracestate`, passed on as it came.
    pub state: Option<Arc<str>>,
    /// Span in another trace that this one comes from: that of a job's submit, where the job runs again.
    pub link: Option<(TraceId, SpanId)>,
}

impl SpanIdentity {
    /// Leaves the sender's trace for one of its own, with a link to the sender's span.
    pub fn leave_parent(&mut self, own: TraceId) {
        let Some(parent) = self.parent.take() else {
            return;
        };
        self.link = Some((self.context.trace_id, parent));
        self.context = TraceContext::root(own, self.context.span_id, true);
        self.state = None;
    }
}
