//! A request that another node serves is answered, told and billed as if it had been served here.

use infergate::simulate::{self, Dialect};
use serde_json::{Value, json};

use super::{SERVING_NOTHING, edge_before, member, serving, wait_until_serving_known};

use crate::support::{
    Cluster, Node, ScriptedServer, SimulatedServer, TestResponse, accounts, chat, endpoint,
    eventually, model,
};

const CHAT: &str = "/v1/chat/completions";

async fn ask(node: &Node, more: &str) -> TestResponse {
    node.post(CHAT, &chat("m", more)).await
}

/// The trace of an answer, once it is there.
async fn trace(node: &Node, answer: &TestResponse) -> Value {
    let id = answer.header("x-request-id").unwrap().to_owned();
    eventually("the trace of a request", async || {
        let reported = node.get(&format!("/explain/{id}")).await;
        (reported.status == 200).then(|| reported.json())
    })
    .await
}

fn step<'a>(shown_trace: &'a Value, kind: &str) -> &'a Value {
    let steps = shown_trace["steps"].as_array().unwrap();
    let found = steps.iter().find(|step| step["step"] == kind);
    found.unwrap_or_else(|| panic!("a {kind} in {shown_trace:#}"))
}

#[tokio::test]
async fn a_node_without_servers_serves_through_another_and_the_event_is_told_once() {
    let server = SimulatedServer::fast().await;
    let fleet = edge_before(&[&server], 2).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let answer = ask(edge, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = gpu.event_of(&answer).await;
    assert_eq!(event["node"], "gpu0");
    assert_eq!(event["site"], "ams");
    assert_eq!(event["source_site"], "fra");
    assert_eq!(event["path"], json!(["fra/edge", "ams/gpu0"]));
    assert_eq!(event["attempts"], 1);
    assert_eq!(event["account_id"], "anonymous");
    let streamed = ask(edge, r#","stream":true"#).await;
    assert!(streamed.is_event_stream());
    assert!(streamed.text().contains("[DONE]"), "{}", streamed.text());
    assert_eq!(gpu.event_of(&streamed).await["outcome"], "completed");
    gpu.idle().await;
    let reported_twice = std::fs::read_to_string(edge.events_path()).unwrap_or_default();
    assert_eq!(reported_twice, "");
    let forwards = r#"infergate_forwards_total{model="m",result="answered"}"#;
    assert_eq!(edge.metric(forwards).await, Some(2.0));
}

#[tokio::test]
async fn tensors_in_binary_pass_through_another_node() {
    let server = SimulatedServer::start(simulate::Config {
        dialect: Dialect::Triton,
        ..simulate::Config::instant()
    })
    .await;
    let triton = |rest: &str| rest.replace("backend: openai", "backend: triton");
    let edge = member("edge", "fra", &triton(SERVING_NOTHING));
    let gpu = member("gpu0", "ams", &triton(&serving(&[&server], 2)));
    let fleet = Cluster::start(&[edge, gpu]).await;
    wait_until_serving_known(&fleet.nodes[0], "gpu0").await;
    let json = json!({
        "inputs": [{ "name": "INPUT0", "shape": [1], "datatype": "FP32", "parameters": { "binary_data_size": 4 } }],
        "outputs": [{ "name": "OUTPUT0", "parameters": { "binary_data": true } }],
    })
    .to_string();
    let tensor = [0_u8, 0x80, 0xff, 0x42];
    let head = format!(
        "POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: {}\r\n\
         Content-Length: {}\r\n\r\n{json}",
        json.len(),
        json.len() + tensor.len()
    );
    let mut client = fleet.nodes[0].client().await;
    client.send([head.as_bytes(), &tensor].concat()).await;
    let answer = client.response().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let length = answer.header("inference-header-content-length").unwrap();
    assert_eq!(&answer.body[length.parse().unwrap()..], tensor);
}

#[tokio::test]
async fn what_a_full_node_cannot_take_goes_next_door_and_the_trace_shows_all_of_it() {
    let (slow, fast) = (
        SimulatedServer::taking(60_000).await,
        SimulatedServer::fast().await,
    );
    let a = member("a", "fra", &serving(&[&slow], 1));
    let b = member("b", "fra", &serving(&[&fast], 2));
    let fleet = Cluster::start(&[a, b]).await;
    let (here, there) = (&fleet.nodes[0], &fleet.nodes[1]);
    wait_until_serving_known(here, "b").await;
    let _held = here.posting("", "").await;
    here.settles(1, 0).await;
    let answer = ask(here, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        there.event_of(&answer).await["path"],
        json!(["fra/a", "fra/b"])
    );

    let reported = trace(here, &answer).await;
    assert_eq!(
        step(&reported, "admission")["result"],
        "queued",
        "{reported:#}"
    );
    assert_eq!(step(&reported, "admission")["ended"], "forwarded");
    let look = step(&reported, "peer_selection");
    assert_eq!(
        (&look["need"], &look["chosen"]),
        (&json!("permit"), &json!("b"))
    );
    assert_eq!(look["nodes"][0]["node"], "b");
    let forward = step(&reported, "forward");
    assert_eq!(
        (&forward["node"], &forward["result"]),
        (&json!("b"), &json!("answered"))
    );
    let elsewhere = &reported["nodes"]["b"];
    assert_eq!(elsewhere["forwarded_by"], "a", "{reported:#}");
    assert_eq!(step(elsewhere, "admission")["result"], "leased");
    assert_eq!(step(elsewhere, "attempt")["result"], "answered");
}

#[tokio::test]
async fn who_waits_here_goes_as_soon_as_another_node_has_a_permit() {
    let (never, once) = (ScriptedServer::held().await, ScriptedServer::held().await);
    let one = |server: &ScriptedServer| {
        let endpoints = [endpoint(server.address, 1)];
        format!("models:\n{}", model("m", &endpoints, ""))
    };
    let (a, b) = (
        member("a", "fra", &one(&never)),
        member("b", "fra", &one(&once)),
    );
    let fleet = Cluster::start(&[a, b]).await;
    let (here, there) = (&fleet.nodes[0], &fleet.nodes[1]);
    wait_until_serving_known(here, "b").await;
    let _held = here.posting("", "").await;
    here.settles(1, 0).await;
    let busy = there.posting("", "").await;
    there.settles(1, 0).await;
    eventually("it is known that the other one is busy", async || {
        let no_wait = "x-infergate-queue: reject\r\n";
        let refused = here.post_as(no_wait, CHAT, &chat("m", "")).await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        let reported = trace(here, &refused).await;
        let look = step(&reported, "peer_selection");
        (look["chosen"].is_null() && look["nodes"][0]["free"] == 0).then_some(())
    })
    .await;
    let waiting = here.posting("", "").await;
    here.settles(1, 1).await;
    once.next();
    assert_eq!(busy.answer().await.status, 200);
    once.next();
    let answer = waiting.answer().await;
    let reported = trace(here, &answer).await;
    assert_eq!(answer.status, 200, "{reported:#}");
    let mut steps = reported["steps"].as_array().unwrap().iter();
    let waited = steps.rfind(|step| step["step"] == "admission").unwrap();
    assert_eq!(waited["ended"], "forwarded", "{reported:#}");
    assert_eq!(
        there.event_of(&answer).await["path"],
        json!(["fra/a", "fra/b"])
    );
    assert_eq!(never.requests().len(), 1);
}

#[tokio::test]
async fn where_no_node_has_room_the_client_is_told_3040_and_the_event_is_of_the_node_it_asked() {
    let server = SimulatedServer::taking(60_000).await;
    let no_line = serving(&[&server], 1).replace(
        "    endpoints:",
        "    queue: { capacity: 0, total_capacity: 0 }\n    endpoints:",
    );
    let members = [
        member("edge", "fra", super::SERVING_NOTHING),
        member("gpu0", "ams", &no_line),
    ];
    let fleet = Cluster::start(&members).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    wait_until_serving_known(edge, "gpu0").await;
    let _held = edge.posting("", "").await;
    gpu.settles(1, 0).await;
    let answer = ask(edge, "").await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "out_of_capacity");
    let event = edge.event_of(&answer).await;
    assert_eq!(
        (&event["error_code"], &event["attempts"]),
        (&json!("3040"), &json!(0))
    );
    assert_eq!(
        std::fs::read_to_string(gpu.events_path()).unwrap_or_default(),
        ""
    );
}

#[tokio::test]
async fn a_client_that_leaves_is_felt_at_the_node_that_works_for_it() {
    let server = SimulatedServer::taking(60_000).await;
    let fleet = edge_before(&[&server], 2).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let leaving = edge.posting("", r#","stream":true"#).await;
    gpu.settles(1, 0).await;
    leaving.0.close();
    gpu.settles(0, 0).await;
    let event = edge.events(1).await.remove(0);
    assert_eq!(event["outcome"], "cut-by-client");
    assert_eq!(
        std::fs::read_to_string(gpu.events_path()).unwrap_or_default(),
        ""
    );
}

#[tokio::test]
async fn the_deadline_is_one_over_both_hops_and_told_by_the_node_that_works() {
    let server = SimulatedServer::taking(60_000).await;
    let fleet = edge_before(&[&server], 2).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let line = |node: &Node, id: &str| {
        let text = std::fs::read_to_string(node.events_path()).unwrap_or_default();
        let line = text.lines().find(|line| line.contains(id))?;
        serde_json::from_str::<Value>(line).ok()
    };
    // The node before it waits a tenth of a second for its word and then tells the client itself: on a
    // machine that stalls that long it is asked again.
    let (answer, event) = eventually("the node that works has told in time", async || {
        let wish = "x-infergate-timeout-ms: 2000\r\n";
        let answer = edge.post_as(wish, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 408, "{}", answer.text());
        let id = answer.header("x-request-id").unwrap();
        let reported = eventually("a node has told", async || {
            let gpu = line(gpu, id).map(|event| (true, event));
            gpu.or_else(|| Some((false, line(edge, id)?)))
        });
        let (by_gpu, event) = reported.await;
        by_gpu.then_some((answer, event))
    })
    .await;
    gpu.settles(0, 0).await;
    assert_eq!(event["outcome"], "cut-by-deadline");
    // Counted from the client's request on, at both nodes; the server takes a minute.
    let took_ms = event["request_time_ms"].as_f64().unwrap();
    // What is left goes along in whole milliseconds, rounded down.
    assert!((1_990.0..20_000.0).contains(&took_ms), "{event:#}");
    let reported_twice = line(edge, answer.header("x-request-id").unwrap());
    assert!(reported_twice.is_none(), "{reported_twice:?}");
}

#[tokio::test]
async fn servers_that_fail_at_one_node_are_made_up_for_by_another() {
    let bad = ScriptedServer::new(&["HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"]).await;
    let good = SimulatedServer::fast().await;
    let of = |address| format!("models:\n{}", model("m", &[endpoint(address, 4)], ""));
    let members = [
        member("edge", "fra", super::SERVING_NOTHING),
        member("gpu0", "ams", &of(bad.address)),
        member("gpu1", "ams", &of(good.address)),
    ];
    let fleet = Cluster::start(&members).await;
    let edge = &fleet.nodes[0];
    for name in ["gpu0", "gpu1"] {
        wait_until_serving_known(edge, name).await;
    }
    // Of two nodes with as many free permits either may be asked. No more than one request fails at the
    // one: a retry is allowed for it however few requests there are.
    let (answer, event) = eventually("the node whose servers fail was asked", async || {
        let answer = ask(edge, "").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let event = fleet.nodes[2].event_of(&answer).await;
        assert_eq!(event["node"], "gpu1");
        (!bad.requests().is_empty()).then_some((answer, event))
    })
    .await;
    assert!(event["attempts"].as_u64() >= Some(2), "{event:#}");
    let reported = trace(edge, &answer).await;
    let forward = step(&reported, "forward");
    assert_eq!(
        (&forward["node"], &forward["result"]),
        (&json!("gpu0"), &json!("failed")),
        "{reported:#}"
    );
}

#[tokio::test]
async fn large_bodies_other_faces_and_refusals_of_servers_pass_through_both_nodes() {
    let server = SimulatedServer::fast().await;
    let fleet = edge_before(&[&server], 4).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let long = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "x".repeat(1_000_000)
    );
    assert_eq!(edge.post(CHAT, &long).await.status, 200);
    let prompt = r#"{"prompt":"hi"}"#;
    let answer = edge.post("/ai/run/m", prompt).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["success"], true);
    let streamed = edge
        .post("/ai/run/m", r#"{"prompt":"hi","stream":true}"#)
        .await;
    assert!(streamed.text().contains("[DONE]"), "{}", streamed.text());
    server.fault(r#"{"fault":"status=400"}"#).await;
    let refused = ask(edge, "").await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    let event = gpu.event_of(&refused).await;
    assert_eq!(event["outcome"], "completed", "the server has answered");
}

#[tokio::test]
async fn neurons_are_priced_where_they_are_made_and_count_where_the_account_asks() {
    let server = SimulatedServer::fast().await;
    let tariff = |neurons: &str| {
        format!("    tariff: {{ cost_per_infer: {neurons}, coefficients: {{}} }}\n")
    };
    let nothing = |id: &str, neurons: &str| {
        let tariff = tariff(neurons);
        format!(
            "  - id: {id}\n    task: text-generation\n    backend: openai\n{tariff}    endpoints: []\n"
        )
    };
    // What nobody serves and costs nothing: asking for it shows how the account stands.
    let edge = format!(
        "models:\n{}{}",
        nothing("m", "10.0"),
        nothing("free", "0.0")
    );
    let endpoints = [endpoint(server.address, 4)];
    let gpu = format!("models:\n{}", model("m", &endpoints, &tariff("10.0")));
    let of_day = accounts(", neurons_per_day: 25");
    let fleet = Cluster::start(&[
        member("edge", "fra", &format!("{of_day}{edge}")),
        member("gpu0", "ams", &format!("{of_day}{gpu}")),
    ])
    .await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    wait_until_serving_known(edge, "gpu0").await;
    let key = "authorization: Bearer key-a\r\n";
    // One connection: what a request held is given back before the next one is read.
    let mut client = edge.client().await;
    for more in [r#","stream":true"#, "", ""] {
        client.post(key, CHAT, &chat("m", more)).await;
        let answer = client.response().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let event = gpu.event_of(&answer).await;
        assert_eq!(
            (&event["account_id"], &event["neurons"]),
            (&json!("a"), &json!(10.0))
        );
    }
    client.close();
    eventually("the edge has heard what was used elsewhere", async || {
        let looking = format!("{key}x-infergate-queue: reject\r\n");
        let refused = edge.post_as(&looking, CHAT, &chat("free", "")).await;
        (refused.json()["error"]["code"] == "insufficient_quota").then_some(())
    })
    .await;
    let refused = edge.post_as(key, CHAT, &chat("m", "")).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "insufficient_quota");
    assert_eq!(server.count("served").await, 3);
    let other = "authorization: Bearer key-b\r\n";
    assert_eq!(edge.post_as(other, CHAT, &chat("m", "")).await.status, 200);
}

#[tokio::test]
async fn a_ladder_goes_on_at_nodes_that_had_no_room_for_the_model_above() {
    let (slow, fast) = (
        SimulatedServer::taking(60_000).await,
        SimulatedServer::fast().await,
    );
    let no_line = "    queue: { capacity: 0, total_capacity: 0 }\n";
    let nothing = |id: &str, more: &str| {
        format!(
            "  - id: {id}\n    task: text-generation\n    backend: openai\n{more}    endpoints: []\n"
        )
    };
    let edge = format!(
        "models:\n{}{}",
        nothing("m", "    fallbacks: [n]\n"),
        nothing("n", "")
    );
    let gpu = format!(
        "models:\n{}{}",
        model("m", &[endpoint(slow.address, 1)], no_line),
        model("n", &[endpoint(fast.address, 1)], no_line)
    );
    let fleet = Cluster::start(&[member("edge", "fra", &edge), member("gpu0", "ams", &gpu)]).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    eventually("both models are known", async || {
        let state = edge.state().await;
        (state["nodes"][0]["models"] == 2).then_some(())
    })
    .await;
    let _held = edge.posting("", "").await;
    gpu.settles(1, 0).await;
    let answer = ask(edge, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-infergate-model"), Some("n"));
    let event = gpu.event_of(&answer).await;
    assert_eq!(
        (&event["model_id"], &event["asked_model_id"]),
        (&json!("n"), &json!("m"))
    );
}

#[tokio::test]
async fn a_forwarded_request_is_priced_by_the_tariff_of_the_node_that_its_client_asked() {
    let server = SimulatedServer::fast().await;
    let tariff = |rest: &str| format!("    tariff: {{ {rest} }}\n");
    let at_edge = |id: &str, tariff: &str| {
        format!(
            "  - id: {id}\n    task: text-generation\n    backend: openai\n{tariff}    endpoints: []\n"
        )
    };
    let here = |id: &str, tariff: &str| model(id, &[endpoint(server.address, 4)], tariff);
    let edge = [
        at_edge(
            "m",
            &tariff("cost_per_infer: 3, criteria: { grade: größer }"),
        ),
        at_edge("free", ""),
        at_edge(
            "cut",
            &tariff("cost_per_infer: 2, coefficients: { output_tokens: 0.5 }"),
        ),
    ];
    let gpu = [
        here("m", &tariff("cost_per_infer: 100")),
        here("free", &tariff("cost_per_infer: 100")),
        here("cut", ""),
    ];
    let fleet = Cluster::start(&[
        member("edge", "fra", &format!("models:\n{}", edge.concat())),
        member("gpu0", "ams", &format!("models:\n{}", gpu.concat())),
    ])
    .await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    eventually("what the other node serves is known", async || {
        (edge.state().await["nodes"][0]["models"] == 3).then_some(())
    })
    .await;
    for (name, more, neurons) in [
        ("m", "", json!(3.0)),
        ("m", r#","stream":true"#, json!(3.0)),
        ("free", "", Value::Null),
        ("cut", r#","max_tokens":8"#, json!(6.0)),
        ("cut", r#","max_tokens":8,"stream":true"#, json!(6.0)),
    ] {
        let answer = edge.post(CHAT, &chat(name, more)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let event = gpu.event_of(&answer).await;
        assert_eq!(event["neurons"], neurons, "{name} {more}: {event}");
        // Who asks the other node itself pays what that one takes.
        let direct = gpu.post(CHAT, &chat(name, more)).await;
        let event = gpu.event_of(&direct).await;
        let own = if name == "cut" {
            Value::Null
        } else {
            json!(100.0)
        };
        assert_eq!(event["neurons"], own, "{name} {more}");
    }
}

#[tokio::test]
async fn tokens_of_what_another_node_serves_count_at_the_node_that_was_asked() {
    let server = SimulatedServer::fast().await;
    let limited = accounts(", tokens_per_minute: 600");
    let gpu = serving(&[&server], 4);
    let nothing = "models:\n  - { id: m, task: text-generation, backend: openai, endpoints: [] }\n";
    let fleet = Cluster::start(&[
        member("edge", "fra", &format!("{limited}{nothing}")),
        member("gpu0", "ams", &format!("{limited}{gpu}")),
    ])
    .await;
    let edge = &fleet.nodes[0];
    wait_until_serving_known(edge, "gpu0").await;
    let key = "authorization: Bearer key-a\r\n";
    let mut statuses = Vec::new();
    // Each is expected to use 258 tokens, and ten come back in a second.
    for _ in 0..20 {
        statuses.push(edge.post_as(key, CHAT, &chat("m", "")).await.status);
    }
    assert_eq!(statuses[0], 200, "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn a_full_server_is_asked_again_after_a_pause_where_no_other_node_has_room() {
    let server = SimulatedServer::fast().await;
    let retries = "    out_of_capacity_retries: 2\n";
    let config = model("m", &[endpoint(server.address, 2)], retries);
    let fleet = Cluster::start(&[
        member("gpu", "fra", &format!("models:\n{config}")),
        member("edge", "ams", SERVING_NOTHING),
    ])
    .await;
    let gpu = &fleet.nodes[0];
    server.fault(r#"{"fault":"status=429","count":2}"#).await;
    let answer = ask(gpu, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = gpu.event_of(&answer).await;
    assert_eq!(event["attempts"], 3, "{event}");
    assert!(event["queuing_time_ms"].as_u64() >= Some(1500), "{event}");
    assert_eq!(event["path"], json!(["fra/gpu"]));
}

#[tokio::test]
async fn a_job_is_worked_on_at_the_node_that_has_stored_it_or_refused_there() {
    let (refusing, server) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    refusing.fault(r#"{"fault":"status=503"}"#).await;
    let serving = |server: &SimulatedServer| {
        let spec = model("m", &[endpoint(server.address, 2)], "");
        format!("jobs: {{}}\nmodels:\n{}", spec.replace("id: m", "id: a/m"))
    };
    let none = format!(
        "jobs: {{}}\n{}",
        SERVING_NOTHING.replace("id: m", "id: a/m")
    );
    let fleet = Cluster::start(&[
        member("edge", "fra", &none),
        member("full", "fra", &serving(&refusing)),
        member("gpu0", "ams", &serving(&server)),
    ])
    .await;
    let (edge, full) = (&fleet.nodes[0], &fleet.nodes[1]);
    wait_until_serving_known(edge, "gpu0").await;
    wait_until_serving_known(full, "gpu0").await;
    let (path, input) = (
        "/v1/models/a/m/predictions",
        r#"{"input":{"prompt":"hello"}}"#,
    );
    let refused = edge.post(path, input).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("this node has no server"));
    let created = full.post(path, input).await;
    assert_eq!(created.status, 201, "{}", created.text());
    eventually("its own server was asked", async || {
        (refusing.count("faulted").await > 0).then_some(())
    })
    .await;
    refusing.fault(r#"{"fault":null}"#).await;
    let event = full.events(1).await.remove(0);
    let id = created.json()["id"].clone();
    assert_eq!(
        (&event["job_id"], &event["outcome"]),
        (&id, &json!("completed"))
    );
    assert_eq!(server.count("served").await, 0);
}
