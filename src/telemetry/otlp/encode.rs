//! Bodies of OTLP requests: spans or metrics under the resource that they come from.
//!
//! Sends nothing. O(bytes of the message).

use bytes::Bytes;
use prost::Message;

use super::proto::{
    KeyValue, Metric, MetricsRequest, Resource, ResourceMetrics, ResourceSpans, Scope,
    ScopeMetrics, ScopeSpans, Span, TracesRequest,
};

/// Name of the instrumentation.
const SCOPE: &str = "infergate";

/// Resource of all spans and metrics of a process.
#[derive(Clone, Copy, Debug)]
pub struct ExportSource<'a> {
    /// `service.name`.
    pub service_name: &'a str,
    /// `service.instance.id`: the node.
    pub node: &'a str,
    /// The node's site.
    pub site: &'a str,
}

impl ExportSource<'_> {
    fn resource(&self) -> Resource {
        let attributes = [
            ("service.name", self.service_name),
            ("service.instance.id", self.node),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("infergate.site", self.site),
            ("telemetry.sdk.name", SCOPE),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
        ];
        let attributes = attributes.map(|(key, value)| KeyValue::text(key, value));
        Resource {
            attributes: attributes.into(),
        }
    }
}

fn scope() -> Scope {
    Scope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Encodes the body of `POST /v1/traces`.
pub fn encode_traces(source: ExportSource<'_>, spans: Vec<Span>) -> Bytes {
    let request = TracesRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(source.resource()),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope()),
                spans,
            }],
        }],
    };
    request.encode_to_vec().into()
}

/// Encodes the body of `POST /v1/metrics`.
pub fn encode_metrics(source: ExportSource<'_>, metrics: Vec<Metric>) -> Bytes {
    let request = MetricsRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(source.resource()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
            }],
        }],
    };
    request.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;

    use super::super::proto::{SpanEvent, SpanKind, SpanLink, Status, Value};
    use super::super::{GenAiMetrics, GenAiSample};
    use super::*;

    const SOURCE: ExportSource<'_> = ExportSource {
        service_name: "edge",
        node: "a1",
        site: "fra",
    };

    fn span() -> Span {
        Span {
            trace_id: vec![1; 16],
            span_id: vec![2; 8],
            trace_state: "a=1".to_owned(),
            parent_span_id: vec![3; 8],
            name: "chat m".to_owned(),
            kind: SpanKind::Client as i32,
            start_time_unix_nano: 5,
            end_time_unix_nano: 6,
            attributes: vec![
                KeyValue::text("text", "x"),
                KeyValue::number("number", u64::MAX),
                KeyValue::new("bool", Value::Bool(true)),
                KeyValue::new("double", Value::Double(0.5)),
            ],
            events: vec![SpanEvent {
                time_unix_nano: 5,
                name: "first".to_owned(),
                attributes: Vec::new(),
            }],
            dropped_events_count: 4,
            links: vec![SpanLink {
                trace_id: vec![4; 16],
                span_id: vec![5; 8],
                flags: 0x300,
            }],
            status: Some(Status {
                message: "why".to_owned(),
                code: 2,
            }),
            flags: 0x301,
        }
    }

    /// The project's own types know every field, so that writing again gives as many bytes.
    #[test]
    fn a_span_is_read_by_the_types_of_the_specification() {
        let body = encode_traces(SOURCE, vec![span()]);
        let request = ExportTraceServiceRequest::decode(&*body).unwrap();
        assert_eq!(request.encode_to_vec(), body);
        let read = &request.resource_spans[0].scope_spans[0].spans[0];
        let mut resource = request.resource_spans[0].resource.iter();
        assert_eq!(resource.next().unwrap().attributes.len(), 7);
        assert_eq!(read.name, "chat m");
        assert_eq!(read.parent_span_id, [3; 8]);
        assert_eq!((read.start_time_unix_nano, read.end_time_unix_nano), (5, 6));
        assert_eq!(read.kind, SpanKind::Client as i32);
        assert_eq!(read.flags, 0x301);
        let link = &read.links[0];
        assert_eq!(
            (&link.trace_id[..], &link.span_id[..]),
            (&[4; 16][..], &[5; 8][..])
        );
        assert_eq!(read.status.as_ref().unwrap().code, 2);
        let keys: Vec<&str> = read.attributes.iter().map(|of| &*of.key).collect();
        assert_eq!(keys, ["text", "number", "bool", "double"]);
    }

    #[test]
    fn histograms_are_read_by_the_types_of_the_specification() {
        let metrics = GenAiMetrics::default();
        metrics.record(&GenAiSample {
            operation: "chat",
            requested_model: "m".into(),
            model: "m".into(),
            error: Some("timeout"),
            duration_us: 20_000,
            first_token_us: None,
            input_tokens: Some(3),
            output_tokens: None,
        });
        let body = encode_metrics(SOURCE, metrics.render(1, 2));
        let request = ExportMetricsServiceRequest::decode(&*body).unwrap();
        assert_eq!(request.encode_to_vec(), body);
        let read = &request.resource_metrics[0].scope_metrics[0].metrics[0];
        assert_eq!(read.name, "gen_ai.server.request.duration");
        let Some(Data::Histogram(histogram)) = &read.data else {
            panic!("a histogram")
        };
        assert_eq!(histogram.data_points[0].sum, Some(0.02));
        assert_eq!(histogram.data_points[0].bucket_counts.len(), 15);
    }
}
