//! Jobs of models that run elsewhere: trainings on a trainer, and weights on the servers of their base.
//!
//! Servers are simulated or scripted; requests are those of the Replicate API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use infergate::simulate;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::{
    HandledServer, Node, Reaction, SimulatedServer, TestClient, TestResponse, accounts, endpoint,
    eventually, json_answer,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const KEY_B: &str = "authorization: Bearer key-b\r\n";
const TRAIN: &str = r#"{"destination":"acme/tuned","input":{"epochs":3}}"#;

/// A server of backend `http` with a pause before each answer.
async fn plain_server(ttft_ms: u64, swap_ms: Option<u64>) -> SimulatedServer {
    SimulatedServer::start(simulate::Config {
        dialect: simulate::Dialect::Http,
        task: Some(simulate::Task::DumbPipe),
        ttft_ms,
        swap_ms,
        ..simulate::Config::instant()
    })
    .await
}

/// A model of backend `http` that answers what it is sent.
fn plain(id: &str, more: &str) -> String {
    format!("  - {{ id: {id}, task: dumb-pipe, backend: http, {more} }}\n")
}

fn served(address: SocketAddr, more: &str) -> String {
    format!("endpoints: [{{ {} }}]{more}", endpoint(address, 1))
}

/// `acme/m`, which `acme/t` on this server trains.
fn trained(server: SocketAddr, more: &str, of_trainer: &str) -> String {
    let model = plain("acme/m", &format!("endpoints: [], trainer: acme/t{more}"));
    let trainer = plain("acme/t", &served(server, of_trainer));
    format!("jobs: {{}}\nmodels:\n{model}{trainer}")
}

async fn get(node: &Node, headers: &str, path: &str) -> TestResponse {
    let mut client = node.client().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n{headers}\r\n");
    client.send(request).await;
    client.response().await
}

/// Path of trainings of a model's newest version.
async fn trainings(node: &Node, headers: &str, model: &str) -> String {
    let shown = get(node, headers, &format!("/v1/models/{model}"))
        .await
        .json();
    let version = shown["latest_version"]["id"].as_str().unwrap().to_owned();
    format!("/v1/models/{model}/versions/{version}/trainings")
}

