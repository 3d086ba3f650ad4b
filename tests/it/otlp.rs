//! Distributed traces: spans and histograms as a collector gets them, and `traceparent` on its way.

mod mixed;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{
    CollectedSpan, Collector, HandledServer, Node, Reaction, RefusingServer, ScriptedServer,
    SimulatedServer, SpanTree, accounts, attribute_number, attribute_text, chat, endpoint,
    eventually, json_answer, model, one_model,
};

const CHAT: &str = "/v1/chat/completions";
const SENDER: &str = "00f067aa0ba902b7";
const NO_QUEUE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
const ANSWER: &str = r#"{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;

/// `tracing` with export to this collector.
fn tracing(collector: SocketAddr, more: &str) -> String {
    format!(
        "tracing:\n  otlp: {{ endpoint: \"http://{collector}\", batch_delay_ms: 50, metrics_interval_secs: 1, timeout_ms: 500 }}\n{more}"
    )
}

fn traceparent(trace: u32, flags: &str) -> String {
    format!("traceparent: 00-{trace:032x}-{SENDER}-{flags}\r\n")
}

fn senders() -> HashSet<Vec<u8>> {
    HashSet::from([hex::decode(SENDER).unwrap()])
}

fn text(of: &CollectedSpan, key: &str) -> String {
    attribute_text(&of.span.attributes, key).unwrap_or_else(|| panic!("{key}: {of:?}"))
}

/// Waits until the collector has `count` spans of requests, and gives all spans.
async fn collected(collector: &Collector, count: usize) -> Vec<CollectedSpan> {
    eventually("the spans arrive", async || {
        let spans = collector.spans();
        let servers = spans.iter().filter(|of| of.span.kind == 2);
        (servers.count() >= count).then_some(spans)
    })
    .await
}

