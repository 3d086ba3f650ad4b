//! A thousand requests of every kind, over two nodes: what the collector gets of each.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;

use super::{ANSWER, CHAT, NO_QUEUE, collected, senders, text, traceparent, tracing};
use crate::nodes::{member, wait_until_serving_known};
use crate::support::{
    Cluster, CollectedSpan, Collector, HandledServer, Node, Reaction, RefusingServer, STREAM_HEAD,
    SimulatedServer, SpanTree, TestResponse, attribute_number, attribute_text, chat, chunk,
    endpoint, eventually, json_answer, model,
};

const REQUESTS: usize = 1000;
/// Connections that send at the same time.
const CLIENTS: usize = 8;
const STREAM: &str = r#","stream":true"#;
const REFUSE: &str = "    queue: { when_unhealthy: refuse }\n";

/// Way of a request, which its tree must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    /// One attempt at this node.
    Here,
    /// The first server may refuse, the second one answers.
    Retried,
    /// Another model answers, at this node.
    Fallback,
    /// Another node answers.
    Forwarded,
    /// Another model answers, at another node.
    FallbackForwarded,
    /// No server is healthy.
    Unhealthy,
    /// No such model.
    Unknown,
    /// The body is no request.
    Malformed,
    /// The server breaks its stream off, or is refused for having done so.
    Cut,
}