async fn train(node: &Node, headers: &str) -> Value {
    let path = trainings(node, headers, "acme/m").await;
    let created = node.post_as(headers, &path, TRAIN).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

fn path_of(object: &Value) -> String {
    format!("/v1/trainings/{}", object["id"].as_str().unwrap())
}

async fn becomes(node: &Node, headers: &str, path: &str, status: &str) -> Value {
    eventually(status, async || {
        let object = get(node, headers, path).await.json();
        (object["status"] == status).then_some(object)
    })
    .await
}

#[tokio::test]
async fn a_training_runs_on_its_trainer_with_its_destination_and_is_billed_once() {
    let server = plain_server(0, None).await;
    let tariff = ", tariff: { cost_per_infer: 7 }";
    let node = Node::start(&trained(server.address, "", tariff)).await;
    let created = train(&node, "").await;
    assert_eq!(created["status"], "starting");
    assert_eq!(created["model"], "acme/m");
    assert_eq!(created["destination"], "acme/tuned");
    let get_url = created["urls"]["get"].as_str().unwrap();
    assert!(get_url.ends_with(&path_of(&created)), "{get_url}");
    assert!(created["urls"].get("stream").is_none());
    let ended = becomes(&node, "", &path_of(&created), "succeeded").await;
    // The server answers what it was sent.
    let context = json!({
        "destination": "acme/tuned", "model": "acme/m", "version": created["version"],
    });
    assert_eq!(ended["output"], json!({ "epochs": 3, "context": context }));
    let event = node.events(1).await.remove(0);
    assert_eq!(event["job_kind"], "training", "{event}");
    assert_eq!(event["model_id"], "acme/t");
    assert_eq!(event["neurons"], 7.0);
    assert_eq!(
        event["event_id"],
        format!("{}:1", ended["id"].as_str().unwrap())
    );
    assert!(
        event["deployable"].as_str().unwrap().starts_with("vt-"),
        "{event}"
    );
    let list = get(&node, "", "/v1/trainings").await.json();
    assert_eq!(list["results"][0]["id"], created["id"]);
    let predictions = get(&node, "", "/v1/predictions").await.json();
    assert_eq!(predictions["results"], json!([]));
    let id = created["id"].as_str().unwrap();
    let as_prediction = get(&node, "", &format!("/v1/predictions/{id}")).await;
    assert_eq!(as_prediction.status, 404);
    let queue = r#"infergate_jobs_submitted_total{model="acme/t",kind="training",api="replicate"}"#;
    assert_eq!(node.metric(queue).await, Some(1.0));
    node.idle().await;
}

#[tokio::test]
async fn a_training_that_cannot_be_is_refused_and_another_accounts_is_unknown() {
    let server = plain_server(0, None).await;
    let more = plain("acme/plain", &served(server.address, ""));
    let config = format!("{}{}{more}", accounts(""), trained(server.address, "", ""));
    let node = Node::start(&config).await;
    let path = trainings(&node, KEY_A, "acme/m").await;
    let no_trainer = trainings(&node, KEY_A, "acme/plain").await;
    let other_version = format!("/v1/models/acme/m/versions/{}/trainings", "0".repeat(64));
    for (path, body, status, words) in [
        (&no_trainer, TRAIN, 422, "has no trainer"),
        (&path, r#"{"input":{}}"#, 422, "/destination"),
        (
            &path,
            r#"{"destination":"tuned","input":{}}"#,
            404,
            "owner/name",
        ),
        (&path, r#"{"destination":"a/b"}"#, 422, "/input"),
        (&other_version, TRAIN, 404, ""),
        (&path.replace("acme/m", "acme/x"), TRAIN, 404, ""),
    ] {
        let refused = node.post_as(KEY_A, path, body).await;
        assert_eq!(refused.status, status, "{path} {body} {}", refused.text());
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(words), "{detail}");
    }
    let own = train(&node, KEY_A).await;
    assert_eq!(get(&node, KEY_A, &path_of(&own)).await.status, 200);
    assert_eq!(get(&node, KEY_B, &path_of(&own)).await.status, 404);
    let cancel = format!("{}/cancel", path_of(&own));
    assert_eq!(node.post_as(KEY_B, &cancel, "").await.status, 404);
    let list = get(&node, KEY_B, "/v1/trainings").await.json();
    assert_eq!(list["results"], json!([]));
}

#[tokio::test]
async fn trainings_run_one_at_a_time_and_end_by_cancel_and_by_their_own_timeout() {
    let server = plain_server(600_000, None).await;
    let jobs = ", jobs: { predict_timeout_secs: 1, train_timeout_secs: 2 }";
    let node = Node::start(&trained(server.address, jobs, "")).await;
    let first = train(&node, "").await;
    becomes(&node, "", &path_of(&first), "processing").await;
    let second = train(&node, "").await;
    let third = train(&node, "").await;
    let canceled = node.post(&format!("{}/cancel", path_of(&third)), "").await;
    assert_eq!(canceled.json()["status"], "canceled");
    let canceled = node.post(&format!("{}/cancel", path_of(&first)), "").await;
    assert_eq!(canceled.status, 200);
    assert_eq!(canceled.json()["status"], "canceled", "{}", canceled.text());
    let ended = becomes(&node, "", &path_of(&second), "failed").await;
    assert_eq!(ended["infergate"]["reason"], "timeout", "{ended}");
    assert_eq!(server.count("high_water").await, 1);
    let events = node.events(3).await;
    assert!(events.iter().all(|event| event["job_kind"] == "training"));
    node.idle().await;
}

#[tokio::test]
async fn a_training_whose_server_is_lost_is_not_begun_again() {
    let server = HandledServer::by(|_| Reaction::Crash(Duration::ZERO)).await;
    let fallback = plain("acme/f", &served(server.address, ""));
    let config = trained(server.address, "", ", fallbacks: [acme/f]");
    let node = Node::start(&format!("{config}{fallback}")).await;
    let created = train(&node, "").await;
    let ended = becomes(&node, "", &path_of(&created), "failed").await;
    assert_eq!(ended["infergate"]["reason"], "server_lost", "{ended}");
    assert_eq!(server.seen(), 1);
    assert_eq!(node.events(1).await[0]["neurons"], 0.0);
}

async fn change_queue(node: &Node, key: &str, verb: &str) {
    let request =
        format!("POST /jobs/queues/{key}/{verb} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let changed = TestClient::exchange(node.admin, request).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
}

/// A base and models with its weights on one simulated server.
fn on_base(server: SocketAddr, count: usize, more: &str) -> String {
    let base = plain("acme/base", &served(server, more));
    let styles: String = (0..count)
        .map(|n| {
            let base = format!("base: {{ model: acme/base, weights: w-{n} }}");
            plain(&format!("acme/s{n}"), &base)
        })
        .collect();
    format!("jobs: {{}}\nmodels:\n{base}{styles}")
}

#[tokio::test]
async fn weights_of_a_base_are_named_to_the_server_for_jobs_and_live_requests() {
    let server = plain_server(0, None).await;
    let node = Node::start(&on_base(server.address, 2, "")).await;
    let wait = "prefer: wait=30\r\n";
    for (model, weights) in [("s0", Some("w-0")), ("s1", Some("w-1")), ("base", None)] {
        let path = format!("/v1/models/acme/{model}/predictions");
        let body = r#"{"input":{"a":1,"replicate_weights":"mine"}}"#;
        let ended = node.post_as(wait, &path, body).await.json();
        assert_eq!(ended["status"], "succeeded", "{ended}");
        let sent = weights.unwrap_or("mine");
        assert_eq!(ended["output"]["replicate_weights"], sent);
        let live = node
            .post(&format!("/ai/run/acme/{model}"), r#"{"a":1}"#)
            .await;
        let live = live.json();
        assert_eq!(
            live.get("replicate_weights").and_then(Value::as_str),
            weights
        );
    }
    let events = node.events(6).await;
    let jobs: Vec<_> = events
        .iter()
        .filter_map(|event| event["deployable"].as_str())
        .collect();
    assert_eq!(jobs.len(), 3);
    assert!(jobs[0].starts_with("hp-"), "{jobs:?}");
    assert!(jobs.iter().all(|queue| *queue == jobs[0]), "{jobs:?}");
}

#[tokio::test]
async fn weights_are_the_model_of_servers_with_an_openai_interface() {
    let bodies = Arc::new(Mutex::new(Vec::<String>::new()));
    let log = Arc::clone(&bodies);
    let server = HandledServer::by(move |request| {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        log.lock().push(body.to_owned());
        Reaction::Answer(json_answer(
            r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#,
        ))
    })
    .await;
    let text = "task: text-generation, backend: openai";
    let config = format!(
        "jobs: {{}}\nmodels:\n  - {{ id: acme/base, {text}, {} }}\n  \
         - {{ id: acme/s, {text}, base: {{ model: acme/base, weights: w-s }} }}\n",
        served(server.address, "")
    );
    let node = Node::start(&config).await;
    let input = r#"{"input":{"prompt":"x"}}"#;
    for model in ["s", "base"] {
        let path = format!("/v1/models/acme/{model}/predictions");
        let ended = node
            .post_as("prefer: wait=30\r\n", &path, input)
            .await
            .json();
        assert_eq!(ended["status"], "succeeded", "{ended}");
    }
    let chat = r#"{"model":"acme/s","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(node.post("/v1/chat/completions", chat).await.status, 200);
    let models: Vec<Value> = bodies
        .lock()
        .iter()
        .map(|body| serde_json::from_str::<Value>(body).unwrap()["model"].clone())
        .collect();
    assert_eq!(models, ["w-s", "acme/base", "w-s"]);
}

#[tokio::test]
async fn models_on_one_base_take_turns_with_few_exchanges_of_weights() {
    const MODELS: usize = 4;
    const JOBS: usize = 30;
    // Preferred takes in a row after which the least served model is next, and the take that begins them.
    const ROW_MAX: usize = 9;
    // Shares are of time: far longer than a busy machine adds to one job, which would count as service.
    const JOB_TIME: Duration = Duration::from_millis(30);
    let order = Arc::new(Mutex::new(Vec::<usize>::new()));
    let log = Arc::clone(&order);
    let server = HandledServer::by(move |request| {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        let weights = body["replicate_weights"].as_str().unwrap();
        log.lock()
            .push(weights.trim_start_matches("w-").parse().unwrap());
        Reaction::AnswerAfter(JOB_TIME, json_answer("{}"))
    })
    .await;
    let node = Node::start(&on_base(server.address, MODELS, "")).await;
    let key = {
        let created = node
            .post("/v1/models/acme/s0/predictions", r#"{"input":{}}"#)
            .await;
        let id = created.json()["id"].as_str().unwrap().to_owned();
        becomes(&node, "", &format!("/v1/predictions/{id}"), "succeeded").await;
        let event = node.events(1).await.remove(0);
        event["deployable"].as_str().unwrap().to_owned()
    };
    change_queue(&node, &key, "pause").await;
    for _ in 0..JOBS {
        for model in 0..MODELS {
            let path = format!("/v1/models/acme/s{model}/predictions");
            assert_eq!(node.post(&path, r#"{"input":{}}"#).await.status, 201);
        }
    }
    change_queue(&node, &key, "resume").await;
    node.events(1 + MODELS * JOBS).await;
    let order = order.lock().clone();
    assert_eq!(order.len(), 1 + MODELS * JOBS);
    let swaps = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(
        swaps <= MODELS * JOBS.div_ceil(ROW_MAX) + MODELS,
        "{swaps} exchanges: {order:?}"
    );
    let series = format!(r#"infergate_weight_swaps_total{{deployable="{key}"}}"#);
    assert_eq!(node.metric(&series).await, Some(swaps as f64));
    let first_swap = order
        .windows(2)
        .position(|pair| pair[0] != pair[1])
        .unwrap()
        + 1;
    // Events come in the order of ends, and one job runs at a time.
    let event = &node.events(1 + MODELS * JOBS).await[first_swap];
    let trace = node.explain(event["request_id"].as_str().unwrap()).await;
    let steps = trace["steps"].as_array().unwrap();
    assert!(
        steps.iter().any(|step| step["weights_changed"] == true),
        "{trace}"
    );
    // While all wait, none is passed over for longer than the rows of the others.
    for model in 0..MODELS {
        let turns = order.iter().enumerate().filter(|(_, it)| **it == model);
        let turns: Vec<usize> = turns.map(|(at, _)| at).collect();
        let pause = turns
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap();
        assert!(
            pause <= (MODELS - 1) * 2 * ROW_MAX,
            "{model} waits for {pause}: {order:?}"
        );
    }
    node.idle().await;
}

#[tokio::test]
async fn live_requests_and_jobs_of_one_base_never_meet_at_its_server() {
    let server = plain_server(5, Some(5)).await;
    let node = Node::start(&on_base(server.address, 3, "")).await;
    for n in 0..12 {
        let path = format!("/v1/models/acme/s{}/predictions", n % 3);
        assert_eq!(node.post(&path, r#"{"input":{}}"#).await.status, 201);
    }
    for n in 0..12 {
        let live = node
            .post(&format!("/ai/run/acme/s{}", n % 3), r#"{"a":1}"#)
            .await;
        assert_eq!(live.status, 200, "{}", live.text());
    }
    node.events(24).await;
    assert_eq!(server.count("high_water").await, 1);
    assert!(server.count("weight_swaps").await > 0);
    node.idle().await;
}

#[tokio::test]
async fn a_model_that_leaves_its_base_runs_the_jobs_that_wait_on_its_own_servers() {
    let base = plain_server(600_000, None).await;
    let own = plain_server(0, None).await;
    let node = Node::start(&on_base(base.address, 1, "")).await;
    let path = "/v1/models/acme/s0/predictions";
    let running = node.post(path, r#"{"input":{"a":1}}"#).await.json();
    let running = format!("/v1/predictions/{}", running["id"].as_str().unwrap());
    becomes(&node, "", &running, "processing").await;
    let waiting = node.post(path, r#"{"input":{"a":2}}"#).await.json();
    let waiting = format!("/v1/predictions/{}", waiting["id"].as_str().unwrap());
    let base = plain("acme/base", &served(base.address, ""));
    let alone = plain("acme/s0", &served(own.address, ""));
    let config = format!("jobs: {{}}\nmodels:\n{base}{alone}");
    assert_eq!(node.reload(&config).await.status, 200);
    node.post(&format!("{running}/cancel"), "").await;
    let ended = becomes(&node, "", &waiting, "succeeded").await;
    assert_eq!(ended["output"], json!({ "a": 2 }));
    node.idle().await;
}
