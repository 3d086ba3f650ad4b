//! Deployments through the Replicate API: made, shown, changed, removed, and their queues beside the model's.
//!
//! Jobs themselves are in `jobs`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::{
    HandledServer, Node, Reaction, ScriptedServer, SimulatedServer, TestResponse, accounts,
    endpoint, eventually, json_answer, model,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const KEY_B: &str = "authorization: Bearer key-b\r\n";
const INPUT: &str = r#"{"input":{"prompt":"hello"}}"#;
const ANSWER: &str = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

fn with_jobs(server: std::net::SocketAddr, permits: u32, rest: &str) -> String {
    let model = model("acme/m", &[endpoint(server, permits)], "");
    format!("jobs: {{}}\n{rest}models:\n{model}")
}

async fn ask(node: &Node, key: &str, method: &str, path: &str, body: &Value) -> TestResponse {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let mut client = node.client().await;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: h\r\n{key}content-length: {length}\r\n");
    client.send(format!("{head}\r\n{body}")).await;
    client.response().await
}

async fn get(node: &Node, key: &str, path: &str) -> TestResponse {
    ask(node, key, "GET", path, &Value::Null).await
}

fn names(list: &TestResponse) -> Vec<String> {
    let list = list.json();
    let results = list["results"].as_array().unwrap().iter();
    let name = |it: &Value| format!("{}/{}", it["owner"], it["name"]).replace('"', "");
    results.map(name).collect()
}

