//! Bills: what a request costs is what its metrics come to, to the last digit, however it ends;
//! and an account's day has an end.

mod mixture;
mod worked;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{
    ANSWER, Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestClient, accounts, chat, chunk,
    endpoint, eventually, json_answer, model, model_of, one_model,
};
use infergate::parts::Clock;
use infergate::simulate::{self, StreamUsage};

const BASE: f64 = 0.5;
const INPUT: f64 = 0.02561;
const OUTPUT: f64 = 0.07515;
const PROMPT_TOKENS: u32 = 7;

fn tariff() -> String {
    format!(
        "    tariff: {{ cost_per_infer: {BASE}, coefficients: {{ input_tokens: {INPUT}, \
         output_tokens: {OUTPUT} }} }}\n"
    )
}

async fn counting_server(stream_usage: StreamUsage) -> SimulatedServer {
    SimulatedServer::start(simulate::Config {
        prompt_tokens: Some(PROMPT_TOKENS),
        stream_usage,
        concurrency: 64,
        ..simulate::Config::instant()
    })
    .await
}

fn by_hand(output_tokens: u64) -> f64 {
    BASE + INPUT * f64::from(PROMPT_TOKENS) + OUTPUT * output_tokens as f64
}

/// Outcome of a request of the mixture, and the tokens that were made until then.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Whole,
    Streamed,
    LeftByClient,
    BrokenByServer,
    Failed,
    Refused,
}

const KINDS: [Kind; 8] = [
    Kind::Whole,
    Kind::Streamed,
    Kind::Whole,
    Kind::LeftByClient,
    Kind::Streamed,
    Kind::BrokenByServer,
    Kind::Failed,
    Kind::Refused,
];

