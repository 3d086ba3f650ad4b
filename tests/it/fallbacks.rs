//! Ladders: which model serves when the one that was asked for cannot, who may not, what it costs,
//! and what the client and the event are told.

mod guard;

use serde_json::Value;

use crate::support::{
    ANSWER, Node, RefusingServer, STREAM_HEAD, ScriptedServer, SimulatedServer, TestResponse,
    accounts, chat, chunk, endpoint, eventually, json_answer, model,
};

const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
/// No line: a second request finds it full.
const NO_LINE: &str = "    queue: { capacity: 0 }\n";

/// Model `m` with these keys over further models, each on one server with one permit.
fn fallback_config(first: &str, more: &str, below: &[(&str, std::net::SocketAddr)]) -> String {
    let names: Vec<&str> = below.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    let rungs: String = below
        .iter()
        .map(|(name, address)| model(name, &[endpoint(*address, 1)], NO_LINE))
        .collect();
    let first = model(
        "m",
        &[first.to_owned()],
        &format!("    fallbacks: [{names}]\n{more}"),
    );
    format!("models:\n{first}{rungs}")
}

async fn ask(node: &Node) -> TestResponse {
    node.posting("", "").await.answer().await
}

fn served_by(event: &Value) -> (&Value, &Value) {
    (&event["model_id"], &event["asked_model_id"])
}

async fn fallbacks(node: &Node, model: &str, reason: &str) -> f64 {
    let series = format!("infergate_fallbacks_total{{model=\"{model}\",reason=\"{reason}\"}}");
    node.metric(&series).await.unwrap()
}

/// Takes the one permit of `m`, which is on `server`.
async fn hold(node: &Node, server: &ScriptedServer) -> crate::support::PendingPost {
    let holder = node.posting("", "").await;
    eventually("it has the permit", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    holder
}

#[tokio::test]
async fn a_model_without_room_is_left_for_the_next_and_the_client_is_told_which_served() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let below = [("n", second.address)];
    let node = Node::start(&fallback_config(
        &endpoint(first.address, 1),
        NO_LINE,
        &below,
    ))
    .await;
    let holder = hold(&node, &first).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-infergate-model"), Some("n"));
    let event = node.event_of(&answer).await;
    assert_eq!(served_by(&event), (&"n".into(), &"m".into()), "{event}");
    assert_eq!(
        (&event["attempts"], &event["outcome"]),
        (&1.into(), &"completed".into())
    );
    assert_eq!(event["flags"]["external_endpoint"], false);
    assert_eq!(fallbacks(&node, "m", "out-of-capacity").await, 1.0);
    let id = answer.header("x-request-id").unwrap();
    let trace = node.get(&format!("/explain/{id}")).await.json();
    let steps = trace["steps"].as_array().unwrap();
    let kinds: Vec<&Value> = steps.iter().map(|step| &step["step"]).collect();
    assert_eq!(kinds, ["admission", "fallback", "admission", "attempt"]);
    assert_eq!(
        (&trace["requested_model"], &trace["model"]),
        (&"m".into(), &"n".into())
    );
    assert_eq!(
        (&steps[1]["to"], &steps[1]["cause"]),
        (&"n".into(), &"queue-full".into())
    );

    first.next();
    let own = holder.answer().await;
    assert_eq!((own.status, own.header("x-infergate-model")), (200, None));
    let event = node.event_of(&own).await;
    assert_eq!(served_by(&event), (&"m".into(), &Value::Null));
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_request_waits_in_its_models_line_while_there_is_room_in_it() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let below = [("n", second.address)];
    let one_place = "    queue: { capacity: 1 }\n";
    let node = Node::start(&fallback_config(
        &endpoint(first.address, 1),
        one_place,
        &below,
    ))
    .await;
    let holder = hold(&node, &first).await;
    let waiting = node.posting("", "").await;
    node.settles(1, 1).await;
    // The line is full now; and who does not want to wait moves on at once.
    assert_eq!(ask(&node).await.header("x-infergate-model"), Some("n"));
    first.next();
    assert_eq!(holder.answer().await.status, 200);
    eventually("the waiting one is served", async || {
        (first.requests().len() == 2).then_some(())
    })
    .await;
    let hasty = node.posting("x-infergate-queue: reject\r\n", "").await;
    assert_eq!(hasty.answer().await.header("x-infergate-model"), Some("n"));
    first.next();
    let own = waiting.answer().await;
    assert_eq!((own.status, own.header("x-infergate-model")), (200, None));
}

