//! Work is charged exactly once: a request that ended early costs its input and the output seen so far.

use serde_json::{Value, json};

use super::a_day_with_time_left;
use crate::support::{
    Node, RefusingServer, STREAM_HEAD, ScriptedServer, accounts, chunk, endpoint, eventually,
    json_answer, model, one_model,
};

/// Four words: five tokens.
const INPUT: f64 = 5.0;
const TARIFF: &str = "{ cost_per_infer: 0.5, coefficients: { input_tokens: 1, output_tokens: 10 }";

fn priced(server: &ScriptedServer, more: &str) -> String {
    one_model(
        server.address,
        4,
        &format!("    tariff: {TARIFF}{more} }}\n"),
    )
}

fn body(stream: bool) -> String {
    let messages = r#"[{"role":"user","content":"one two three four"}]"#;
    format!(r#"{{"model":"m","stream":{stream},"messages":{messages}}}"#)
}

fn delta(name: &str, text: &str) -> String {
    let event = json!({ "choices": [{ "index": 0, "delta": { name: text } }] });
    chunk(&format!("data: {event}\n\n"))
}

/// Asks, waits until the server has the request and the client has seen `until`, and leaves.
async fn leave(
    node: &Node,
    server: &ScriptedServer,
    path: &str,
    stream: bool,
    until: &str,
) -> Value {
    let mut client = node.client().await;
    client.post("", path, &body(stream)).await;
    if until.is_empty() {
        eventually("the server has the request", async || {
            (server.open() == 1).then_some(())
        })
        .await;
    } else {
        client.saw(until).await;
    }
    drop(client);
    node.events(1).await.remove(0)
}

fn metrics(input_tokens: u64, output_tokens: u64) -> Value {
    match output_tokens {
        0 => json!({ "input_tokens": input_tokens }),
        _ => json!({ "input_tokens": input_tokens, "output_tokens": output_tokens }),
    }
}

#[tokio::test]
async fn a_client_that_leaves_pays_for_the_input_and_the_output_it_saw() {
    let seen = |name: &str| {
        let words = delta(name, "a b c ") + &delta(name, "d e f");
        format!("{STREAM_HEAD}{words}")
    };
    // (what the server sends, whether a stream is asked for, until when, output tokens)
    let cases = [
        (String::new(), false, "", 0),
        (String::new(), true, "", 0),
        (STREAM_HEAD.to_owned(), true, "", 0),
        (seen("content"), true, "d e f", 8),
        (seen("reasoning_content"), true, "d e f", 8),
        (seen("refusal"), true, "d e f", 8),
    ];
    for (begin, stream, until, output) in cases {
        for path in ["/v1/chat/completions", "/ai/run/m"] {
            let server = ScriptedServer::new(&[&begin, "never"]).await;
            let node = Node::start(&priced(&server, "")).await;
            let event = leave(&node, &server, path, stream, until).await;
            assert_eq!(event["outcome"], "cut-by-client", "{event}");
            let neurons = 0.5 + INPUT + 10.0 * output as f64;
            assert_eq!(event["neurons"], neurons, "{path} {begin} {event}");
            assert_eq!(event["metrics"], metrics(5, output), "{event}");
            assert_eq!(event["metrics_source"], "estimated");
        }
    }
}

#[tokio::test]
async fn usage_that_was_reported_before_the_cut_is_billed_as_it_is_and_what_came_after_is_counted()
{
    let usage = r#""usage":{"prompt_tokens":70,"completion_tokens":30}"#;
    let with_usage = chunk(&format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a b c \"}}}}],{usage}}}\n\n"
    ));
    let exact = format!("{STREAM_HEAD}{with_usage}");
    let more = format!("{exact}{}", delta("content", "d e f"));
    for (begin, until, output, source) in [
        (exact, "a b c", 30, "reported"),
        (more, "d e f", 34, "estimated"),
    ] {
        let server = ScriptedServer::new(&[&begin, "never"]).await;
        let node = Node::start(&priced(&server, "")).await;
        let event = leave(&node, &server, "/v1/chat/completions", true, until).await;
        assert_eq!(event["metrics"], metrics(70, output), "{event}");
        assert_eq!(event["neurons"], 0.5 + 70.0 + 10.0 * output as f64);
        assert_eq!(event["metrics_source"], source);
    }
}

