//! A strict OTLP collector: takes what the specification allows, and panics at anything else.
//!
//! Reads with the OpenTelemetry project's own types. Fields that those do not know would be lost when the
//! message is written again, so the length is compared. HTTP/1 with protobuf only.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, metric::Data};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A span with the node that sent it.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    /// `service.instance.id`.
    pub node: String,
    /// The span.
    pub span: Span,
}

/// A series of a histogram.
#[derive(Clone, Debug)]
pub struct CollectedSeries {
    /// `service.instance.id`.
    pub node: String,
    /// Name of the metric.
    pub metric: String,
    /// The latest point.
    pub point: HistogramDataPoint,
}

#[derive(Default)]
struct Received {
    spans: Vec<CollectedSpan>,
    series: Vec<CollectedSeries>,
}

/// A running collector, ended with the value.
pub struct Collector {
    /// Address at which it listens.
    pub address: SocketAddr,
    received: Arc<Mutex<Received>>,
    _tasks: JoinSet<()>,
}

impl Collector {
    /// Starts a collector on a free port.
    pub async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Received>>::default();
        let mut tasks = JoinSet::new();
        let to = Arc::clone(&received);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Arc::clone(&to)));
            }
        });
        Collector {
            address,
            received,
            _tasks: tasks,
        }
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.received.lock().spans.clone()
    }

    /// All points of histograms so far.
    pub fn series(&self) -> Vec<CollectedSeries> {
        self.received.lock().series.clone()
    }
}

async fn serve(mut stream: TcpStream, received: Arc<Mutex<Received>>) {
    let mut bytes = Vec::new();
    loop {
        let Some((head, body)) = request(&mut stream, &mut bytes).await else {
            return;
        };
        take(&head, &body, &mut received.lock());
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    loop {
        if let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is ASCII");
            let length: usize = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse()
                        .ok()
                })
                .expect("a length");
            let whole: usize = end + 4 + length;
            if bytes.len() >= whole {
                let body = bytes[end + 4..whole].to_vec();
                bytes.drain(..whole);
                return Some((head, body));
            }
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn take(head: &str, body: &[u8], received: &mut Received) {
    let lower = head.to_ascii_lowercase();
    assert!(
        lower.contains("content-type: application/x-protobuf"),
        "{head}"
    );
    assert!(lower.contains("user-agent: "), "{head}");
    match head.split(' ').nth(1) {
        Some("/v1/traces") => take_traces(body, received),
        Some("/v1/metrics") => take_metrics(body, received),
        path => panic!("no path of OTLP: {path:?}"),
    }
}

fn take_traces(body: &[u8], received: &mut Received) {
    let request = ExportTraceServiceRequest::decode(body).expect("a request of the specification");
    assert_eq!(
        request.encoded_len(),
        body.len(),
        "fields that are not specified"
    );
    assert!(!request.resource_spans.is_empty());
    for of in request.resource_spans {
        let node = node_of(&of.resource.expect("a resource").attributes);
        for of in of.scope_spans {
            let scope = of.scope.expect("a scope");
            assert!(!scope.name.is_empty() && !scope.version.is_empty());
            for span in of.spans {
                check_span(&span);
                let node = node.clone();
                received.spans.push(CollectedSpan { node, span });
            }
        }
    }
}

fn take_metrics(body: &[u8], received: &mut Received) {
    let request =
        ExportMetricsServiceRequest::decode(body).expect("a request of the specification");
    assert_eq!(
        request.encoded_len(),
        body.len(),
        "fields that are not specified"
    );
    for of in request.resource_metrics {
        let node = node_of(&of.resource.expect("a resource").attributes);
        for metric in of.scope_metrics.into_iter().flat_map(|of| of.metrics) {
            let Some(Data::Histogram(histogram)) = metric.data else {
                panic!("{} is no histogram", metric.name);
            };
            assert_eq!(histogram.aggregation_temporality, 2, "cumulative");
            assert!(!metric.unit.is_empty());
            for point in histogram.data_points {
                assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
                assert!(point.explicit_bounds.is_sorted());
                assert!(
                    0 < point.start_time_unix_nano
                        && point.start_time_unix_nano < point.time_unix_nano
                );
                check_attributes(&point.attributes);
                received.series.push(CollectedSeries {
                    node: node.clone(),
                    metric: metric.name.clone(),
                    point,
                });
            }
        }
    }
}

fn node_of(attributes: &[KeyValue]) -> String {
    check_attributes(attributes);
    assert!(
        attribute_text(attributes, "service.name").is_some(),
        "{attributes:?}"
    );
    attribute_text(attributes, "service.instance.id").expect("an instance")
}

fn check_attributes(attributes: &[KeyValue]) {
    let mut keys = HashSet::new();
    for KeyValue { key, value, .. } in attributes {
        let value = value.as_ref().and_then(|value| value.value.as_ref());
        assert!(value.is_some(), "{key} has no value");
        assert!(!key.is_empty() && keys.insert(key), "{key} twice");
    }
}

/// Rules that hold for any span alone.
fn check_span(span: &Span) {
    let is_id = |id: &[u8], length: usize| id.len() == length && id.iter().any(|byte| *byte != 0);
    assert!(
        is_id(&span.trace_id, 16) && is_id(&span.span_id, 8),
        "{span:?}"
    );
    assert!(
        span.parent_span_id.is_empty() || is_id(&span.parent_span_id, 8),
        "{span:?}"
    );
    assert!(!span.name.is_empty() && span.kind != SpanKind::Unspecified as i32);
    assert!(SpanKind::try_from(span.kind).is_ok(), "{span:?}");
    assert!(
        0 < span.start_time_unix_nano && span.start_time_unix_nano <= span.end_time_unix_nano,
        "{span:?}"
    );
    assert_eq!(span.flags & 1, 1, "only sampled spans are sent");
    check_attributes(&span.attributes);
    for event in &span.events {
        assert!(!event.name.is_empty());
        let within = span.start_time_unix_nano..=span.end_time_unix_nano;
        assert!(
            within.contains(&event.time_unix_nano),
            "{} of {span:?}",
            event.name
        );
        check_attributes(&event.attributes);
    }
    let status = span.status.as_ref().map_or(0, |status| status.code);
    let has_error = attribute_text(&span.attributes, "error.type").is_some();
    assert_eq!(status == StatusCode::Error as i32, has_error, "{span:?}");
}

/// Text of an attribute.
pub fn attribute_text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text.clone()),
        other => panic!("{key} is no text: {other:?}"),
    }
}