async fn create(node: &Node, key: &str, path: &str, body: &str) -> Value {
    let created = node.post_as(key, path, body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

async fn job_becomes(node: &Node, key: &str, id: &Value, status: &str) -> Value {
    let path = format!("/v1/predictions/{}", id.as_str().unwrap());
    eventually(status, async || {
        let object = get(node, key, &path).await.json();
        (object["status"] == status).then_some(object)
    })
    .await
}

#[tokio::test]
async fn an_account_makes_changes_and_removes_as_many_as_it_may_and_they_outlast_a_restart() {
    let server = SimulatedServer::fast().await;
    let accounts = accounts(", deployments_max: 2");
    let hardware = "hardware: [{ sku: a100, name: A100 }, { sku: h100, name: H100 }]\n";
    let config = with_jobs(server.address, 2, &format!("{accounts}{hardware}"));
    let mut node = Node::start(&config).await;
    let path = "/v1/deployments";
    let body = |name: &str| json!({ "name": name, "model": "acme/m", "min_instances": 0, "max_instances": 3 });
    let refused = ask(&node, KEY_B, "POST", path, &body("x")).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("deployments_max"));
    let made = ask(&node, KEY_A, "POST", path, &body("x")).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    let release = &made["current_release"];
    assert_eq!((&made["owner"], &made["name"]), (&json!("a"), &json!("x")));
    assert_eq!(release["number"], 1);
    assert_eq!(release["model"], "acme/m");
    assert_eq!(release["version"].as_str().unwrap().len(), 64);
    assert_eq!(
        release["configuration"],
        json!({ "hardware": "a100", "min_instances": 0, "max_instances": 3 })
    );
    assert_eq!(
        ask(&node, KEY_A, "POST", path, &body("x")).await.status,
        409
    );
    assert_eq!(
        ask(&node, KEY_A, "POST", path, &body("y")).await.status,
        201
    );
    assert_eq!(
        ask(&node, KEY_A, "POST", path, &body("z")).await.status,
        403
    );
    for (wrong, status) in [
        (json!({ "name": "w" }), 422),
        (json!({ "name": "w", "model": "acme/none" }), 422),
        (
            json!({ "name": "w", "model": "acme/m", "hardware": "cpu" }),
            422,
        ),
        (
            json!({ "name": "w", "model": "acme/m", "version": "0".repeat(64) }),
            422,
        ),
        (
            json!({ "name": "w", "model": "acme/m", "min_instances": 9 }),
            422,
        ),
        (json!([]), 400),
    ] {
        let refused = ask(&node, KEY_A, "POST", path, &wrong).await;
        assert_eq!(refused.status, status, "{wrong}: {}", refused.text());
    }
    let one = "/v1/deployments/a/x";
    let moved = ask(&node, KEY_A, "PATCH", one, &json!({ "model": "acme/n" })).await;
    assert_eq!(moved.status, 422, "{}", moved.text());
    let change = json!({ "hardware": "h100", "max_instances": 5 });
    for method in ["GET", "PATCH", "DELETE"] {
        assert_eq!(ask(&node, KEY_B, method, one, &change).await.status, 404);
    }
    let changed = ask(&node, KEY_A, "PATCH", one, &change).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(changed.json()["current_release"]["number"], 2);
    node.signal("KILL");
    node.ended().await;
    node.start_again().await;
    let shown = get(&node, KEY_A, one).await.json();
    assert_eq!(shown, changed.json());
    assert_eq!(names(&get(&node, KEY_A, path).await), ["a/x", "a/y"]);
    assert!(names(&get(&node, KEY_B, path).await).is_empty());
    let predictions = "/v1/deployments/a/x/predictions";
    let job = create(&node, KEY_A, predictions, INPUT).await;
    assert_eq!(job["deployment"], "a/x");
    job_becomes(&node, KEY_A, &job["id"], "succeeded").await;
    assert_eq!(node.post_as(KEY_B, predictions, INPUT).await.status, 404);
    let removed = ask(&node, KEY_A, "DELETE", one, &Value::Null).await;
    assert_eq!((removed.status, removed.text()), (204, String::new()));
    assert_eq!(get(&node, KEY_A, one).await.status, 404);
    assert_eq!(node.post_as(KEY_A, predictions, INPUT).await.status, 404);
    assert_eq!(
        ask(&node, KEY_A, "POST", path, &body("z")).await.status,
        201
    );
}

#[tokio::test]
async fn a_configured_one_is_its_accounts_alone_and_changed_by_none() {
    let server = SimulatedServer::fast().await;
    let accounts = accounts(", deployments_max: 5");
    let deployments = "deployments:\n  - { id: acme/prod, model: acme/m, allowed_accounts: [a] }\n  \
                       - { id: acme/all, model: acme/m }\n";
    let node = Node::start(&with_jobs(
        server.address,
        2,
        &format!("{accounts}{deployments}"),
    ))
    .await;
    assert_eq!(
        names(&get(&node, KEY_A, "/v1/deployments").await),
        ["acme/prod", "acme/all"]
    );
    assert_eq!(
        names(&get(&node, KEY_B, "/v1/deployments").await),
        ["acme/all"]
    );
    let predictions = "/v1/deployments/acme/prod/predictions";
    let waiting = format!("{KEY_A}prefer: wait=30\r\n");
    let job = create(&node, &waiting, predictions, INPUT).await;
    assert_eq!(
        (&job["status"], &job["deployment"]),
        (&json!("succeeded"), &json!("acme/prod"))
    );
    assert_eq!(node.post_as(KEY_B, predictions, INPUT).await.status, 404);
    for method in ["PATCH", "DELETE"] {
        let change = json!({ "max_instances": 2 });
        let refused = ask(&node, KEY_A, method, "/v1/deployments/acme/prod", &change).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(
            refused.json()["detail"]
                .as_str()
                .unwrap()
                .contains("configuration")
        );
    }
    let events = node.events(1).await;
    assert!(events[0]["deployable"].as_str().unwrap().starts_with("dp-"));
    let queues = node.get("/jobs/queues").await.text();
    assert!(queues.contains("dp-"), "{queues}");
}

#[tokio::test]
async fn what_waits_for_a_removed_one_fails_and_what_runs_goes_on() {
    let server = ScriptedServer::held().await;
    let accounts = accounts(", deployments_max: 1");
    let node = Node::start(&with_jobs(server.address, 1, &accounts)).await;
    let body = json!({ "name": "x", "model": "acme/m" });
    assert_eq!(
        ask(&node, KEY_A, "POST", "/v1/deployments", &body)
            .await
            .status,
        201
    );
    let predictions = "/v1/deployments/a/x/predictions";
    let running = create(&node, KEY_A, predictions, INPUT).await;
    job_becomes(&node, KEY_A, &running["id"], "processing").await;
    let waiting = create(&node, KEY_A, predictions, INPUT).await;
    let removed = ask(&node, KEY_A, "DELETE", "/v1/deployments/a/x", &Value::Null).await;
    assert_eq!(removed.status, 204);
    let failed = job_becomes(&node, KEY_A, &waiting["id"], "failed").await;
    assert_eq!(failed["infergate"]["reason"], "model_removed");
    job_becomes(&node, KEY_A, &running["id"], "processing").await;
}

#[tokio::test]
async fn the_queues_of_a_model_take_turns_by_permit_time() {
    const LONGS: usize = 8;
    const SHORTS: usize = 40;
    let started = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&started);
    let server = HandledServer::by(move |request| {
        let (kind, work) = match request {
            it if it.contains("long job") => ("long", 300),
            it if it.contains("short job") => ("short", 30),
            _ => ("first", 1500),
        };
        seen.lock().push(kind);
        Reaction::AnswerAfter(Duration::from_millis(work), json_answer(ANSWER))
    })
    .await;
    let deployments = "deployments: [{ id: acme/d, model: acme/m }]\n";
    let node = Node::start(&with_jobs(server.address, 1, deployments)).await;
    let own = "/v1/models/acme/m/predictions";
    create(&node, "", own, INPUT).await;
    for _ in 0..LONGS {
        create(&node, "", own, r#"{"input":{"prompt":"long job"}}"#).await;
    }
    let deployed = "/v1/deployments/acme/d/predictions";
    for _ in 0..SHORTS {
        create(&node, "", deployed, r#"{"input":{"prompt":"short job"}}"#).await;
    }
    eventually("every job has started", async || {
        (started.lock().len() == 1 + LONGS + SHORTS).then_some(())
    })
    .await;
    let started = started.lock();
    let mut longs = started
        .iter()
        .enumerate()
        .filter(|(_, kind)| **kind == "long");
    let (last_long, _) = longs.nth(LONGS - 1).unwrap();
    let shorts = started[..last_long].iter().filter(|kind| **kind == "short");
    // By turns of one job each there were as many of either.
    assert!(shorts.count() >= 2 * LONGS, "{started:?}");
}

#[tokio::test]
async fn versions_and_hardware_are_those_of_the_configuration() {
    let server = SimulatedServer::fast().await;
    let (newest, older) = ("a".repeat(64), "b".repeat(64));
    let versions = format!("    versions: [\"{newest}\", \"{older}\"]\n");
    let model = model("acme/m", &[endpoint(server.address, 2)], &versions);
    let hardware = "hardware: [{ sku: a100, name: A100 }]\n";
    let deployments =
        format!("deployments: [{{ id: acme/old, model: acme/m, version: \"{older}\" }}]\n");
    let node = Node::start(&format!(
        "jobs: {{}}\n{hardware}{deployments}models:\n{model}"
    ))
    .await;
    let shown = get(&node, "", "/v1/hardware").await.json();
    assert_eq!(shown, json!([{ "name": "A100", "sku": "a100" }]));
    for (named, expected) in [
        (newest.clone(), &newest),
        (older.clone(), &older),
        (format!("acme/m:{older}"), &older),
        ("acme/m".to_owned(), &newest),
    ] {
        let body = json!({ "version": named, "input": { "prompt": "x" } });
        let job = create(&node, "", "/v1/predictions", &body.to_string()).await;
        assert_eq!(job["version"], json!(expected), "{named}");
    }
    let job = create(&node, "", "/v1/deployments/acme/old/predictions", INPUT).await;
    assert_eq!(job["version"], json!(older));
    let known = get(&node, "", "/v1/models/acme/m/versions").await.json();
    assert_eq!(known["results"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_list_of_models_is_that_of_both_apis() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "")).await;
    let list = get(&node, "", "/v1/models").await.json();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"]),
        (&json!("list"), &json!("acme/m"))
    );
    let model = &list["results"][0];
    assert_eq!(
        (&model["owner"], &model["name"]),
        (&json!("acme"), &json!("m"))
    );
    assert_eq!(model["url"], "http://h/v1/models/acme/m");
    assert!(list["next"].is_null());
    let schemas = &model["latest_version"]["openapi_schema"]["components"]["schemas"];
    assert!(schemas["Input"]["properties"]["prompt"].is_object());
    let without = with_jobs(server.address, 2, "").replace("jobs: {}\n", "");
    let node = Node::start(&without).await;
    let list = get(&node, "", "/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "acme/m");
    assert!(list.get("results").is_none());
}

#[tokio::test]
async fn what_waits_for_the_former_model_of_one_fails() {
    let (server, other) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let models = format!(
        "{}{}",
        model("acme/m", &[endpoint(server.address, 1)], ""),
        model("acme/n", &[endpoint(other.address, 1)], ""),
    );
    let config = |model: &str| {
        format!("jobs: {{}}\ndeployments: [{{ id: acme/d, model: {model} }}]\nmodels:\n{models}")
    };
    let node = Node::start(&config("acme/m")).await;
    let predictions = "/v1/deployments/acme/d/predictions";
    let running = create(&node, "", predictions, INPUT).await;
    job_becomes(&node, "", &running["id"], "processing").await;
    let waiting = create(&node, "", predictions, INPUT).await;
    let reloaded = node.reload(&config("acme/n")).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let failed = job_becomes(&node, "", &waiting["id"], "failed").await;
    assert_eq!(failed["infergate"]["reason"], "model_removed");
    let next = create(&node, "", predictions, INPUT).await;
    assert_eq!(next["model"], "acme/n");
    job_becomes(&node, "", &next["id"], "succeeded").await;
    job_becomes(&node, "", &running["id"], "processing").await;
}
