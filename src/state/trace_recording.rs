//! `tracing` as a snapshot has it: which requests are recorded, and where spans go.
//!
//! Sends nothing; the exporter of `app` does. None where no collector is configured.

use std::time::Duration;

use infergate_core::model::EndpointSpec;
use infergate_core::trace_context::{
    Sampler, TRACEPARENT, TRACESTATE, TraceContext, parse_tracestate,
};

use crate::http1::Fields;
use crate::telemetry::otlp::{OtlpConfig, TracingConfig};
use crate::trace::SpanIdentity;
use crate::upstream::Target;

/// Time for the collector to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Tracing in force.
pub struct TracingRuntime {
    sampler: Sampler,
    /// The configuration it was made of.
    pub config: TracingConfig,
    /// Export to the collector.
    pub otlp: OtlpConfig,
    /// The collector.
    pub target: Target,
}

/// Trace context of a request on arrival.
#[derive(Default)]
pub struct ArrivedContext {
    /// `traceparent`, if it is valid.
    pub parent: Option<TraceContext>,
    /// Identity of the request's span here; none when it is not recorded.
    pub identity: Option<Box<SpanIdentity>>,
}

/// Returns the `traceparent` of a request, if there is one and it is valid.
pub fn trace_parent(headers: &Fields) -> Option<TraceContext> {
    let mut values = headers.get_all(TRACEPARENT);
    match (values.next(), values.next()) {
        (Some(value), None) => TraceContext::parse(value).ok(),
        _ => None,
    }
}

impl TracingRuntime {
    /// Tracing by `config`; none without a collector.
    pub fn new(config: &TracingConfig) -> Option<TracingRuntime> {
        let otlp = config.otlp.clone()?;
        let api = EndpointSpec {
            url: otlp.endpoint.clone(),
            headers: otlp.headers.clone(),
            ..EndpointSpec::default()
        };
        Some(TracingRuntime {
            sampler: Sampler::new(config.sampling_ratio, config.parent_based),
            config: config.clone(),
            target: Target::new(&api, "", CONNECT_TIMEOUT)?,
            otlp,
        })
    }

    /// Reads the context of a request and decides whether it is recorded here. `from_peer`: another node
    /// sent it, which has decided on a request without a context already.
    pub fn arrived(&self, headers: &Fields, from_peer: bool) -> ArrivedContext {
        let parent = trace_parent(headers);
        if from_peer && parent.is_none() {
            return ArrivedContext::default();
        }
        let random = || [fastrand::u64(..), fastrand::u64(..), fastrand::u64(..)];
        let identity = self.sampler.start(parent.as_ref(), random).map(|context| {
            let state = parse_tracestate(headers.get_all(TRACESTATE));
            Box::new(SpanIdentity {
                context,
                parent: parent.map(|parent| parent.span_id),
                // Entries of others mean nothing without their trace.
                state: state.filter(|_| parent.is_some()).map(Into::into),
                link: None,
            })
        });
        ArrivedContext { parent, identity }
    }
}