#[tokio::test]
async fn a_pinned_model_is_waited_for_and_left_only_when_it_fails() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let below = [("n", second.address)];
    let pinned = "    pin_primary: true\n    queue: { capacity: 1 }\n";
    let node = Node::start(&fallback_config(
        &endpoint(first.address, 1),
        pinned,
        &below,
    ))
    .await;
    let holder = hold(&node, &first).await;
    let waiting = node.posting("", "").await;
    node.settles(1, 1).await;
    let full = ask(&node).await;
    assert_eq!(full.status, 429, "{}", full.text());
    assert!(full.header("retry-after").is_some());
    let hasty = node.posting("x-infergate-queue: reject\r\n", "").await;
    assert_eq!(hasty.answer().await.status, 429);
    for posted in [holder, waiting] {
        first.next();
        assert_eq!(posted.answer().await.status, 200);
    }
    assert_eq!(second.count("served").await, 0);

    let failing = ScriptedServer::new(&[BUSY]).await;
    let node = Node::start(&fallback_config(
        &endpoint(failing.address, 1),
        pinned,
        &below,
    ))
    .await;
    let answer = ask(&node).await;
    assert_eq!(answer.header("x-infergate-model"), Some("n"));
    assert_eq!(node.event_of(&answer).await["attempts"], 2);
    assert_eq!(fallbacks(&node, "m", "failed").await, 1.0);
}

#[tokio::test]
async fn a_model_whose_servers_are_down_is_left_at_once_where_others_would_wait() {
    let (gone, second) = (RefusingServer::new(), SimulatedServer::fast().await);
    let below = [("n", second.address)];
    let node = Node::start(&fallback_config(&endpoint(gone.address, 1), "", &below)).await;
    eventually("it is down", async || {
        let state = node.state().await;
        (state["models"][0]["endpoints"][0]["health"] == "down").then_some(())
    })
    .await;
    let answer = ask(&node).await;
    assert_eq!(answer.header("x-infergate-model"), Some("n"));
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
    assert_eq!(fallbacks(&node, "m", "unhealthy").await, 1.0);
}

#[tokio::test]
async fn all_models_together_have_three_tries_and_the_client_hears_of_the_one_it_asked_for() {
    let servers = [
        ScriptedServer::new(&[BUSY]).await,
        ScriptedServer::new(&[BUSY]).await,
        ScriptedServer::new(&[BUSY]).await,
        ScriptedServer::new(&[BUSY]).await,
    ];
    let tried = || {
        servers
            .iter()
            .map(|s| s.requests().len())
            .collect::<Vec<_>>()
    };
    let first = [
        endpoint(servers[0].address, 1),
        endpoint(servers[1].address, 1),
    ];
    let rungs = model("n", &[endpoint(servers[2].address, 1)], "")
        + &model("o", &[endpoint(servers[3].address, 1)], "");
    let first = model("m", &first, "    fallbacks: [n, o]\n");
    let node = Node::start(&format!("models:\n{first}{rungs}")).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "upstream_failed");
    // Two at its own servers, and the one that was kept.
    assert_eq!(tried(), [1, 1, 1, 0]);
    let event = node.event_of(&answer).await;
    assert_eq!(event["attempts"], 3, "{event}");
    assert_eq!(served_by(&event), (&"m".into(), &Value::Null));
    assert_eq!(event["outcome"], "failed");
    node.settles(0, 0).await;
}

#[tokio::test]
async fn with_one_server_each_three_models_are_tried_once() {
    let (first, second) = (
        ScriptedServer::new(&[BUSY]).await,
        ScriptedServer::new(&[BUSY]).await,
    );
    let third = SimulatedServer::fast().await;
    let below = [("n", second.address), ("o", third.address)];
    let node = Node::start(&fallback_config(&endpoint(first.address, 1), "", &below)).await;
    let answer = ask(&node).await;
    assert_eq!(answer.header("x-infergate-model"), Some("o"));
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
    let event = node.event_of(&answer).await;
    assert_eq!(event["attempts"], 3);
    assert_eq!(event["upstream"], format!("http://{}", third.address));
    assert_eq!(fallbacks(&node, "n", "failed").await, 1.0);
}