#[tokio::test]
async fn a_retried_request_is_one_tree_whose_servers_get_its_context() {
    let collector = Collector::start().await;
    let bad = ScriptedServer::closing(&[NO_QUEUE]).await;
    let good = ScriptedServer::closing(&[&json_answer(ANSWER)]).await;
    let second = endpoint(good.address, 2) + ", priority: 1";
    let endpoints = [endpoint(bad.address, 2), second];
    let config =
        format!("models:\n{}", model("m", &endpoints, "")) + &tracing(collector.address, "");
    let node = Node::start(&config).await;
    let headers = traceparent(7, "01") + "tracestate: a=1, ,b=2\r\n";
    let answer = node.post_as(&headers, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let spans = collected(&collector, 1).await;
    let trees = SpanTree::all(spans, &senders());
    let tree = &trees[&7_u128.to_be_bytes().to_vec()];
    let root = tree.root();
    assert_eq!(root.span.name, "chat m");
    assert_eq!(root.span.trace_state, "a=1,b=2");
    assert_eq!(text(root, "gen_ai.operation.name"), "chat");
    assert_eq!(text(root, "gen_ai.request.model"), "m");
    assert_eq!(text(root, "gen_ai.response.model"), "m");
    assert_eq!(
        attribute_number(&root.span.attributes, "gen_ai.usage.input_tokens"),
        Some(3)
    );
    assert_eq!(
        attribute_number(&root.span.attributes, "gen_ai.usage.output_tokens"),
        Some(4)
    );
    assert_eq!(
        text(root, "infergate.request_id"),
        answer.header("x-request-id").unwrap()
    );
    let event = node.event_of(&answer).await;
    assert_eq!(event["trace_id"], format!("{:032x}", 7));
    // Each server was sent the context of its own attempt.
    for (server, result) in [(&bad, "rejected"), (&good, "answered")] {
        let request = server.requests().concat();
        let sent = request
            .lines()
            .find_map(|line| line.strip_prefix("traceparent: "))
            .unwrap();
        assert_eq!(request.matches("traceparent").count(), 1, "{request}");
        assert!(request.contains("tracestate: a=1,b=2\r\n"), "{request}");
        let parts: Vec<&str> = sent.split('-').collect();
        assert_eq!((parts[1], parts[3]), (&*format!("{:032x}", 7), "01"));
        let attempt = &tree.spans[&hex::decode(parts[2]).unwrap()];
        assert_eq!(text(attempt, "infergate.attempt.result"), result);
        assert_eq!(text(attempt, "server.address"), "127.0.0.1");
        let port = attribute_number(&attempt.span.attributes, "server.port");
        assert_eq!(port, Some(server.address.port().into()));
        assert_eq!(attempt.span.parent_span_id, root.span.span_id);
    }
}

#[tokio::test]
async fn what_the_sender_does_not_record_is_not_recorded_and_passes_as_it_came() {
    let collector = Collector::start().await;
    let server = ScriptedServer::closing(&[&json_answer(ANSWER)]).await;
    let endpoints = [endpoint(server.address, 2)];
    let config = format!("models:\n{}", model("m", &endpoints, ""));
    let node = Node::start(&(config.clone() + &tracing(collector.address, ""))).await;
    let headers = traceparent(9, "00");
    assert_eq!(
        node.post_as(&headers, CHAT, &chat("m", "")).await.status,
        200
    );
    assert!(server.requests().concat().contains(&*traceparent(9, "00")));
    // By the ratio alone nothing is, either.
    let none = config + &tracing(collector.address, "  sampling_ratio: 0.0\n");
    assert_eq!(node.reload(&none).await.status, 200);
    assert_eq!(node.post(CHAT, &chat("m", "")).await.status, 200);
    let answer = node
        .post_as(&traceparent(11, "01"), CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 200);
    let spans = collected(&collector, 1).await;
    let traces: HashSet<_> = spans.iter().map(|of| of.span.trace_id.clone()).collect();
    assert_eq!(traces, HashSet::from([11_u128.to_be_bytes().to_vec()]));
}

#[tokio::test]
async fn a_request_that_waited_through_a_reload_stays_in_the_trace_it_began() {
    for is_kept in [true, false] {
        let collector = Collector::start().await;
        let server = ScriptedServer::held().await;
        let models = one_model(server.address, 1, "");
        let traced = |accounts: &str, tracing: &str| format!("{accounts}{models}{tracing}");
        let on = tracing(collector.address, "");
        let node = Node::start(&traced(&accounts(""), &on)).await;
        let key = "Authorization: Bearer key-a\r\n";
        let holder = node.posting(key, "").await;
        node.settles(1, 0).await;
        let sender = match is_kept {
            true => String::new(),
            false => traceparent(5, "01"),
        };
        let waiter = node.posting(&(sender + key), "").await;
        node.settles(1, 1).await;
        // Another weight: what the request was checked for is read again when it gets its permit.
        let next = if is_kept { on.as_str() } else { "" };
        let answer = node.reload(&traced(&accounts(", weight: 3"), next)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.next();
        assert_eq!(holder.answer().await.status, 200);
        eventually("the waiting request is at the server", async || {
            (server.requests().len() == 2).then_some(())
        })
        .await;
        server.next();
        let waited = waiter.answer().await;
        assert_eq!(waited.status, 200, "{}", waited.text());
        let request = &server.requests()[1];
        assert_eq!(request.matches("traceparent").count(), 1, "{request}");
        let event = node.event_of(&waited).await;
        let trace_id = event["trace_id"].as_str().unwrap();
        assert!(request.contains(trace_id), "{trace_id} in {request}");
    }
}

/// Requests sent while the collector is down.
const UNCOLLECTED: usize = 200;

/// Sends requests to a node whose collector does not take spans, and waits until each is counted as dropped.
async fn served_without(collector: SocketAddr, models: &str) {
    let tracing = tracing(collector, "").replace("timeout_ms: 500", "timeout_ms: 200");
    let node = Node::start(&format!("{models}{tracing}")).await;
    let mut client = node.client().await;
    let served = async {
        for at in 0..UNCOLLECTED {
            let (name, more, status) = match at % 4 {
                0 | 1 => ("m", "", 200),
                2 => ("m", r#","stream":true"#, 200),
                _ => ("unknown", "", 404),
            };
            client.post("", CHAT, &chat(name, more)).await;
            let answer = client.response().await;
            assert_eq!((answer.status, answer.broken), (status, false));
            if answer.header("connection").is_some() {
                client = node.client().await;
            }
        }
    };
    // Exports that were waited for would take 200 ms each.
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, served)
        .await
        .expect("no request waits");
    eventually("every request is counted as dropped", async || {
        let dropped = node
            .metric(r#"infergate_traces_dropped_total{cause="failed"}"#)
            .await?;
        assert!(dropped <= UNCOLLECTED as f64, "{dropped}");
        (dropped == UNCOLLECTED as f64).then_some(())
    })
    .await;
    let failures = node.metric("infergate_trace_export_failures_total").await;
    assert!(failures >= Some(3.0), "three tries a batch: {failures:?}");
    for nothing in [
        "infergate_traces_exported_total",
        r#"infergate_traces_dropped_total{cause="overrun"}"#,
    ] {
        assert_eq!(node.metric(nothing).await, Some(0.0), "{nothing}");
    }
}

#[tokio::test]
async fn without_a_collector_nothing_waits_and_every_drop_is_counted() {
    let gone = RefusingServer::new();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = SimulatedServer::fast().await;
    let endpoints = [endpoint(server.address, 8)];
    let models = format!("models:\n{}", model("m", &endpoints, ""));
    tokio::join!(
        served_without(gone.address, &models),
        served_without(silent.local_addr().unwrap(), &models),
    );
}

#[tokio::test]
async fn a_job_continues_the_trace_of_its_submit_and_a_later_run_is_linked_to_it() {
    let collector = Collector::start().await;
    let runs = AtomicUsize::new(0);
    let server = HandledServer::by(move |request| {
        let context = "traceparent: 00-00000000000000000000000000000007-";
        match runs.fetch_add(1, Ordering::SeqCst) {
            0 => {
                assert!(request.contains(context), "{request}");
                Reaction::Crash(Duration::ZERO)
            }
            _ => {
                assert!(!request.contains(context), "{request}");
                Reaction::AnswerAfter(Duration::ZERO, json_answer(ANSWER))
            }
        }
    })
    .await;
    let endpoints = [endpoint(server.address, 1)];
    let models = model("acme/m", &endpoints, "");
    let tracing = tracing(collector.address, "");
    let node = Node::start(&format!("jobs: {{}}\nmodels:\n{models}{tracing}")).await;
    let predictions = "/v1/models/acme/m/predictions";
    let input = r#"{"input":{"prompt":"x"}}"#;
    let created = node
        .post_as(&traceparent(7, "01"), predictions, input)
        .await;
    assert_eq!(created.status, 201, "{}", created.text());
    let spans = collected(&collector, 2).await;
    let trees = SpanTree::all(spans, &senders());
    let of_submit = 7_u128.to_be_bytes().to_vec();
    let (first, later): (Vec<_>, Vec<_>) = trees.iter().partition(|(id, _)| **id == of_submit);
    let sender = hex::decode(SENDER).unwrap();
    assert_eq!(first[0].1.root().span.parent_span_id, sender);
    assert!(!later.is_empty(), "{trees:?}");
    for (_, tree) in later {
        let span = &tree.root().span;
        assert!(span.parent_span_id.is_empty());
        let link = &span.links[0];
        assert_eq!((&link.trace_id, &link.span_id), (&of_submit, &sender));
    }
}
