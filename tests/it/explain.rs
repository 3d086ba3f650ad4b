//! `/explain`: what happened to a request and why, told by the node that served it.

use serde_json::{Value, json};

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, accounts, chat, endpoint,
    eventually, model, one_model,
};

const CHAT: &str = "/v1/chat/completions";
const NO_QUEUE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// The trace with this id, once the request has left it.
async fn trace(node: &Node, request_id: &str) -> Value {
    node.explain(request_id).await
}

async fn trace_of(node: &Node, answer: &TestResponse) -> Value {
    trace(node, answer.header("x-request-id").unwrap()).await
}

/// Kind of each step.
fn kinds(shown_trace: &Value) -> Vec<&str> {
    let steps = shown_trace["steps"].as_array().unwrap();
    let kinds = steps.iter().map(|step| step["step"].as_str().unwrap());
    kinds.collect()
}

fn ms(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[tokio::test]
async fn a_request_that_nothing_happens_to_is_a_permit_and_a_try() {
    let server = SimulatedServer::fast().await;
    let url = format!("http://{}", server.address);
    let config = accounts("") + &one_model(server.address, 2, "    aliases: [n]\n");
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    let body = chat("n", r#","user":"a-secret-word""#);
    let answer = node.post_as(key, CHAT, &body).await;
    assert_eq!(answer.status, 200);
    let shown_trace = trace_of(&node, &answer).await;
    for (name, value) in [
        ("account", json!("a")),
        ("model", json!("m")),
        ("requested_model", json!("n")),
        ("face", json!("openai")),
        ("config_generation", json!(1)),
        ("outcome", json!("completed")),
        ("status", json!(200)),
        ("error_code", Value::Null),
        ("refusal", Value::Null),
        ("quota", Value::Null),
        ("plugins", json!([])),
        ("queued_ms", json!(0.0)),
    ] {
        assert_eq!(shown_trace[name], value, "{name}");
    }
    assert_eq!(shown_trace["deadline"]["from"], "floor");
    assert_eq!(shown_trace["deadline"]["after_ms"], 30_000);
    assert_eq!(kinds(&shown_trace), ["admission", "attempt"]);
    let [admission, tried] = shown_trace["steps"].as_array().unwrap().as_slice() else {
        panic!("{shown_trace}");
    };
    assert_eq!(admission["result"], "leased");
    let candidate = &admission["candidates"][0];
    assert_eq!(candidate["endpoint"], url);
    assert_eq!(candidate["permits"], json!({ "used": 1, "limit": 2 }));
    assert_eq!(
        (&tried["endpoint"], &tried["model"]),
        (&url.into(), &"m".into())
    );
    assert_eq!(
        (&tried["result"], &tried["status"]),
        (&"answered".into(), &200.into())
    );
    let (sent, head) = (ms(&tried["sent_at_ms"]), ms(&tried["head_at_ms"]));
    let (first, total) = (
        ms(&shown_trace["first_byte_at_ms"]),
        ms(&shown_trace["total_ms"]),
    );
    assert!(ms(&tried["at_ms"]) <= sent && sent <= head, "{tried}");
    assert!(head <= first && first <= total, "{shown_trace}");
    // Neither what was asked nor by which key.
    let text = shown_trace.to_string();
    assert!(
        !text.contains("secret-word") && !text.contains("key-a"),
        "{text}"
    );
}

#[tokio::test]
async fn a_wait_tells_its_place_its_length_and_how_it_ended() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;
    for posted in [holder, waiter] {
        server.next();
        let answer = posted.answer().await;
        assert_eq!(answer.status, 200);
        let shown_trace = trace_of(&node, &answer).await;
        assert_eq!(kinds(&shown_trace), ["admission", "attempt"]);
        let [admission, tried] = shown_trace["steps"].as_array().unwrap().as_slice() else {
            panic!("{shown_trace}");
        };
        if admission["result"] == "leased" {
            continue;
        }
        assert_eq!(admission["result"], "queued");
        assert_eq!(
            (&admission["position"], &admission["waiting"]),
            (&1.into(), &1.into())
        );
        assert!(admission["expected_wait_ms"].is_u64(), "{admission}");
        assert_eq!(admission["permits"], json!({ "used": 1, "limit": 1 }));
        assert_eq!(admission["ended"], "granted");
        let waited = ms(&admission["waited_ms"]);
        assert!(
            waited > 0.0 && waited <= ms(&shown_trace["total_ms"]),
            "{shown_trace}"
        );
        let granted = ms(&admission["at_ms"]) + waited;
        // Sums of decimals are a rounding off.
        assert!(ms(&tried["at_ms"]) > granted - 0.001, "{shown_trace}");
        return;
    }
    panic!("nobody has waited");
}

#[tokio::test]
async fn a_request_that_is_tried_again_tells_where_it_failed_and_what_was_left() {
    let (first, second) = (
        ScriptedServer::new(&[NO_QUEUE]).await,
        SimulatedServer::fast().await,
    );
    let endpoints = [
        endpoint(first.address, 4),
        format!(
            "{}, priority: 1, backend_model: other",
            endpoint(second.address, 4)
        ),
    ];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200);
    let shown_trace = trace_of(&node, &answer).await;
    assert_eq!(
        kinds(&shown_trace),
        ["admission", "attempt", "admission", "attempt"]
    );
    let step = |at: usize| &shown_trace["steps"][at];
    assert_eq!(step(1)["endpoint"], format!("http://{}", first.address));
    assert_eq!(
        (&step(1)["result"], &step(1)["status"]),
        (&"rejected".into(), &503.into())
    );
    assert!(ms(&step(1)["failed_at_ms"]) >= ms(&step(1)["head_at_ms"]));
    assert_eq!(
        step(1)["retry"],
        json!({
            "allowed": true,
            "why": "another server has a free permit and its latest attempt succeeded",
            "counted": false,
            "pause_ms": null,
            "attempts_left": 2,
            "model_retries_left": 2,
        })
    );
    let candidates = &step(2)["candidates"];
    let seen = |at: usize, name: &str| candidates[at][name].clone();
    assert_eq!(
        [seen(0, "tried_before"), seen(1, "tried_before")],
        [true, false]
    );
    assert_eq!([seen(0, "rank"), seen(1, "rank")], [0, 1]);
    assert_eq!(seen(0, "health"), "degraded");
    assert_eq!(step(3)["endpoint"], format!("http://{}", second.address));
    assert_eq!(
        (&step(3)["model"], &step(3)["result"]),
        (&"other".into(), &"answered".into())
    );
    assert_eq!(step(3)["retry"], Value::Null);
    assert_eq!(shown_trace["outcome"], "completed");
}