/// Asks for `tokens` tokens and ends as `kind` says; what it costs by hand.
async fn ask(node: &Node, keep: &mut TestClient, kind: Kind, tokens: u64) -> Option<f64> {
    let path = "/v1/chat/completions";
    let exactly = format!(r#","max_tokens":{tokens},"ignore_eos":true"#);
    let with = |more: &str| chat("m", &format!("{exactly}{more}"));
    match kind {
        Kind::Whole => {
            keep.post("", path, &with("")).await;
            assert_eq!(keep.response().await.status, 200);
            Some(by_hand(tokens))
        }
        Kind::Streamed => {
            keep.post("", path, &with(r#","stream":true"#)).await;
            let answer = keep.response().await;
            assert!(answer.text().ends_with("data: [DONE]\n\n"));
            Some(by_hand(tokens))
        }
        Kind::LeftByClient => {
            let stalls = r#","stream":true,"x_sim_fault":"stall-mid-stream""#;
            let mut client = node.client().await;
            client.post("", path, &with(stalls)).await;
            let half = tokens / 2;
            client.saw(&format!(r#""completion_tokens":{half},"#)).await;
            Some(by_hand(half))
        }
        Kind::BrokenByServer => {
            let breaks = r#","stream":true,"x_sim_fault":"reset-mid-stream""#;
            let mut client = node.client().await;
            client.post("", path, &with(breaks)).await;
            let answer = client.response().await;
            let text = answer.text();
            assert!(text.contains("upstream_failed"), "{text}");
            // A reset may take back what was sent; what came through is what was made.
            let counts = text.split(r#""completion_tokens":"#).skip(1);
            let last = counts
                .last()
                .map_or("0", |rest| rest.split(',').next().unwrap());
            Some(by_hand(last.parse().unwrap()))
        }
        Kind::Failed => {
            keep.post("", path, &with(r#","x_sim_fault":"status=500""#))
                .await;
            assert_eq!(keep.response().await.status, 500);
            None
        }
        Kind::Refused => {
            keep.post("", path, &chat("no-such-model", "")).await;
            assert_eq!(keep.response().await.status, 404);
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_of_every_kind_cost_what_they_cost_by_hand() {
    const WORKERS: u64 = 8;
    const EACH: u64 = 1250;
    let server = counting_server(StreamUsage::Cumulative).await;
    let node = Arc::new(Node::start(&one_model(server.address, 64, &tariff())).await);
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let node = Arc::clone(&node);
        workers.spawn(async move {
            let mut keep = node.client().await;
            let mut total = 0.0;
            let mut priced = 0;
            for turn in 0..EACH {
                let kind = KINDS[((worker + turn) % KINDS.len() as u64) as usize];
                let tokens = 2 + 2 * (turn % 20);
                if let Some(cost) = ask(&node, &mut keep, kind, tokens).await {
                    total += cost;
                    priced += 1;
                }
            }
            (total, priced)
        });
    }
    let (mut expected, mut priced) = (0.0, 0);
    while let Some(done) = workers.join_next().await {
        let (total, count) = done.unwrap();
        expected += total;
        priced += count;
    }
    let events = node.events((WORKERS * EACH) as usize).await;
    assert_eq!(events.len() as u64, WORKERS * EACH);
    let billed: Vec<f64> = events
        .iter()
        .filter_map(|event| event["neurons"].as_f64())
        .collect();
    assert_eq!(billed.len(), priced);
    let sum: f64 = billed.iter().sum();
    assert!(
        (sum - expected).abs() <= 1e-9 * expected,
        "billed {sum}, by hand {expected}"
    );
    for event in &events {
        let by = event["priced_by"].as_str();
        assert_eq!(by, event["neurons"].as_f64().map(|_| "builtin"), "{event}");
        if let Some(neurons) = event["neurons"].as_f64() {
            let output = event["metrics"]["output_tokens"].as_u64().unwrap();
            assert!((neurons - by_hand(output)).abs() < 1e-9, "{event}");
        }
    }
}

#[tokio::test]
async fn incremental_reports_are_summed_where_the_model_says_so() {
    let server = counting_server(StreamUsage::Incremental).await;
    let more = format!(
        "{}    metrics: {{ output_tokens: incremental }}\n",
        tariff()
    );
    let node = Node::start(&one_model(server.address, 4, &more)).await;
    let body = chat("m", r#","max_tokens":9,"ignore_eos":true,"stream":true"#);
    let answer = node.post("/v1/chat/completions", &body).await;
    let event = node.event_of(&answer).await;
    assert_eq!(event["metrics"]["output_tokens"], 9, "{event}");
    assert!((event["neurons"].as_f64().unwrap() - by_hand(9)).abs() < 1e-9);
}

#[tokio::test]
async fn an_answer_known_before_its_head_tells_what_it_costs_and_a_stream_does_not() {
    let server = counting_server(StreamUsage::Last).await;
    let node = Node::start(&one_model(server.address, 4, &tariff())).await;
    let run = r#"{"prompt":"hi","max_tokens":5,"ignore_eos":true}"#;
    let answer = node.post("/ai/run/m", run).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let reported: f64 = answer.header("cf-ai-neurons").unwrap().parse().unwrap();
    assert!((reported - by_hand(5)).abs() < 1e-9);
    assert_eq!(
        answer.header("cf-ai-cost-metric-name-1"),
        Some("input_tokens")
    );
    assert_eq!(answer.header("cf-ai-cost-metric-value-2"), Some("5"));
    let event = node.event_of(&answer).await;
    assert_eq!(event["neurons"].as_f64(), Some(reported));

    let token = chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n");
    let begin = format!("{STREAM_HEAD}{token}");
    let rest = format!("{token}{}0\r\n\r\n", chunk("data: [DONE]\n\n"));
    let slow = ScriptedServer::new(&[&begin, &rest]).await;
    let node = Node::start(&one_model(slow.address, 4, &tariff())).await;
    let mut client = node.client().await;
    let stream = r#"{"prompt":"hi","stream":true}"#;
    client.post("", "/ai/run/m", stream).await;
    client.saw("data: ").await;
    slow.next();
    let answer = client.response().await;
    assert_eq!(answer.header("cf-ai-neurons"), None);
    assert!(node.event_of(&answer).await["neurons"].is_number());
}

#[tokio::test]
async fn a_servers_own_price_is_kept_where_the_model_has_no_tariff() {
    let server = SimulatedServer::start(simulate::Config {
        neurons: Some(12.5),
        cost_metrics: vec![simulate::CostMetric {
            name: "tiles".into(),
            value: 4.0,
        }],
        ..simulate::Config::instant()
    })
    .await;
    let node = Node::start(&one_model(server.address, 4, "")).await;
    let answer = node.post("/ai/run/m", r#"{"prompt":"hi"}"#).await;
    assert_eq!(answer.header("cf-ai-neurons"), Some("12.5"));
    let event = node.event_of(&answer).await;
    assert_eq!(event["neurons"], 12.5);
    assert_eq!(event["priced_by"], "reported");
    assert_eq!(event["metrics"]["tiles"], 4);
}

#[tokio::test]
async fn estimates_are_billed_or_compared_as_the_model_says() {
    let server = counting_server(StreamUsage::Last).await;
    let with = |id: &str, trust: &str| {
        let more = format!("{}    metrics_trust: {trust}\n", tariff());
        model(id, &[endpoint(server.address, 4)], &more)
    };
    let both = format!(
        "models:\n{}{}",
        with("guess", "estimate"),
        with("both", "compare")
    );
    let node = Node::start(&both).await;
    // Three words of prompt are four tokens; the server says seven. Several times each: the answer may
    // come with its head, and is then priced before it is sent, or after it.
    for (id, input) in [("guess", 4), ("both", 7)].repeat(8) {
        let body = format!(
            r#"{{"model":"{id}","messages":[{{"role":"user","content":"one two three"}}]}}"#
        );
        let answer = node.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let event = node.event_of(&answer).await;
        assert_eq!(event["metrics"]["input_tokens"], input, "{event}");
        let source = event["metrics_source"].as_str().unwrap();
        assert_eq!(
            source,
            if id == "guess" {
                "estimated"
            } else {
                "reported"
            }
        );
        let compared = &event["comparison"];
        assert_eq!(compared.is_object(), id == "both", "{event}");
    }
}

/// Waits for a day of which enough is left for a test: at midnight UTC what was used is forgotten.
pub async fn a_day_with_time_left() {
    const DAY_SECS: i64 = 24 * 3600;
    let clock = Clock::start();
    eventually("midnight is far away", async || {
        let gone = clock.wall().unix_timestamp().rem_euclid(DAY_SECS);
        (gone < DAY_SECS - 45).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_day_of_an_account_ends_in_3036_and_the_others_go_on() {
    a_day_with_time_left().await;
    let server = SimulatedServer::fast().await;
    let more = "    tariff: { cost_per_infer: 4 }\n";
    let config = format!(
        "{}{}",
        accounts(", neurons_per_day: 10"),
        one_model(server.address, 4, more)
    );
    let state = tempfile::tempdir().unwrap();
    let config = format!("{config}state_dir: \"{}\"\n", state.path().display());
    let node = Node::start(&config).await;
    let ask = async |node: &Node, key: &str| {
        let headers = format!("Authorization: Bearer {key}\r\n");
        let answer = node
            .post_as(&headers, "/v1/chat/completions", &chat("m", ""))
            .await;
        // With its event written its bill is settled.
        node.event_of(&answer).await;
        answer
    };
    for _ in 0..3 {
        assert_eq!(ask(&node, "key-a").await.status, 200);
    }
    let refused = ask(&node, "key-a").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "insufficient_quota");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    let event = node.event_of(&refused).await;
    assert_eq!(
        (&event["error_code"], &event["neurons"]),
        (&"3036".into(), &Value::Null)
    );
    assert_eq!(ask(&node, "key-b").await.status, 200);

    // Killed, not ended: what was used stays used.
    eventually("the day's use is on the disk", async || {
        let kept = std::fs::read_to_string(state.path().join("neurons-of-the-day.json")).ok()?;
        kept.contains("12000000").then_some(())
    })
    .await;
    drop(node);
    let node = Node::start(&config).await;
    assert_eq!(ask(&node, "key-a").await.status, 429);
    assert_eq!(ask(&node, "key-b").await.status, 200);
}

#[tokio::test]
async fn what_was_held_comes_back_when_a_request_is_not_billed() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "{}models:\n{}{}",
        accounts(", neurons_per_day: 10"),
        model(
            "m",
            &[endpoint(server.address, 2)],
            "    tariff: { cost_per_infer: 9 }\n"
        ),
        model_of("e", "text-embeddings", "openai", server.address)
    );
    let node = Node::start(&config).await;
    let headers = "Authorization: Bearer key-a\r\n";
    for _ in 0..5 {
        let body = chat("m", r#","x_sim_fault":"status=500""#);
        let answer = node.post_as(headers, "/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 500);
        node.event_of(&answer).await;
    }
    let answer = node
        .post_as(headers, "/v1/chat/completions", &chat("m", ""))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn a_servers_own_price_counts_against_the_day_too() {
    a_day_with_time_left().await;
    let server = SimulatedServer::start(simulate::Config {
        neurons: Some(12.5),
        ..simulate::Config::instant()
    })
    .await;
    let config = format!(
        "{}{}",
        accounts(", neurons_per_day: 10"),
        one_model(server.address, 4, "")
    );
    let node = Node::start(&config).await;
    let headers = "Authorization: Bearer key-a\r\n";
    let ask = async || {
        let answer = node
            .post_as(headers, "/v1/chat/completions", &chat("m", ""))
            .await;
        node.event_of(&answer).await;
        answer.status
    };
    assert_eq!((ask().await, ask().await), (200, 429));
}

#[tokio::test]
async fn a_stream_that_the_end_of_the_node_cuts_is_billed_as_far_as_it_came() {
    let server = counting_server(StreamUsage::Cumulative).await;
    let config = format!(
        "timeouts: {{ drain_timeout_secs: 1 }}\n{}",
        one_model(server.address, 4, &tariff())
    );
    let mut node = Node::start(&config).await;
    let stalls =
        r#","max_tokens":8,"ignore_eos":true,"stream":true,"x_sim_fault":"stall-mid-stream""#;
    let mut client = node.client().await;
    client
        .post("", "/v1/chat/completions", &chat("m", stalls))
        .await;
    client.saw(r#""completion_tokens":4,"#).await;
    node.signal("TERM");
    node.ended().await;
    let events = node.events(1).await;
    let neurons = events[0]["neurons"].as_f64().unwrap();
    assert!((neurons - by_hand(4)).abs() < 1e-9, "{}", events[0]);
}

#[tokio::test]
async fn what_a_task_reads_in_the_answer_is_not_billed_where_the_server_is_not_trusted() {
    // (the server's text, its event's figures under `trust`, and under `estimate`)
    for (text, trusted, guessed) in [
        (
            "one two three",
            json!({ "input_tokens": 900, "output_tokens": 900, "output_characters": 13, "neurons": 1813.0 }),
            json!({ "input_tokens": 4, "output_tokens": 4, "neurons": 8.0 }),
        ),
        (
            "",
            json!({ "input_tokens": 900, "output_tokens": 900, "neurons": 1800.0 }),
            json!({ "input_tokens": 4, "neurons": 4.0 }),
        ),
    ] {
        let printed = json!({
            "response": text,
            "usage": { "prompt_tokens": 900, "completion_tokens": 900, "total_tokens": 1800 },
        });
        let server = ScriptedServer::new(&[&json_answer(&printed.to_string())]).await;
        let with = |id: &str| {
            let tariff = "{ input_tokens: 1, output_tokens: 1, output_characters: 1 }";
            format!(
                "{}    tariff: {{ coefficients: {tariff} }}\n    metrics_trust: {id}\n",
                model_of(id, "text-generation", "http", server.address)
            )
        };
        let config = format!("models:\n{}{}", with("trust"), with("estimate"));
        let node = Node::start(&config).await;
        for (id, expected) in [("trust", trusted), ("estimate", guessed)] {
            let answer = node
                .post(&format!("/ai/run/{id}"), r#"{"prompt":"one two three"}"#)
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let event = node.event_of(&answer).await;
            let mut figures = event["metrics"].clone();
            figures["neurons"] = event["neurons"].clone();
            assert_eq!(figures, expected, "{id} {text:?} {event}");
        }
    }
}

#[tokio::test]
async fn a_stream_cut_by_the_end_of_the_node_is_billed_by_the_gateways_count_where_it_is_to_be() {
    let server = counting_server(StreamUsage::Cumulative).await;
    let more = format!("{}    metrics_trust: estimate\n", tariff());
    let config = format!(
        "timeouts: {{ drain_timeout_secs: 1 }}\n{}",
        one_model(server.address, 4, &more)
    );
    let mut node = Node::start(&config).await;
    let stalls =
        r#","max_tokens":8,"ignore_eos":true,"stream":true,"x_sim_fault":"stall-mid-stream""#;
    let mut client = node.client().await;
    client
        .post("", "/v1/chat/completions", &chat("m", stalls))
        .await;
    client.saw(r#""completion_tokens":4,"#).await;
    node.signal("TERM");
    node.ended().await;
    let events = node.events(1).await;
    let event = &events[0];
    // One word of prompt is one token; the server says seven. Its four events have a few words.
    let output = event["metrics"]["output_tokens"].as_f64().unwrap();
    assert!((1.0..=16.0).contains(&output), "{event}");
    let by_hand = BASE + INPUT + OUTPUT * output;
    let neurons = event["neurons"].as_f64().unwrap();
    assert!((neurons - by_hand).abs() < 1e-9, "{event}");
    assert_eq!(event["metrics_source"], "estimated");
}

#[tokio::test]
async fn a_cut_stream_keeps_what_its_task_and_its_head_have_told() {
    let head = STREAM_HEAD.replace(
        "\r\n\r\n",
        "\r\ncf-ai-cost-metric-name-1: tiles\r\ncf-ai-cost-metric-value-1: 3\r\n\r\n",
    );
    let piece = chunk("data: {\"response\":\"a\"}\n\n");
    let server = ScriptedServer::new(&[&format!("{head}{piece}"), "never"]).await;
    let config = format!(
        "timeouts: {{ drain_timeout_secs: 1 }}\nmodels:\n{}{}",
        model_of("m", "image-text-to-text", "http", server.address),
        "    tariff: { coefficients: { image_bytes: 2, tiles: 10 } }\n"
    );
    let mut node = Node::start(&config).await;
    let mut client = node.client().await;
    let ask = r#"{"image":[71,73,70],"prompt":"hi","stream":true}"#;
    client.post("", "/ai/run/m", ask).await;
    client.saw(r#""response":"a""#).await;
    node.signal("TERM");
    node.ended().await;
    let events = node.events(1).await;
    let event = &events[0];
    assert_eq!(event["neurons"], 36.0, "{event}");
    assert_eq!(event["metrics"]["image_bytes"], 3, "{event}");
}

#[tokio::test]
async fn a_server_is_told_the_tariff_where_the_endpoint_says_so_and_nowhere_else() {
    for (more, expected) in [("", None), (", send_model_config: true", Some(0.5))] {
        let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
        let endpoint = endpoint(server.address, 1) + more;
        let tariff = "    tariff: { cost_per_infer: 0.5, coefficients: { output_tokens: 2.0 } }\n";
        let node = Node::start(&format!("models:\n{}", model("m", &[endpoint], tariff))).await;
        // A client's own word on it goes nowhere.
        let answer = node.posting("cf-ai-model-config: {}\r\n", "").await;
        assert_eq!(answer.answer().await.status, 200);
        let request = server.requests().remove(0);
        let mut lines = request.lines();
        let line = lines.find_map(|line| line.strip_prefix("cf-ai-model-config: "));
        let sent = line.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let sent = sent.map(|sent| {
            assert_eq!(sent["coefficients"]["output_tokens"], 2.0, "{sent}");
            sent["cost_per_infer"].as_f64().unwrap()
        });
        assert_eq!(sent, expected, "{request}");
    }
}