#[tokio::test]
async fn all_models_together_have_one_deadline() {
    let (first, second) = (ScriptedServer::held().await, ScriptedServer::held().await);
    let below = [("n", second.address)];
    let node = Node::start(&fallback_config(
        &endpoint(first.address, 1),
        NO_LINE,
        &below,
    ))
    .await;
    let _holder = hold(&node, &first).await;
    let posted = node.posting("x-infergate-timeout-ms: 300\r\n", "").await;
    let answer = posted.answer().await;
    assert_eq!(answer.status, 408, "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(served_by(&event), (&"n".into(), &"m".into()));
    assert_eq!(event["outcome"], "cut-by-deadline");
    assert!(event["request_time_ms"].as_u64().unwrap() >= 300, "{event}");
    assert_eq!(second.requests().len(), 1);
}

#[tokio::test]
async fn what_is_wrong_with_the_request_is_no_reason_to_ask_another_model() {
    let wrong = r#"{"error":{"message":"no","type":"invalid_request_error"}}"#;
    let wrong = json_answer(wrong).replace("200 OK", "400 Bad Request");
    let (first, second) = (
        ScriptedServer::new(&[&wrong]).await,
        SimulatedServer::fast().await,
    );
    let below = [("n", second.address)];
    let node = Node::start(&fallback_config(&endpoint(first.address, 1), "", &below)).await;
    let answer = ask(&node).await;
    assert_eq!(
        (answer.status, answer.header("x-infergate-model")),
        (400, None)
    );
    // Nor is input that the model's own task does not take.
    let input = node.post("/ai/run/m", r#"{"prompt":7}"#).await;
    assert_eq!(input.status, 400, "{}", input.text());
    assert_eq!(second.count("served").await, 0);
}

#[tokio::test]
async fn work_that_may_have_begun_is_not_begun_again_by_another_model() {
    let (first, second) = (
        ScriptedServer::closing(&[""]).await,
        SimulatedServer::fast().await,
    );
    let below = [("n", second.address)];
    let node = Node::start(&fallback_config(&endpoint(first.address, 1), "", &below)).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(second.count("served").await, 0);

    let delta = r#"data: {"choices":[{"index":0,"delta":{"content":"begun"}}]}"#;
    let started = format!("{STREAM_HEAD}{}", chunk(&format!("{delta}\n\n")));
    let first = ScriptedServer::closing(&[&started, ""]).await;
    let node = Node::start(&fallback_config(&endpoint(first.address, 1), "", &below)).await;
    let mut client = node.posting("", r#","stream":true"#).await.0;
    client.saw("begun").await;
    first.next();
    assert!(client.response().await.text().contains("upstream_failed"));
    assert_eq!(second.count("served").await, 0);
}

#[tokio::test]
async fn a_stream_may_come_from_a_model_below_also_after_signs_of_life() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let more = "    queue_heartbeat_secs: 1\n    queue: { capacity: 1 }\n";
    let below = [("n", second.address)];
    let config = fallback_config(&endpoint(first.address, 1), more, &below);
    let node = Node::start(&config).await;
    let holder = hold(&node, &first).await;
    let mut waiting = node.posting("", r#","stream":true"#).await.0;
    node.settles(1, 1).await;
    let streamed = node.posting("", r#","stream":true"#).await.answer().await;
    assert_eq!(streamed.header("x-infergate-model"), Some("n"));
    assert!(streamed.is_event_stream() && streamed.text().ends_with("data: [DONE]\n\n"));

    waiting.saw(": queued").await;
    // Its model goes away under it: the status is out, so only the event tells who served.
    let without = config.replace(
        &format!("      - {{ {} }}\n", endpoint(first.address, 1)),
        "",
    );
    let reloaded = node
        .reload(&without.replacen("    endpoints:\n", "    endpoints: []\n", 1))
        .await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let answer = waiting.response().await;
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "{}",
        answer.text()
    );
    assert_eq!(answer.header("x-infergate-model"), None);
    let event = node.event_of(&answer).await;
    assert_eq!(served_by(&event), (&"n".into(), &"m".into()), "{event}");
    drop(holder);
}

#[tokio::test]
async fn a_model_the_account_may_not_use_is_passed_over() {
    let (first, second, third) = (
        ScriptedServer::new(&[BUSY]).await,
        SimulatedServer::fast().await,
        SimulatedServer::fast().await,
    );
    let below = [("n", second.address), ("o", third.address)];
    let config = fallback_config(&endpoint(first.address, 1), "", &below);
    let node = Node::start(&format!("{}{config}", accounts(", models: [m, o]"))).await;
    let key = |name: &str| format!("Authorization: Bearer key-{name}\r\n");
    let answer = node.posting(&key("a"), "").await.answer().await;
    assert_eq!(
        answer.header("x-infergate-model"),
        Some("o"),
        "{}",
        answer.text()
    );
    let answer = node.posting(&key("b"), "").await.answer().await;
    assert_eq!(answer.header("x-infergate-model"), Some("n"));

    let node = Node::start(&format!("{}{config}", accounts(", models: [m]"))).await;
    let answer = node.posting(&key("a"), "").await.answer().await;
    assert_eq!(answer.status, 502, "{}", answer.text());
}

#[tokio::test]
async fn the_model_that_serves_is_asked_in_its_own_way_and_billed_by_its_own_tariff() {
    let first = ScriptedServer::new(&[BUSY]).await;
    let second = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let priced = |cost: u32| format!("    tariff: {{ cost_per_infer: {cost} }}\n");
    let top = model(
        "m",
        &[endpoint(first.address, 2)],
        &format!("    fallbacks: [n]\n{}", priced(1000)),
    );
    let below = model(
        "n",
        &[format!(
            "{}, backend_model: its-own, api_key: k2",
            endpoint(second.address, 2)
        )],
        &priced(8),
    )
    .replace("backend: openai", "backend: tgi");
    let account = accounts(", neurons_per_day: 12");
    let node = Node::start(&format!("{account}models:\n{top}{below}")).await;
    let key = "Authorization: Bearer key-a\r\n";
    for _ in 0..2 {
        let answer = node.posting(key, "").await.answer().await;
        assert_eq!(
            answer.header("x-infergate-model"),
            Some("n"),
            "{}",
            answer.text()
        );
        assert_eq!(answer.json()["model"], "m", "as the server says");
        let event = node.event_of(&answer).await;
        assert_eq!(
            (&event["neurons"], &event["priced_by"]),
            (&8.0.into(), &"builtin".into())
        );
        assert_eq!(served_by(&event), (&"n".into(), &"m".into()));
    }
    let request = second.requests().remove(0).to_ascii_lowercase();
    assert!(request.contains(r#""model":"its-own""#), "{request}");
    assert!(
        request.contains("authorization: bearer k2\r\n"),
        "{request}"
    );
    assert_eq!(
        node.metric(r#"infergate_neurons_total{model="n"}"#).await,
        Some(16.0)
    );
    assert_eq!(
        node.metric(r#"infergate_neurons_total{model="m"}"#).await,
        Some(0.0)
    );
    // 16 of 12 are used: what was held for the dearer model has come back.
    let answer = node.posting(key, "").await.answer().await;
    assert_eq!(
        (answer.status, &*answer.json()["error"]["code"].to_string()),
        (429, "\"insufficient_quota\"")
    );
}

#[tokio::test]
async fn a_model_below_that_does_not_take_the_request_is_passed_over() {
    let (first, third) = (
        ScriptedServer::new(&[BUSY]).await,
        SimulatedServer::fast().await,
    );
    let posting = SimulatedServer::fast().await;
    let http =
        model("n", &[endpoint(posting.address, 1)], "").replace("backend: openai", "backend: http");
    let top = model(
        "m",
        &[endpoint(first.address, 1)],
        "    fallbacks: [n, o]\n",
    );
    let last = model("o", &[endpoint(third.address, 1)], "");
    let node = Node::start(&format!("models:\n{top}{http}{last}")).await;
    let answer = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(
        answer.header("x-infergate-model"),
        Some("o"),
        "{}",
        answer.text()
    );
    assert_eq!(posting.count("served").await, 0);
}
