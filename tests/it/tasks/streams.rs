//! Streams of plain HTTP servers: converted event by event, ended in the dialect, cut cleanly.

use infergate::simulate::StreamUsage;

use super::*;
use crate::support::{STREAM_HEAD, chunk};

const ASK: &[u8] = br#"{"prompt":"echo: a b c","stream":true}"#;

/// The pieces of a stream, its end mark left out.
fn pieces(answer: &TestResponse) -> Vec<Value> {
    assert!(answer.is_event_stream() && !answer.broken, "{answer:?}");
    let events = answer.events();
    let (last, pieces) = events.split_last().unwrap();
    assert_eq!(last, "[DONE]", "{events:?}");
    pieces
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

fn text_of(pieces: &[Value]) -> String {
    pieces
        .iter()
        .map(|piece| piece["response"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_text_is_streamed_and_its_usage_adds_up_as_the_model_reports_it() {
    for (reports, metrics) in [
        (StreamUsage::Last, ""),
        (StreamUsage::Cumulative, ""),
        (
            StreamUsage::Incremental,
            "    metrics: { output_tokens: incremental }\n",
        ),
    ] {
        for (backend, dialect) in [("http", Dialect::Http), ("openai", Dialect::Openai)] {
            let server = SimulatedServer::start(simulate::Config {
                dialect,
                stream_usage: reports,
                prompt_tokens: Some(9),
                ..config(Task::TextGeneration)
            })
            .await;
            let model = model_of("m", "text-generation", backend, server.address);
            let node = Node::start(&format!("models:\n{model}{metrics}")).await;
            let answer = run(&node, "m", "application/json", ASK).await;
            assert_eq!(text_of(&pieces(&answer)), "a b c", "{backend} {reports:?}");
            let event = node.event_of(&answer).await;
            let counted = (
                &event["metrics"]["input_tokens"],
                &event["metrics"]["output_tokens"],
            );
            assert_eq!(counted, (&json!(9), &json!(3)), "{backend} {reports:?}");
            assert_eq!(event["flags"]["streamed"], true);
        }
    }
}

#[tokio::test]
async fn a_stream_in_another_servers_words_becomes_pieces() {
    let script = [
        STREAM_HEAD,
        &chunk(": hello\n\ndata: {\"token\":{\"text\":\"a\"}}\n\n"),
        &chunk("data: {\"choices\":[{\"delta\":{\"content\":\" b\"}}]}\n\n"),
        &chunk("data: {\"text\":\" c\"}\n\n"),
        "0\r\n\r\n",
    ]
    .concat();
    let server = ScriptedServer::new(&[&script]).await;
    let node = node_on("text-generation", &server, "").await;
    let answer = run(&node, "m", "application/json", ASK).await;
    assert_eq!(text_of(&pieces(&answer)), "a b c");
    assert!(
        answer.text().starts_with(": hello\n\n"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_in_an_error_event() {
    let script = [
        STREAM_HEAD,
        &chunk("data: {\"response\":\"a\"}\n\ndata: {\"resp"),
    ]
    .concat();
    let server = ScriptedServer::closing(&[&script]).await;
    let node = node_on("text-generation", &server, "").await;
    let answer = run(&node, "m", "application/json", ASK).await;
    let events = answer.events();
    assert_eq!(events.len(), 2, "{events:?}");
    let piece: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(piece["response"], "a");
    let error: Value = serde_json::from_str(&events[1]).unwrap();
    assert_eq!(error["errors"][0]["code"], 3050, "{events:?}");
    assert_eq!(node.events(1).await[0]["outcome"], "cut-by-backend");
}

#[tokio::test]
async fn events_that_come_one_by_one_leave_one_by_one() {
    let first = [STREAM_HEAD, &chunk("data: {\"response\":\"a\"}\n\n")].concat();
    let second = chunk("data: {\"response\":\"b\"}\n\ndata: [DONE]\n\n") + "0\r\n\r\n";
    let server = ScriptedServer::new(&[&first, &second]).await;
    let node = node_on("text-generation", &server, "").await;
    let mut client = node.client().await;
    let length = ASK.len();
    let head = format!("POST /ai/run/m HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    client.send([head.as_bytes(), ASK].concat()).await;
    client.saw("\"response\":\"a\"").await;
    assert!(!String::from_utf8_lossy(client.pending()).contains("DONE"));
    server.next();
    let answer = client.response().await;
    assert_eq!(text_of(&pieces(&answer)), "ab");
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_it_at_the_server() {
    let first = [STREAM_HEAD, &chunk("data: {\"response\":\"a\"}\n\n")].concat();
    let server = ScriptedServer::new(&[&first, ""]).await;
    let node = node_on("text-generation", &server, "").await;
    let mut client = node.client().await;
    let length = ASK.len();
    let head = format!("POST /ai/run/m HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    client.send([head.as_bytes(), ASK].concat()).await;
    client.saw("\"response\":\"a\"").await;
    client.close();
    crate::support::eventually("the server's client is gone", async || {
        (server.gone() == 1).then_some(())
    })
    .await;
    assert_eq!(node.events(1).await[0]["outcome"], "cut-by-client");
    node.idle().await;
}