#[tokio::test]
async fn the_callers_own_deadline_costs_what_was_worked() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&priced(&server, "")).await;
    let answer = node
        .post_as(
            "x-infergate-timeout-ms: 400\r\n",
            "/v1/chat/completions",
            &body(false),
        )
        .await;
    assert_eq!(answer.status, 408);
    let event = node.event_of(&answer).await;
    assert_eq!(event["neurons"], 0.5 + INPUT, "{event}");
}

#[tokio::test]
async fn a_cut_request_costs_nothing_where_the_tariff_says_so_and_has_its_tokens_without_one() {
    let begin = format!("{STREAM_HEAD}{}", delta("content", "a b c d e f"));
    let server = ScriptedServer::new(&[&begin, "never"]).await;
    for config in [
        priced(&server, ", charge_cut: none"),
        one_model(server.address, 4, ""),
    ] {
        let node = Node::start(&config).await;
        let event = leave(&node, &server, "/v1/chat/completions", true, "a b").await;
        assert_eq!(event["neurons"], Value::Null, "{event}");
        assert_eq!(event["metrics"], metrics(5, 8), "{event}");
        assert_eq!(event["metrics_source"], "estimated");
    }
}

#[tokio::test]
async fn a_server_that_fails_is_paid_only_for_what_reached_the_client() {
    let seen = format!("{STREAM_HEAD}{}", delta("content", "a b c d e f"));
    let half = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n";
    let run = "/ai/run/m";
    let chat = "/v1/chat/completions";
    // (what it sends before it closes, path, stream, more of the tariff, neurons)
    let cases = [
        ("", chat, false, "", Value::Null),
        (STREAM_HEAD, chat, true, "", Value::Null),
        (half, run, false, "", Value::Null),
        (half, run, false, ", charge_failed: true", json!(5.5)),
        (&seen, chat, true, "", json!(85.5)),
        (&seen, chat, true, ", charge_cut: none", Value::Null),
    ];
    for (begin, path, stream, more, neurons) in cases {
        let server = ScriptedServer::closing(&[begin]).await;
        let node = Node::start(&priced(&server, more)).await;
        let mut client = node.client().await;
        client.post("", path, &body(stream)).await;
        client.response().await;
        let event = node.events(1).await.remove(0);
        assert_eq!(event["neurons"], neurons, "{begin} {more} {event}");
    }
}