/// Way, path and body of the request of this number.
fn request(at: usize) -> (Way, &'static str, String) {
    const MESSAGES: &str = "/v1/messages";
    let message = |model: &str, more: &str| chat(model, &format!(r#","max_tokens":9{more}"#));
    match at % 20 {
        0 | 1 => (Way::Here, CHAT, chat("near", "")),
        2 | 3 => (Way::Here, CHAT, chat("near", STREAM)),
        4 => (Way::Here, "/ai/run/near", r#"{"prompt":"hi"}"#.to_owned()),
        5 => {
            let body = r#"{"model":"near","prompt":"hi"}"#;
            (Way::Here, "/v1/completions", body.to_owned())
        }
        6 => (Way::Here, MESSAGES, message("near", "")),
        7 => (Way::Here, MESSAGES, message("near", STREAM)),
        8 | 9 => (Way::Forwarded, CHAT, chat("far", "")),
        10 => (Way::Forwarded, CHAT, chat("far", STREAM)),
        11 => (Way::Forwarded, MESSAGES, message("far", STREAM)),
        12 | 13 => (Way::Retried, CHAT, chat("flaky", "")),
        14 => (Way::Fallback, CHAT, chat("ladder", "")),
        15 => (Way::Fallback, CHAT, chat("ladder", STREAM)),
        16 => (Way::FallbackForwarded, CHAT, chat("over", "")),
        17 => (Way::Unhealthy, CHAT, chat("broken", "")),
        18 if at % 40 == 18 => (Way::Unknown, CHAT, chat("unknown", "")),
        18 => (Way::Malformed, CHAT, "{".to_owned()),
        _ => (Way::Cut, CHAT, chat("cut", STREAM)),
    }
}

/// A request that was sent, and what became of it.
struct Sent {
    way: Way,
    answer: TestResponse,
}

/// Sends every request, several at a time; every third has a trace of its own.
async fn send_all(node: &Node) -> HashMap<String, Sent> {
    let client = |first: usize| async move {
        let mut client = node.client().await;
        let mut sent = Vec::new();
        for at in (first..REQUESTS).step_by(CLIENTS) {
            let (way, path, body) = request(at);
            let headers = match at % 3 {
                0 => traceparent(at as u32 + 1, "01"),
                _ => String::new(),
            };
            client.post(&headers, path, &body).await;
            let answer = client.response().await;
            if answer.broken || answer.header("connection").is_some() {
                client = node.client().await;
            }
            let id = answer.header("x-request-id").unwrap().to_owned();
            sent.push((id, Sent { way, answer }));
        }
        sent
    };
    let all = join_all((0..CLIENTS).map(client)).await;
    all.into_iter().flatten().collect()
}

/// Servers of the node that is asked; they end with the value.
struct Servers {
    good: SimulatedServer,
    gone: RefusingServer,
    flaky: HandledServer,
    cut: HandledServer,
}

impl Servers {
    async fn start() -> Servers {
        let turn = std::sync::atomic::AtomicUsize::new(0);
        let flaky = HandledServer::by(move |_| {
            match turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 {
                0 => Reaction::Answer(NO_QUEUE.to_owned()),
                _ => Reaction::Answer(json_answer(ANSWER)),
            }
        });
        let head = chunk(
            "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
        );
        let head = format!("{STREAM_HEAD}{head}");
        Servers {
            good: SimulatedServer::fast().await,
            gone: RefusingServer::new(),
            flaky: flaky.await,
            cut: HandledServer::by(move |_| Reaction::AnswerAndClose(head.clone())).await,
        }
    }

    /// Models of the node that is asked.
    fn models(&self) -> String {
        let good = endpoint(self.good.address, 64);
        let gone = endpoint(self.gone.address, 64);
        let second = format!("{good}, priority: 1");
        let nowhere = "  - { id: far, task: text-generation, backend: openai, endpoints: [] }\n";
        [
            model("near", &[good], ""),
            model("flaky", &[endpoint(self.flaky.address, 64), second], ""),
            model(
                "ladder",
                std::slice::from_ref(&gone),
                "    fallbacks: [near]\n",
            ),
            model(
                "over",
                std::slice::from_ref(&gone),
                "    fallbacks: [far]\n",
            ),
            model("broken", &[gone], REFUSE),
            model("cut", &[endpoint(self.cut.address, 64)], REFUSE),
            nowhere.to_owned(),
        ]
        .concat()
    }
}

fn attempts(tree: &SpanTree) -> impl Iterator<Item = &CollectedSpan> {
    let clients = tree.spans.values().filter(|of| of.span.kind == 3);
    clients.filter(|of| !of.span.name.starts_with("forward "))
}

fn number(of: &CollectedSpan, key: &str) -> Option<i64> {
    attribute_number(&of.span.attributes, key)
}

/// The request's span has the attributes of the conventions, and says what its client saw.
fn check_root(root: &CollectedSpan, sent: &Sent) {
    let has = |key: &str| attribute_text(&root.span.attributes, key).is_some();
    let answer = &sent.answer;
    assert_eq!((&*root.node, root.span.kind), ("edge", 2));
    let operation = text(root, "gen_ai.operation.name");
    assert_eq!(text(root, "gen_ai.provider.name"), "infergate");
    match sent.way {
        Way::Malformed => assert_eq!(root.span.name, operation),
        _ => {
            let requested = text(root, "gen_ai.request.model");
            assert_eq!(root.span.name, format!("{operation} {requested}"));
        }
    }
    let status = number(root, "http.response.status_code");
    assert_eq!(status, Some(i64::from(answer.status)), "{root:?}");
    let is_cut = answer.broken || answer.text().contains("\"error\"") && answer.is_event_stream();
    let is_good = answer.status == 200 && !is_cut;
    assert_eq!(has("gen_ai.response.model"), answer.status == 200);
    assert_eq!(has("infergate.refusal"), !is_good, "{root:?}");
    assert_eq!(
        has("error.type"),
        is_cut || answer.status >= 500,
        "{root:?}"
    );
    let streamed = root.span.events.iter();
    let mut first = streamed.filter(|event| event.name == "infergate.first_byte");
    assert!(first.next().is_some() || answer.status != 200, "{root:?}");
}

/// The tree shows the way of the request.
fn check_way(tree: &SpanTree, sent: &Sent) {
    let (root, answer, way) = (tree.root(), &sent.answer, sent.way);
    let falls_back = matches!(way, Way::Fallback | Way::FallbackForwarded);
    let is_forwarded = matches!(way, Way::Forwarded | Way::FallbackForwarded);
    let expected_status = match way {
        Way::Unhealthy => 503,
        Way::Unknown => 404,
        Way::Malformed => 400,
        Way::Cut => answer.status,
        _ => 200,
    };
    assert_eq!(answer.status, expected_status, "{way:?}: {}", answer.text());
    assert_eq!(
        tree.nodes().len(),
        if is_forwarded { 2 } else { 1 },
        "{way:?}"
    );
    let fallbacks = root.span.events.iter();
    let fallback = fallbacks.filter(|event| event.name == "infergate.fallback");
    assert_eq!(fallback.count(), usize::from(falls_back), "{root:?}");
    // Tokens are counted where the model server is asked.
    let mut servers = tree.spans.values().filter(|of| of.span.kind == 2);
    let is_counted =
        servers.any(|of| number(of, "gen_ai.usage.output_tokens").is_some_and(|tokens| tokens > 0));
    let is_answered = answer.status == 200 && way != Way::Cut;
    assert!(is_counted || !is_answered, "{way:?}: {root:?}");
    for attempt in attempts(tree) {
        text(attempt, "gen_ai.request.model");
        assert_eq!(text(attempt, "server.address"), "127.0.0.1");
        let result = text(attempt, "infergate.attempt.result");
        let status = number(attempt, "http.response.status_code");
        assert!(number(attempt, "server.port").is_some());
        assert!(result != "answered" || status == Some(200), "{attempt:?}");
    }
    if is_forwarded {
        let forward = tree.spans.values();
        let mut forward = forward.filter(|of| of.span.name == "forward gpu");
        let forward = forward.next().expect("a forward");
        assert_eq!(text(forward, "infergate.peer.node"), "gpu");
        let there = tree.spans.values();
        let mut there = there.filter(|of| of.node == "gpu" && of.span.kind == 2);
        let there = there.next().expect("the request at the other node");
        assert_eq!(there.span.parent_span_id, forward.span.span_id);
        assert!(attempts(tree).any(|of| of.node == "gpu"));
    }
}

/// The histograms have counted each request once, at the node that answers for it.
async fn counted_once(collector: &Collector, expected: u64) {
    eventually("the histograms arrive", async || {
        let mut counts = HashMap::new();
        for one in collector.series() {
            if one.metric == "gen_ai.server.request.duration" {
                let series = (one.node, format!("{:?}", one.point.attributes));
                counts.insert(series, one.point.count);
            }
        }
        let total: u64 = counts.values().sum();
        assert!(total <= expected, "{total} of {expected}");
        (total == expected).then_some(())
    })
    .await;
    let series = collector.series();
    let names: HashSet<&str> = series.iter().map(|of| &*of.metric).collect();
    for name in [
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
        "gen_ai.client.token.usage",
    ] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
}

#[tokio::test]
async fn a_thousand_mixed_requests_over_two_nodes_are_valid_trees() {
    let collector = Collector::start().await;
    let servers = Servers::start().await;
    let serving = |models: &str| format!("models:\n{models}{}", tracing(collector.address, ""));
    let far = model("far", &[endpoint(servers.good.address, 64)], "");
    let cluster = Cluster::start(&[
        member("edge", "fra", &serving(&servers.models())),
        member("gpu", "ams", &serving(&far)),
    ])
    .await;
    let edge = &cluster.nodes[0];
    wait_until_serving_known(edge, "gpu").await;
    let sent = send_all(edge).await;
    assert_eq!(sent.len(), REQUESTS);
    let count = |ways: &[Way]| sent.values().filter(|of| ways.contains(&of.way)).count();
    let forwarded = count(&[Way::Forwarded, Way::FallbackForwarded]);
    let spans = collected(&collector, REQUESTS + forwarded).await;
    let trees = SpanTree::all(spans, &senders());
    assert_eq!(trees.len(), REQUESTS);
    let (mut retried, mut cut) = (0, 0);
    for tree in trees.values() {
        let one = &sent[&text(tree.root(), "infergate.request_id")];
        check_root(tree.root(), one);
        check_way(tree, one);
        let rejected =
            attempts(tree).filter(|of| text(of, "infergate.attempt.result") == "rejected");
        retried += usize::from(one.way == Way::Retried && rejected.count() == 1);
        cut += usize::from(one.way == Way::Cut && one.answer.status == 200);
    }
    assert!(retried > 0 && cut > 0, "{retried} retried, {cut} cut");
    for (series, expected) in [
        ("infergate_traces_exported_total", REQUESTS as f64),
        (r#"infergate_traces_dropped_total{cause="overrun"}"#, 0.0),
        (r#"infergate_traces_dropped_total{cause="failed"}"#, 0.0),
    ] {
        assert_eq!(edge.metric(series).await, Some(expected), "{series}");
    }
    // A request without a known model has no series.
    let known = REQUESTS - count(&[Way::Unknown, Way::Malformed]);
    counted_once(&collector, known as u64).await;
}