#[tokio::test]
async fn a_request_that_may_not_be_tried_again_tells_why() {
    let server = ScriptedServer::closing(&[""]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 502);
    let shown_trace = trace_of(&node, &answer).await;
    let tried = &shown_trace["steps"][1];
    assert_eq!(tried["result"], "connection-lost");
    assert_eq!(tried["connection"], "new");
    assert!(
        ms(&tried["connected_at_ms"]) <= ms(&tried["failed_at_ms"]),
        "{tried}"
    );
    assert_eq!(tried["head_at_ms"], Value::Null);
    assert_eq!(tried["retry"]["allowed"], false);
    assert_eq!(tried["retry"]["why"], "the server may have begun to work");
    assert_eq!(shown_trace["refusal"]["cause"], "upstream-lost");
    assert_eq!(
        (&shown_trace["outcome"], &shown_trace["status"]),
        (&"failed".into(), &502.into())
    );
}

#[tokio::test]
async fn a_refusal_for_want_of_room_tells_what_was_taken() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: fifo, capacity: 1 }\n";
    let node = Node::start(&one_model(server.address, 1, queue)).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;
    for (headers, cause) in [
        ("", "queue-full"),
        ("X-Infergate-Queue: reject\r\n", "busy"),
    ] {
        let refused = node.posting(headers, "").await.answer().await;
        assert_eq!(refused.status, 429);
        let shown_trace = trace_of(&node, &refused).await;
        assert_eq!(kinds(&shown_trace), ["admission"]);
        let admission = &shown_trace["steps"][0];
        assert_eq!(
            (&admission["result"], &admission["cause"]),
            (&"full".into(), &cause.into())
        );
        assert!(admission["retry_after_ms"].is_u64(), "{admission}");
        assert_eq!(admission["waiting"], 1);
        assert_eq!(admission["permits"], json!({ "used": 1, "limit": 1 }));
        assert_eq!(
            admission["candidates"][0]["permits"],
            json!({ "used": 1, "limit": 1 })
        );
        assert_eq!(shown_trace["refusal"]["cause"], cause);
        assert_eq!(shown_trace["refusal"]["reason"], "out_of_capacity");
        assert_eq!(
            (&shown_trace["error_code"], &shown_trace["status"]),
            (&"3040".into(), &429.into())
        );
        assert_eq!(shown_trace["outcome"], "refused");
    }
    for posted in [holder, waiter] {
        server.next();
        assert_eq!(posted.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_is_the_end_of_the_wait() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let late = node.posting("X-Infergate-Timeout-Ms: 100\r\n", "").await;
    let late = late.answer().await;
    assert_eq!(late.status, 408);
    let shown_trace = trace_of(&node, &late).await;
    assert_eq!(shown_trace["deadline"]["from"], "caller");
    assert_eq!(shown_trace["deadline"]["after_ms"], 100);
    assert_eq!(shown_trace["deadline"]["floor_secs"], 30);
    assert_eq!(kinds(&shown_trace), ["admission"]);
    let admission = &shown_trace["steps"][0];
    assert_eq!(
        (&admission["result"], &admission["ended"]),
        (&"queued".into(), &"deadline-passed".into())
    );
    assert!(ms(&shown_trace["queued_ms"]) > 0.0);
    assert_eq!(
        (&shown_trace["outcome"], &shown_trace["status"]),
        (&"cut-by-deadline".into(), &408.into())
    );
    server.next();
    assert_eq!(holder.answer().await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_leaves_its_trace_behind() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await.0;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await.0;
    node.settles(1, 1).await;
    waiter.close();
    let id = |event: &Value| event["request_id"].as_str().unwrap().to_owned();
    let events = node.events(1).await;
    let of_the_waiter = trace(&node, &id(&events[0])).await;
    let admission = &of_the_waiter["steps"][0];
    assert_eq!(
        (&admission["result"], &admission["ended"]),
        (&"queued".into(), &"client-gone".into())
    );
    assert_eq!(of_the_waiter["outcome"], "cut-by-client");
    assert_eq!(of_the_waiter["status"], 0);
    holder.close();
    let events = node.events(2).await;
    let of_the_holder = trace(&node, &id(&events[1])).await;
    let tried = &of_the_holder["steps"][1];
    assert_eq!(
        (&tried["step"], &tried["result"]),
        (&"attempt".into(), &"abandoned".into())
    );
    assert!(
        ms(&tried["sent_at_ms"]) <= ms(&tried["failed_at_ms"]),
        "{tried}"
    );
    assert_eq!(of_the_holder["refusal"]["cause"], "client-gone");
}

#[tokio::test]
async fn a_policy_tells_how_it_ranked_and_from_what() {
    let servers = [SimulatedServer::fast().await, SimulatedServer::fast().await];
    let endpoints: Vec<String> = servers.iter().map(|s| endpoint(s.address, 8)).collect();
    let policy = |name: &str| format!("    plugins: {{ routing: {name} }}\n");
    let node = Node::start(&format!(
        "models:\n{}{}",
        model("m", &endpoints, &policy("latency")),
        model("n", &endpoints, &policy("random"))
    ))
    .await;
    let routing = async |model: &str| {
        let answer = node.post(CHAT, &chat(model, "")).await;
        let shown_trace = trace_of(&node, &answer).await;
        assert_eq!(kinds(&shown_trace), ["routing", "admission", "attempt"]);
        shown_trace["steps"][0].clone()
    };
    // A cached policy is asked once somebody has come.
    let cached = eventually("the policy has been asked", async || {
        let routing = routing("m").await;
        (routing["by"] == "builtin").then_some(routing)
    })
    .await;
    assert_eq!(
        (&cached["policy"], &cached["mode"]),
        (&"latency".into(), &"cached".into())
    );
    let asked = routing("n").await;
    assert_eq!(
        (&asked["policy"], &asked["mode"]),
        (&"random".into(), &"per-request".into())
    );
    for routing in [cached, asked] {
        assert!(routing["ranking_age_ms"].is_u64(), "{routing}");
        let candidates = routing["candidates"].as_array().unwrap();
        assert_eq!(candidates.len(), 2, "{routing}");
        for candidate in candidates {
            assert!(candidate["rank"].is_u64() && candidate["latency_us"].is_u64());
            assert_eq!(candidate["permits"]["limit"], 8);
            assert!(candidate["health"].is_string());
        }
    }
}

#[tokio::test]
async fn neurons_that_were_held_are_told_with_what_became_of_them() {
    let server = SimulatedServer::fast().await;
    let tariff = "    tariff: { cost_per_infer: 6 }\n";
    let config = accounts(", neurons_per_day: 10") + &one_model(server.address, 2, tariff);
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    for _ in 0..2 {
        let answer = node.post_as(key, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200);
        // The next one finds the day settled: the trace comes after that.
        let shown_trace = trace_of(&node, &answer).await;
        assert_eq!(
            (
                &shown_trace["quota"]["settlement"],
                &shown_trace["quota"]["per_day"]
            ),
            (&"settled".into(), &10.into())
        );
        assert!(ms(&shown_trace["quota"]["neurons"]) >= 6.0, "{shown_trace}");
        assert_eq!(shown_trace["refusal"]["cause"], Value::Null);
    }
    // Once the day is spent, nothing is held and no body is read.
    let answer = node.post_as(key, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 429);
    let shown_trace = trace_of(&node, &answer).await;
    assert_eq!(shown_trace["refusal"]["cause"], "quota-used");
    assert_eq!(shown_trace["quota"], Value::Null);
}

#[tokio::test]
async fn a_model_nobody_knows_is_told_by_the_name_that_was_asked_for() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (asked, reported) in [("nobody".to_owned(), 6), ("x".repeat(5000), 128)] {
        let answer = node.post(CHAT, &chat(&asked, "")).await;
        assert_eq!(answer.status, 404);
        let shown_trace = trace_of(&node, &answer).await;
        assert_eq!(shown_trace["model"], Value::Null);
        assert_eq!(
            shown_trace["requested_model"].as_str().unwrap(),
            &asked[..reported]
        );
        assert_eq!(shown_trace["refusal"]["cause"], "no-such-model");
        assert_eq!(shown_trace["deadline"], Value::Null);
    }
}

#[tokio::test]
async fn a_caller_without_a_key_leaves_no_trace() {
    let server = SimulatedServer::fast().await;
    let config = accounts("") + &one_model(server.address, 1, "");
    let node = Node::start(&config).await;
    let refused = node.post(CHAT, &chat("m", "")).await;
    assert_eq!(refused.status, 401);
    let id = refused.header("x-request-id").unwrap();
    assert_eq!(node.get(&format!("/explain/{id}")).await.status, 404);
    assert_eq!(node.get("/explain").await.json(), json!({ "newest": [] }));
}

#[tokio::test]
async fn an_id_that_is_not_known_or_none_at_all_is_a_404_with_advice() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let unknown = node.get("/explain/00000000000000000000000000000000").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.text().contains("event file"), "{}", unknown.text());
    let long = "a".repeat(4000);
    for odd in [
        "",
        "r1",
        "../state",
        "..%2fstate",
        "%2e%2e/%2e%2e/etc/passwd",
        "00000000000000000000000000000000/../../state",
        "0000000000000000000000000000000%00",
        "%0d%0aX-Injected:%20yes",
        "<script>",
        "\"}{\"",
        "'or'1'='1",
        &long,
    ] {
        let answer = node.get(&format!("/explain/{odd}")).await;
        // The parser may refuse what no target may contain; nothing else may happen.
        assert!(
            matches!(answer.status, 400 | 404),
            "{odd}: {}",
            answer.status
        );
        assert_eq!(answer.header("x-injected"), None);
        if answer.status == 404 {
            assert!(
                answer.json()["error"].as_str().unwrap().contains("32 hex"),
                "{odd}"
            );
        }
    }
    assert_eq!(node.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn the_last_requests_are_listed_and_the_first_of_many_is_forgotten() {
    const CLIENTS: usize = 8;
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    let first = node.posting("", "").await.answer().await;
    let first = trace_of(&node, &first).await["request_id"].clone();
    let listed = node.get("/explain").await.json();
    let [line] = listed["newest"].as_array().unwrap().as_slice() else {
        panic!("{listed}");
    };
    assert_eq!(line["request_id"], first);
    assert_eq!(
        (&line["model"], &line["account"]),
        (&"m".into(), &"anonymous".into())
    );
    assert_eq!(
        (&line["status"], &line["outcome"]),
        (&200.into(), &"completed".into())
    );
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let address = node.clients;
        clients.spawn(async move {
            let mut client = TestClient::connect(address).await;
            for _ in 0..infergate::parts::TRACES_KEPT / CLIENTS {
                client.post("", CHAT, &chat("nobody", "")).await;
                assert_eq!(client.response().await.status, 404);
            }
        });
    }
    clients.join_all().await;
    let path = format!("/explain/{}", first.as_str().unwrap());
    eventually("it is overwritten", async || {
        (node.get(&path).await.status == 404).then_some(())
    })
    .await;
    let listed = node.get("/explain").await.json();
    let listed = listed["newest"].as_array().unwrap();
    assert_eq!(listed.len(), 100);
    assert!(listed.iter().all(|line| line["cause"] == "no-such-model"));
}