#[tokio::test]
async fn a_whole_answer_that_is_malformed_costs_nothing_though_it_has_usage() {
    let printed = r#"{"usage":{"prompt_tokens":7,"completion_tokens":5},"choices":7}"#;
    let server = ScriptedServer::new(&[&json_answer(printed)]).await;
    let node = Node::start(&priced(&server, "")).await;
    let answer = node.post("/ai/run/m", &body(false)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(event["neurons"], Value::Null, "{event}");
    assert!(!answer.text().contains("plugin"), "{}", answer.text());
}

#[tokio::test]
async fn a_try_that_was_repeated_is_not_charged() {
    let dead = RefusingServer::new();
    let busy = ScriptedServer::new(&["HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"]).await;
    let good = ScriptedServer::held().await;
    let endpoints = [
        endpoint(dead.address, 1),
        endpoint(busy.address, 1),
        endpoint(good.address, 1),
    ];
    let config = model("m", &endpoints, &format!("    tariff: {TARIFF} }}\n"));
    let node = Node::start(&format!("models:\n{config}")).await;
    for count in 1..=4 {
        let mut client = node.client().await;
        client.post("", "/v1/chat/completions", &body(false)).await;
        eventually("the good server has it", async || {
            (good.open() == 1).then_some(())
        })
        .await;
        drop(client);
        let events = node.events(count).await;
        assert_eq!(events[count - 1]["neurons"], 0.5 + INPUT, "{events:?}");
        eventually("the good server is free", async || {
            (good.open() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_account_cannot_work_on_beyond_its_day_by_leaving_early() {
    a_day_with_time_left().await;
    let server = ScriptedServer::held().await;
    let config = format!(
        "{}{}",
        accounts(", neurons_per_day: 1"),
        priced(&server, "")
    );
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    let mut client = node.client().await;
    client.post(key, "/v1/chat/completions", &body(false)).await;
    eventually("the server has the request", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    drop(client);
    node.events(1).await;
    let refused = node
        .post_as(key, "/v1/chat/completions", &body(false))
        .await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "insufficient_quota");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn answers_without_usage_are_estimated_and_flagged_and_counted() {
    let chat = |members: &str| {
        let choice = r#"{"index":0,"message":{"role":"assistant","content":"a b c d e f"}}"#;
        format!(r#"{{"id":"x","choices":[{choice}]{members}}}"#)
    };
    for printed in [
        chat(""),
        chat(r#","usage":null"#),
        chat(r#","usage":{}"#),
        format!("[{}]", chat("")),
    ] {
        let server = ScriptedServer::new(&[&json_answer(&printed)]).await;
        let node = Node::start(&priced(&server, "")).await;
        for count in 1..=2 {
            let answer = node.post("/v1/chat/completions", &body(false)).await;
            let event = node.event_of(&answer).await;
            assert_eq!(event["neurons"], 0.5 + INPUT + 80.0, "{printed} {event}");
            assert_eq!(event["metrics_source"], "estimated");
            eventually("it is counted", async || {
                let series = r#"infergate_answers_unmetered_total{model="m"}"#;
                (node.metric(series).await == Some(f64::from(count))).then_some(())
            })
            .await;
        }
        let warned = node.log().matches("answers without usage").count();
        assert_eq!(warned, 1, "{}", node.log());
    }
    let marked = format!("\u{feff}{}", crate::support::ANSWER);
    let server = ScriptedServer::new(&[&json_answer(&marked)]).await;
    let node = Node::start(&priced(&server, "")).await;
    let answer = node.post("/v1/chat/completions", &body(false)).await;
    let event = node.event_of(&answer).await;
    assert_eq!(event["neurons"], 0.5 + 3.0 + 10.0, "{event}");
    assert_eq!(event["metrics_source"], "reported");
}

#[tokio::test]
async fn a_compressed_answer_is_a_failure_and_costs_nothing() {
    let whole = json_answer("\u{1f}not gzip, but said to be")
        .replace("Content-Type", "Content-Encoding: gzip\r\nContent-Type");
    let server = ScriptedServer::new(&[&whole]).await;
    let node = Node::start(&priced(&server, "")).await;
    for path in ["/v1/chat/completions", "/ai/run/m"] {
        let answer = node.post(path, &body(false)).await;
        assert_eq!(answer.status, 502);
        let event = node.event_of(&answer).await;
        assert_eq!(event["neurons"], Value::Null, "{event}");
    }
    let warnings = node.log().matches("compressed its answer").count();
    assert_eq!(warnings, 1, "one in ten seconds");
}

#[tokio::test]
async fn what_is_held_for_requests_under_way_is_not_used_up() {
    a_day_with_time_left().await;
    let server = ScriptedServer::held().await;
    let config = format!(
        "{}{}",
        accounts(", neurons_per_day: 1000"),
        priced(&server, "")
    );
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    let many = body(false).replace("\"stream\"", "\"n\":128,\"max_tokens\":1,\"stream\"");
    let mut first = node.client().await;
    first.post(key, "/v1/chat/completions", &many).await;
    eventually("the server has the request", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    let held = node.post_as(key, "/v1/chat/completions", &many).await;
    assert_eq!(held.status, 429, "{}", held.text());
    assert_eq!(held.json()["error"]["code"], "rate_limit_exceeded");
    assert!(held.header("retry-after").is_some());
    assert_ne!(held.header("x-should-retry"), Some("false"));
    server.next();
    let answer = first.response().await;
    assert_eq!(answer.status, 200);
    node.event_of(&answer).await;
    let mut again = node.client().await;
    again.post(key, "/v1/chat/completions", &many).await;
    eventually("the server has the next request", async || {
        (server.open() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_that_can_is_asked_for_continuous_usage() {
    let server = ScriptedServer::held().await;
    let endpoints = [format!(
        "{}, continuous_usage: true",
        endpoint(server.address, 4)
    )];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    for path in ["/v1/chat/completions", "/ai/run/m"] {
        let before = server.requests().len();
        let mut client = node.client().await;
        client.post("", path, &body(true)).await;
        eventually("the server has the request", async || {
            (server.requests().len() > before).then_some(())
        })
        .await;
        let asked = server.requests().pop().unwrap();
        assert!(
            asked.contains(r#""continuous_usage_stats":true"#),
            "{asked}"
        );
    }
}
