//! Parts of the context for distributed traces: the identity and the name that a request is recorded under.
//!
//! Each costs a branch when no collector is configured.

use infergate_core::api::{ApiDialect, Operation};
use infergate_core::model::Task;
use infergate_core::trace_context::TraceId;

use super::RequestContext;
use crate::http1::Fields;
use crate::pipeline::origin::Origin;
use crate::state::header_filter::PassedHeaders;

impl RequestContext {
    /// Returns the headers that pass to model servers, and reads the trace context of the request.
    pub fn passed_headers(&mut self, headers: &Fields) -> PassedHeaders {
        let listed = &self.snapshot.headers_pass;
        // Read again after a reload: the request stays recorded as it began.
        if let Some(identity) = self.trace.identity() {
            return match identity {
                Some(identity) => PassedHeaders::traced(headers, listed, identity.state.as_deref()),
                None => PassedHeaders::of(headers, listed),
            };
        }
        let Some(tracing) = &self.snapshot.tracing else {
            return PassedHeaders::of(headers, listed);
        };
        let arrived = tracing.arrived(headers, matches!(self.origin(), Origin::Peer));
        let passed = match &arrived.identity {
            Some(identity) => PassedHeaders::traced(headers, listed, identity.state.as_deref()),
            None => PassedHeaders::of(headers, listed),
        };
        let recorded = arrived.identity.as_ref().map(|identity| identity.context);
        let context = recorded.or(arrived.parent);
        self.facts.trace_id = context.map(|context| context.trace_id);
        self.span_identity = arrived.identity;
        passed
    }

    /// Gives a recorded request a trace of its own, linked to the span that it was sent by: later runs of a job.
    pub fn leave_trace_of_sender(&mut self) {
        let Some(identity) = &mut self.span_identity else {
            return;
        };
        if identity.parent.is_some() {
            identity.leave_parent(TraceId::from_random([fastrand::u64(..), fastrand::u64(..)]));
            self.facts.trace_id = Some(identity.context.trace_id);
        }
    }

    /// Sets the operation, which names the request in traces.
    pub fn set_operation(&mut self, operation: Operation) {
        self.is_completion = matches!(operation, Operation::Completions);
        self.is_passed = matches!(operation, Operation::Passed(_));
    }

    /// Returns whether a stream to the client is made of chunks of a chat completion.
    pub fn takes_chat_chunks(&self) -> bool {
        let is_other = self.is_completion || self.is_passed;
        self.dialect == ApiDialect::OpenAi && !is_other && self.operation_name() == "chat"
    }

    /// Present moment on the wall, seconds since 1970.
    pub fn wall_secs(&self) -> i64 {
        self.shared.clock.wall().unix_timestamp()
    }

    /// `gen_ai.operation.name`: a name of the conventions, or the task's.
    pub(super) fn operation_name(&self) -> &'static str {
        match self.model.as_ref().map(|model| model.spec.task) {
            _ if self.is_completion => "text_completion",
            Some(Task::TextGeneration | Task::ImageTextToText) | None => "chat",
            Some(Task::TextEmbeddings | Task::MultimodalEmbeddings) => "embeddings",
            Some(task) => task.slug(),
        }
    }
}