/// Number of an attribute.
pub fn attribute_number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    match value(attributes, key)? {
        Value::IntValue(number) => Some(*number),
        other => panic!("{key} is no number: {other:?}"),
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    attribute.value.as_ref()?.value.as_ref()
}

/// Spans of one trace, checked against each other.
#[derive(Debug)]
pub struct SpanTree {
    /// Spans by id.
    pub spans: HashMap<Vec<u8>, CollectedSpan>,
}

impl SpanTree {
    /// Groups spans by trace. `senders` are ids of spans of the test's clients: the only parents that need
    /// not have been collected.
    pub fn all(
        spans: Vec<CollectedSpan>,
        senders: &HashSet<Vec<u8>>,
    ) -> HashMap<Vec<u8>, SpanTree> {
        let mut trees: HashMap<Vec<u8>, SpanTree> = HashMap::new();
        for collected in spans {
            let tree = trees.entry(collected.span.trace_id.clone());
            let tree = tree.or_insert_with(|| SpanTree {
                spans: HashMap::new(),
            });
            let former = tree.spans.insert(collected.span.span_id.clone(), collected);
            assert!(former.is_none(), "a span id twice: {former:?}");
        }
        trees.values().for_each(|tree| tree.check(senders));
        trees
    }

    /// Every parent is known, there is one root, and a child lies within its parent. A span of another node
    /// may end after its parent: the last byte is there before the sender has tidied up.
    fn check(&self, senders: &HashSet<Vec<u8>>) {
        const TIDYING_NS: u64 = 2_000_000_000;
        let mut roots = 0;
        for collected in self.spans.values() {
            let span = &collected.span;
            if span.parent_span_id.is_empty() || senders.contains(&span.parent_span_id) {
                roots += 1;
                continue;
            }
            let parent = self.spans.get(&span.parent_span_id);
            let parent = parent.unwrap_or_else(|| panic!("the parent is unknown: {span:?}"));
            let slack = if parent.node == collected.node {
                0
            } else {
                TIDYING_NS
            };
            let (outer, inner) = (&parent.span, span);
            assert!(
                outer.start_time_unix_nano <= inner.start_time_unix_nano
                    && inner.end_time_unix_nano <= outer.end_time_unix_nano + slack,
                "{inner:?}\nis not within\n{outer:?}"
            );
            let is_remote = parent.node != collected.node;
            assert_eq!(span.flags & 0x200 != 0, is_remote, "{span:?}");
        }
        assert_eq!(roots, 1, "one root: {:?}", self.spans.values());
    }

    /// The first span.
    pub fn root(&self) -> &CollectedSpan {
        let is_root = |of: &&CollectedSpan| !self.spans.contains_key(&of.span.parent_span_id);
        self.spans.values().find(is_root).expect("a root")
    }

    /// Names of the nodes that have sent a part of it.
    pub fn nodes(&self) -> HashSet<&str> {
        self.spans.values().map(|of| &*of.node).collect()
    }
}
