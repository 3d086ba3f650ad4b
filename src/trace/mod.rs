//! Trace of a request: times, spans and decisions as plain values, and their rendering for `/explain`.
//!
//! Not control state: no step of the pipeline decides by a trace. A [`TraceBuilder`] is filled without a lock
//! and without formatting; finished traces are kept in a [`TraceStore`]. The durations of the event are those
//! of its [`RequestTimes`].

mod cluster;
mod identity;
mod record;
mod render;
mod spans;
mod steps;
mod store;
mod times;

#[cfg(test)]
mod tests;

pub use cluster::ForwardStepEnd;
pub use identity::SpanIdentity;
pub use record::{
    AttemptTrace, QuotaHold, RequestTrace, RetryDecision, TraceBuilder, TraceSummary, WaitEnd,
};
pub use render::NodeInfo;
pub use store::{TRACES_KEPT, TraceStore};
pub use times::RequestTimes;
