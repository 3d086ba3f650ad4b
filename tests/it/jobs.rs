//! Durable jobs: what was accepted reaches one end, through kills, cancels, deadlines and drains.
//!
//! Requests are those of the Replicate API; servers are scripted or simulated.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use infergate::simulate;
use serde_json::{Value, json};

use crate::support::{
    HandledServer, Node, Reaction, ScriptedServer, SimulatedServer, accounts, endpoint, eventually,
    json_answer, model, one_model,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const KEY_B: &str = "authorization: Bearer key-b\r\n";
const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
const INPUT: &str = r#"{"input":{"prompt":"hello"}}"#;
const TARIFF: &str = "    tariff: { coefficients: { input_tokens: 1, output_tokens: 2 } }\n";

/// A configuration with jobs and the model `acme/m` on one server.
fn with_jobs(server: std::net::SocketAddr, permits: u32, jobs: &str, more: &str) -> String {
    let model = model("acme/m", &[endpoint(server, permits)], more);
    format!("jobs: {{ {jobs} }}\nmodels:\n{model}")
}

async fn create(node: &Node, headers: &str, body: &str) -> Value {
    let created = node.post_as(headers, PREDICTIONS, body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

async fn show(node: &Node, headers: &str, id: &str) -> crate::support::TestResponse {
    let mut client = node.client().await;
    let request = format!("GET /v1/predictions/{id} HTTP/1.1\r\nhost: h\r\n{headers}\r\n");
    client.send(request).await;
    client.response().await
}

/// The object of a job once it has ended.
async fn ended(node: &Node, id: &str) -> Value {
    eventually("the job ends", async || {
        let object = show(node, "", id).await.json();
        let is_over = object["completed_at"].is_string();
        is_over.then_some(object)
    })
    .await
}

async fn status_becomes(node: &Node, id: &str, status: &str) {
    eventually(status, async || {
        let object = show(node, "", id).await.json();
        (object["status"] == status).then_some(())
    })
    .await;
}

fn id_of(object: &Value) -> &str {
    object["id"].as_str().unwrap()
}

#[tokio::test]
async fn a_prediction_is_created_waited_for_shown_and_listed() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "", TARIFF)).await;
    let created = node
        .post_as("prefer: wait=30\r\n", PREDICTIONS, INPUT)
        .await;
    assert_eq!(created.status, 201);
    assert_eq!(created.header("preference-applied"), Some("wait=30"));
    let object = created.json();
    assert_eq!(object["status"], "succeeded", "{object}");
    assert!(!object["output"].as_array().unwrap().is_empty());
    assert_eq!(object["input"], json!({ "prompt": "hello" }));
    assert!(object["metrics"]["predict_time"].is_number());
    let shown = show(&node, "", id_of(&object)).await.json();
    assert_eq!(shown["output"], object["output"]);
    let by_version = json!({ "version": object["version"], "input": { "prompt": "again" } });
    let second = node.post("/v1/predictions", &by_version.to_string()).await;
    assert_eq!(second.status, 201, "{}", second.text());
    ended(&node, id_of(&second.json())).await;
    let mut client = node.client().await;
    client
        .send("GET /v1/predictions HTTP/1.1\r\nhost: h\r\n\r\n")
        .await;
    let list = client.response().await.json();
    assert_eq!(list["results"].as_array().unwrap().len(), 2);
    assert_eq!(list["results"][1]["id"], object["id"]);
    assert!(list["next"].is_null());
    let events = node.events(2).await;
    assert_eq!(events[0]["request_source"], "job");
    assert_eq!(events[0]["face"], "replicate");
    assert_eq!(events[0]["job_id"], object["id"]);
    assert_eq!(events[0]["event_id"], format!("{}:1", id_of(&object)));
    assert_eq!(events[0]["outcome"], "completed");
    assert!(events[0]["neurons"].as_f64().unwrap() > 0.0);
    node.idle().await;
}

#[tokio::test]
async fn jobs_are_their_accounts_alone() {
    let server = SimulatedServer::fast().await;
    let config = with_jobs(server.address, 2, "", "");
    let node = Node::start(&format!("{}{config}", accounts(""))).await;
    let object = create(&node, KEY_A, INPUT).await;
    assert_eq!(show(&node, KEY_A, id_of(&object)).await.status, 200);
    let foreign = show(&node, KEY_B, id_of(&object)).await;
    let unknown = show(&node, KEY_B, &"a".repeat(26)).await;
    assert_eq!((foreign.status, unknown.status), (404, 404));
    assert_eq!(foreign.json()["detail"], unknown.json()["detail"]);
    let path = format!("/v1/predictions/{}/cancel", id_of(&object));
    assert_eq!(node.post_as(KEY_B, &path, "").await.status, 404);
    assert_eq!(node.post_as("", PREDICTIONS, INPUT).await.status, 401);
}

#[tokio::test]
async fn what_cannot_be_a_job_is_refused_as_a_problem() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "", "")).await;
    for (path, body, status) in [
        (PREDICTIONS, "[]", 400),
        (PREDICTIONS, "{", 400),
        (PREDICTIONS, "{}", 422),
        (PREDICTIONS, r#"{"input":1}"#, 422),
        ("/v1/models/acme/other/predictions", INPUT, 404),
        ("/v1/predictions", INPUT, 422),
        ("/v1/predictions", r#"{"version":"abc","input":{}}"#, 422),
        ("/v1/predictions/abc/nothing", "", 404),
    ] {
        let refused = node.post(path, body).await;
        assert_eq!(refused.status, status, "{path} {body}");
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json")
        );
        assert!(refused.json()["detail"].is_string());
    }
    for span in ["1s", "soon", "5 ｍ", "\u{660}5s"] {
        let headers = format!("cancel-after: {span}\r\n");
        let refused = node.post_as(&headers, PREDICTIONS, INPUT).await;
        assert_eq!(refused.status, 422, "{headers}");
        let text = refused.text();
        assert_eq!(text.matches("Cancel-After").count(), 1, "{text}");
    }
}

#[tokio::test]
async fn an_input_that_the_model_does_not_take_is_refused_at_the_create() {
    let server = SimulatedServer::fast().await;
    let parameters = "    parameters: { default: { prompt: operator } }\n";
    let models = [
        model("acme/m", &[endpoint(server.address, 2)], ""),
        model("acme/led", &[endpoint(server.address, 2)], parameters),
    ];
    let node = Node::start(&format!("jobs: {{}}\nmodels:\n{}", models.concat())).await;
    let (wrong, field) = (r#"{"input":{"prompt":7}}"#, "input.prompt");
    for (input, field) in [
        (wrong, field),
        (
            r#"{"input":{"prompt":"x","max_tokens":"many"}}"#,
            "input.max_tokens",
        ),
        (r#"{"input":{}}"#, "input"),
    ] {
        let refused = node.post(PREDICTIONS, input).await;
        assert_eq!(refused.status, 422, "{input}");
        let problem = refused.json();
        assert_eq!(problem["title"], "Input validation failed", "{problem}");
        let named = problem["invalid_fields"][0]["field"].as_str().unwrap();
        assert!(named.starts_with(field), "{problem}");
    }
    let led = "/v1/models/acme/led/predictions";
    let completed = node
        .post_as("prefer: wait=30\r\n", led, r#"{"input":{}}"#)
        .await;
    assert_eq!(
        completed.json()["status"],
        "succeeded",
        "{}",
        completed.text()
    );
    let unknown = r#"{"version":"acme/none","input":{"prompt":"x"}}"#;
    let unknown = node.post("/v1/predictions", unknown).await;
    assert_eq!(unknown.status, 422);
    assert_eq!(unknown.json()["title"], "Invalid version or not permitted");
    let mut client = node.client().await;
    client
        .send("GET /v1/predictions HTTP/1.1\r\nhost: h\r\n\r\n")
        .await;
    let listed = client.response().await.json();
    assert_eq!(listed["results"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn a_repeat_by_key_is_the_first_job_whatever_has_gone_meanwhile() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "", "")).await;
    let headers = "idempotency-key: k-1\r\nprefer: wait=30\r\n";
    let first = create(&node, headers, INPUT).await;
    let other = model("acme/other", &[endpoint(server.address, 2)], "");
    let without = node.reload(&format!("jobs: {{}}\nmodels:\n{other}")).await;
    assert_eq!(without.status, 200, "{}", without.text());
    let again = create(&node, headers, INPUT).await;
    assert_eq!(
        (&again["id"], &again["status"]),
        (&first["id"], &json!("succeeded"))
    );
    let changed = node.post_as(headers, PREDICTIONS, r#"{"input":{}}"#).await;
    assert_eq!(changed.status, 422, "{}", changed.text());
}

#[tokio::test]
async fn creates_say_what_is_left_of_the_requests_of_a_minute() {
    let server = SimulatedServer::fast().await;
    let config = with_jobs(server.address, 2, "", "");
    let node = Node::start(&format!(
        "{}{config}",
        accounts(", requests_per_minute: 60")
    ))
    .await;
    let created = node.post_as(KEY_A, PREDICTIONS, INPUT).await;
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(created.header("ratelimit-limit"), Some("60"));
    assert_eq!(created.header("ratelimit-remaining"), Some("59"));
    assert_eq!(created.header("ratelimit-reset"), Some("1"));
}

#[tokio::test]
async fn without_jobs_in_the_configuration_their_routes_say_so() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    let refused = node.post("/v1/predictions", INPUT).await;
    assert_eq!(refused.status, 404);
    assert!(refused.text().contains("jobs: {}"), "{}", refused.text());
}

#[tokio::test]
async fn a_repeated_create_with_its_key_is_the_same_job() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "", "")).await;
    let key = "idempotency-key: k-1\r\n";
    let first = create(&node, key, INPUT).await;
    let again = create(&node, key, INPUT).await;
    assert_eq!(first["id"], again["id"]);
    let other = node
        .post_as(key, PREDICTIONS, r#"{"input":{"prompt":"x"}}"#)
        .await;
    assert_eq!(other.status, 422);
    let without = create(&node, "", INPUT).await;
    assert_ne!(first["id"], without["id"]);
}

#[tokio::test]
async fn a_create_that_is_repeated_after_its_record_is_gone_starts_no_job() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "keep_secs: 1", "")).await;
    let first = create(&node, "idempotency-key: k-1\r\nprefer: wait=30\r\n", INPUT).await;
    assert_eq!(first["status"], "succeeded", "{first}");
    eventually("its record is gone", async || {
        let shown = show(&node, "", id_of(&first)).await;
        (shown.status == 404).then_some(())
    })
    .await;
    for headers in ["", "prefer: wait=30\r\n"] {
        let headers = format!("idempotency-key: k-1\r\n{headers}");
        let again = create(&node, &headers, INPUT).await;
        assert_eq!(again["id"], first["id"]);
        assert_eq!(
            (&again["status"], &again["data_removed"]),
            (&json!("succeeded"), &json!(true))
        );
        assert_eq!(
            (&again["input"], &again["output"]),
            (&Value::Null, &Value::Null)
        );
        for member in ["created_at", "started_at", "completed_at"] {
            assert_eq!(again[member], first[member], "{again}");
        }
        assert!(again["urls"]["stream"].is_null(), "{again}");
    }
    assert_eq!(server.count("served").await, 1);
    let mut client = node.client().await;
    client
        .send("GET /v1/predictions HTTP/1.1\r\nhost: h\r\n\r\n")
        .await;
    assert_eq!(client.response().await.json()["results"], json!([]));
}

#[tokio::test]
async fn a_create_is_repeated_after_its_record_and_its_model_are_gone() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_jobs(server.address, 2, "keep_secs: 1", "")).await;
    let headers = "idempotency-key: k-1\r\nprefer: wait=30\r\n";
    let first = create(&node, headers, INPUT).await;
    assert_eq!(first["status"], "succeeded", "{first}");
    let other = model("acme/other", &[endpoint(server.address, 2)], "");
    let without = format!("jobs: {{ keep_secs: 1 }}\nmodels:\n{other}");
    assert_eq!(node.reload(&without).await.status, 200);
    eventually("its record is gone", async || {
        let shown = show(&node, "", id_of(&first)).await;
        (shown.status == 404).then_some(())
    })
    .await;
    let again = create(&node, "idempotency-key: k-1\r\n", INPUT).await;
    for member in [
        "id",
        "model",
        "status",
        "created_at",
        "started_at",
        "completed_at",
    ] {
        assert_eq!(again[member], first[member], "{again}");
    }
    assert_eq!(again["data_removed"], true);
    // Another request with the key is none, and one without it needs a model.
    for (headers, body, status) in [
        (
            "idempotency-key: k-1\r\n",
            r#"{"input":{"prompt":"x"}}"#,
            422,
        ),
        ("idempotency-key: k-2\r\n", INPUT, 404),
    ] {
        assert_eq!(
            node.post_as(headers, PREDICTIONS, body).await.status,
            status
        );
    }
}

#[tokio::test]
async fn a_model_without_a_free_permit_leaves_the_places_of_runs_to_others() {
    let (busy, idle) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let models = ["a", "b"].map(|name| {
        let address = if name == "a" {
            busy.address
        } else {
            idle.address
        };
        model(&format!("acme/{name}"), &[endpoint(address, 1)], "")
    });
    let config = format!(
        "jobs: {{ worker: {{ concurrency_max: 1 }} }}\nmodels:\n{}",
        models.concat()
    );
    let node = Node::start(&config).await;
    let chat = r#"{"model":"acme/a","messages":[{"role":"user","content":"x"}]}"#;
    let mut live = node.client().await;
    live.post("", "/v1/chat/completions", chat).await;
    eventually("the live request has the permit", async || {
        (node.permits_used().await == 1).then_some(())
    })
    .await;
    let create_of = async |name: &str| {
        let path = format!("/v1/models/acme/{name}/predictions");
        let created = node.post(&path, INPUT).await;
        assert_eq!(created.status, 201, "{}", created.text());
        created.json()
    };
    let waiting = create_of("a").await;
    eventually("a job waits for the permit", async || {
        (node.queue_depth().await == 1).then_some(())
    })
    .await;
    for _ in 0..3 {
        let other = ended(&node, id_of(&create_of("b").await)).await;
        assert_eq!(other["status"], "succeeded", "{other}");
    }
    let waiting = show(&node, "", id_of(&waiting)).await.json();
    assert_eq!(waiting["status"], "starting", "{waiting}");
}

#[tokio::test]
async fn a_queued_job_is_canceled_at_once_and_a_running_one_gives_its_permit_back() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&with_jobs(server.address, 1, "", "")).await;
    let running = create(&node, "", INPUT).await;
    status_becomes(&node, id_of(&running), "processing").await;
    let queued = create(&node, "", INPUT).await;
    for (object, expected) in [
        (&queued, "canceled"),
        (&running, "canceled"),
        (&running, "canceled"),
    ] {
        let path = format!("/v1/predictions/{}/cancel", id_of(object));
        let canceled = node.post(&path, "").await;
        assert_eq!(canceled.status, 200);
        assert_eq!(canceled.json()["status"], expected, "{}", canceled.text());
    }
    eventually("the server's connection is closed", async || {
        (server.gone() == 1).then_some(())
    })
    .await;
    node.idle().await;
    let events = node.events(2).await;
    let reasons: Vec<&str> = events
        .iter()
        .map(|event| event["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["canceled_by_user", "canceled_by_user"]);
    assert_eq!(events[0]["outcome"], "cut-by-client");
}

#[tokio::test]
async fn a_deadline_ends_a_running_job_and_one_that_was_never_started() {
    let server = ScriptedServer::held().await;
    let jobs = format!("{TARIFF}    jobs: {{ predict_timeout_secs: 1 }}\n");
    let node = Node::start(&with_jobs(server.address, 1, "", &jobs)).await;
    let timed_out = create(&node, "", INPUT).await;
    status_becomes(&node, id_of(&timed_out), "processing").await;
    let over = ended(&node, id_of(&timed_out)).await;
    assert_eq!(over["status"], "failed", "{over}");
    assert_eq!(over["infergate"]["reason"], "timeout");
    // What the server was given is paid, as where a live request is cut.
    let event = node.events(1).await.remove(0);
    assert!(event["neurons"].as_f64().unwrap() > 0.0, "{event}");
    assert_eq!(event["outcome"], "cut-by-deadline");
    let endless = "    jobs: { predict_timeout_secs: 600 }\n";
    let other = ScriptedServer::held().await;
    let node = Node::start(&with_jobs(other.address, 1, "", endless)).await;
    let running = create(&node, "cancel-after: 7s\r\n", INPUT).await;
    status_becomes(&node, id_of(&running), "processing").await;
    let waiting = create(&node, "cancel-after: 5s\r\n", INPUT).await;
    let (running, waiting) =
        tokio::join!(ended(&node, id_of(&running)), ended(&node, id_of(&waiting)));
    assert_eq!(running["status"], "canceled", "{running}");
    assert_eq!(waiting["status"], "canceled", "{waiting}");
    assert_eq!(waiting["infergate"]["status"], "aborted");
    assert!(waiting["started_at"].is_null());
}

#[tokio::test]
async fn a_model_error_is_told_and_costs_nothing_and_a_lost_server_is_tried_again() {
    let answers = AtomicUsize::new(0);
    let server = HandledServer::by(move |request| {
        if request.contains("refuse me") {
            let body = r#"{"error":{"message":"no such style"}}"#;
            let head = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n", body.len());
            return Reaction::AnswerAfter(Duration::ZERO, format!("{head}{body}"));
        }
        match answers.fetch_add(1, Ordering::SeqCst) {
            0 => Reaction::Crash(Duration::ZERO),
            _ => Reaction::AnswerAfter(
                Duration::ZERO,
                json_answer(r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#),
            ),
        }
    })
    .await;
    let node = Node::start(&with_jobs(server.address, 1, "", TARIFF)).await;
    let refused = create(&node, "", r#"{"input":{"prompt":"refuse me"}}"#).await;
    let refused = ended(&node, id_of(&refused)).await;
    assert_eq!(refused["status"], "failed", "{refused}");
    assert_eq!(refused["infergate"]["reason"], "invalid_input");
    let lost = create(&node, "", INPUT).await;
    let lost = ended(&node, id_of(&lost)).await;
    assert_eq!(lost["status"], "succeeded", "{lost}");
    let events = node.events(2).await;
    assert_eq!(events[0]["neurons"], 0.0);
}

/// Neurons of the events by job: repeats of an event are dropped by its id, as its readers do.
fn neurons_by_job(events: &[Value]) -> HashMap<String, f64> {
    let ids = events.iter().map(|event| {
        let id = event["event_id"].as_str().unwrap().to_owned();
        (id, event["neurons"].as_f64().unwrap())
    });
    let unique: HashMap<String, f64> = ids.collect();
    let mut by_job = HashMap::new();
    for (id, neurons) in unique {
        let job = id.split(':').next().unwrap().to_owned();
        let before = by_job.insert(job, neurons);
        assert_eq!(before, None, "one event for each job");
    }
    by_job
}

#[tokio::test]
async fn jobs_outlast_kills_of_the_process() {
    const KILLS: usize = 5;
    const JOBS: usize = 40;
    let server = SimulatedServer::start(simulate::Config {
        ttft_ms: 40,
        tokens_per_sec: 0.0,
        ..simulate::Config::instant()
    })
    .await;
    let more = format!("{TARIFF}    jobs: {{ attempts_max: 20 }}\n");
    let config = with_jobs(server.address, 2, "", &more);
    let config = format!("replicate: {{ show_neurons: true }}\n{config}");
    let mut node = Node::start(&config).await;
    let mut ids = Vec::new();
    for _ in 0..JOBS {
        ids.push(id_of(&create(&node, "", INPUT).await).to_owned());
    }
    for _ in 0..KILLS {
        let before = node.events(1).await.len();
        eventually("another job ends", async || {
            (node.events(1).await.len() > before).then_some(())
        })
        .await;
        node.signal("KILL");
        node.ended().await;
        node.start_again().await;
    }
    let mut neurons = HashMap::new();
    for id in &ids {
        let object = ended(&node, id).await;
        assert_eq!(object["status"], "succeeded", "{object}");
        neurons.insert(id.clone(), object["metrics"]["neurons"].as_f64().unwrap());
    }
    let events = eventually("every event is written", async || {
        let events = node.events(JOBS).await;
        (neurons_by_job(&events).len() == JOBS).then_some(events)
    })
    .await;
    assert_eq!(neurons_by_job(&events), neurons);
    let worked = (server.count("served").await + server.count("cancelled").await) as usize;
    assert!(worked <= JOBS + KILLS * 2 * 2, "{worked} executions");
}

#[tokio::test]
async fn a_drain_lets_jobs_end_and_the_next_process_goes_on() {
    let server = SimulatedServer::taking(300).await;
    let node_config = with_jobs(server.address, 1, "", "");
    let mut node = Node::start(&node_config).await;
    let first = create(&node, "", INPUT).await;
    status_becomes(&node, id_of(&first), "processing").await;
    let second = create(&node, "", INPUT).await;
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(0));
    let worked = server.count("served").await + server.count("cancelled").await;
    assert_eq!(worked, 1, "a drain takes no job");
    node.start_again().await;
    assert_eq!(ended(&node, id_of(&first)).await["status"], "succeeded");
    assert_eq!(ended(&node, id_of(&second)).await["status"], "succeeded");
    assert_eq!(server.count("served").await, 2);
}

/// Events of a stream: name, id and text.
fn stream_events(text: &str) -> Vec<(String, String, String)> {
    let events = text.split("\n\n").filter(|event| event.contains("event: "));
    let member = |event: &str, name: &str| {
        let lines = event.lines().filter_map(|line| line.strip_prefix(name));
        lines.collect::<Vec<_>>().join("\n")
    };
    events
        .map(|event| {
            (
                member(event, "event: "),
                member(event, "id: "),
                member(event, "data: "),
            )
        })
        .collect()
}

async fn stream(node: &Node, url: &str, headers: &str) -> crate::support::TestResponse {
    let path = &url[url.find("/v1/").unwrap()..];
    let mut client = node.client().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n{headers}\r\n");
    client.send(request).await;
    client.response().await
}

#[tokio::test]
async fn an_output_is_followed_without_a_key_resumed_and_still_there_after_the_end() {
    let server = SimulatedServer::start(simulate::Config {
        ttft_ms: 20,
        tokens_per_sec: 200.0,
        output_tokens: 40,
        ..Default::default()
    })
    .await;
    let config = with_jobs(server.address, 2, "", "");
    let node = Node::start(&format!("{}{config}", accounts(""))).await;
    let object = create(&node, KEY_A, INPUT).await;
    let url = object["urls"]["stream"].as_str().unwrap().to_owned();
    let whole = stream(&node, &url, "").await;
    assert_eq!(whole.status, 200);
    assert_eq!(whole.header("content-type"), Some("text/event-stream"));
    let events = stream_events(&whole.text());
    let (last, outputs) = events.split_last().unwrap();
    assert_eq!((&*last.0, &*last.2), ("done", "{}"));
    let text = |events: &[(String, String, String)]| -> String {
        events.iter().map(|event| event.2.as_str()).collect()
    };
    let shown = show(&node, KEY_A, id_of(&object)).await.json();
    let output: String = shown["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|piece| piece.as_str().unwrap())
        .collect();
    assert_eq!(text(outputs), output);
    // From the third event on.
    let resume = format!("last-event-id: {}\r\n", outputs[1].1);
    let rest = stream_events(&stream(&node, &url, &resume).await.text());
    assert_eq!(text(&rest[..rest.len() - 1]), text(&outputs[2..]));
    for bad in [
        url.replace("token=", "token=x"),
        url.replace("?token=", "?t="),
    ] {
        assert_eq!(stream(&node, &bad, KEY_A).await.status, 404, "{bad}");
    }
    assert!(!node.log().contains("token="));
}

#[tokio::test]
async fn a_follower_of_a_run_that_a_kill_has_ended_is_not_given_the_text_of_the_next() {
    let server = SimulatedServer::start(simulate::Config {
        ttft_ms: 20,
        tokens_per_sec: 100.0,
        output_tokens: 200,
        ..Default::default()
    })
    .await;
    let mut node = Node::start(&with_jobs(server.address, 2, "", "")).await;
    let object = create(&node, "", INPUT).await;
    let url = object["urls"]["stream"].as_str().unwrap().to_owned();
    eventually("there is text", async || {
        let shown = show(&node, "", id_of(&object)).await.json();
        shown["output"].is_array().then_some(())
    })
    .await;
    node.signal("KILL");
    node.ended().await;
    node.start_again().await;
    // While the next run goes on, and after its end.
    for _ in 0..2 {
        let rest = stream(&node, &url, "last-event-id: 1:3\r\n").await.text();
        let events = stream_events(&rest);
        let names: Vec<&str> = events.iter().map(|event| &*event.0).collect();
        assert_eq!(names, ["error"], "{rest}");
        assert!(events[0].2.contains("are gone"), "{rest}");
        let whole = stream_events(&stream(&node, &url, "").await.text());
        assert_eq!(whole.last().unwrap().0, "done");
        let over = ended(&node, id_of(&object)).await;
        assert_eq!(over["status"], "succeeded", "{over}");
    }
}

#[tokio::test]
async fn a_reload_that_removes_a_model_fails_what_waits_for_it_and_lets_runs_end() {
    let server = ScriptedServer::held().await;
    let config = with_jobs(server.address, 1, "", "");
    let node = Node::start(&config).await;
    let running = create(&node, "", INPUT).await;
    status_becomes(&node, id_of(&running), "processing").await;
    let waiting = create(&node, "", INPUT).await;
    let other = SimulatedServer::fast().await;
    let without = format!(
        "jobs: {{}}\nmodels:\n{}",
        model("acme/other", &[endpoint(other.address, 1)], "")
    );
    assert_eq!(node.reload(&without).await.status, 200);
    let failed = ended(&node, id_of(&waiting)).await;
    assert_eq!(failed["status"], "failed", "{failed}");
    assert_eq!(failed["infergate"]["reason"], "model_removed");
    let object = show(&node, "", id_of(&running)).await.json();
    assert_eq!(object["status"], "processing", "{object}");
    let refused = node.post(PREDICTIONS, INPUT).await;
    assert_eq!(refused.status, 404);
}

/// An error in a good status, and an answer that is none of the task's, are the model's own.
#[tokio::test]
async fn a_models_own_error_ends_its_job_at_once_and_is_charged_where_the_tariff_says_so() {
    for answer in [
        r#"{"error":{"message":"no such style"}}"#,
        r#"{"id":"x"}"#,
        "no JSON",
    ] {
        for (more, is_charged) in [("", false), (", charge_failed: true", true)] {
            let runs = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&runs);
            let server = HandledServer::by(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                Reaction::Answer(json_answer(answer))
            })
            .await;
            let tariff = format!("    tariff: {{ coefficients: {{ input_tokens: 1 }}{more} }}\n");
            let node = Node::start(&with_jobs(server.address, 1, "", &tariff)).await;
            let job = create(&node, "", INPUT).await;
            let job = ended(&node, id_of(&job)).await;
            assert_eq!(job["infergate"]["reason"], "model_error", "{answer}: {job}");
            assert_eq!(runs.load(Ordering::SeqCst), 1, "{answer}");
            let neurons = node.events(1).await[0]["neurons"].as_f64().unwrap();
            assert_eq!(neurons > 0.0, is_charged, "{answer}: {neurons}");
        }
    }
}

#[tokio::test]
async fn a_job_whose_server_was_lost_goes_to_another_endpoint_first() {
    let lost = HandledServer::by(|_| Reaction::Crash(Duration::ZERO)).await;
    let server = SimulatedServer::fast().await;
    // The one that is lost stands before the other one as long as it is in use.
    let endpoints = [
        endpoint(lost.address, 1),
        format!("{}, priority: 1", endpoint(server.address, 1)),
    ];
    let model = model("acme/m", &endpoints, "    jobs: { attempts_max: 2 }\n");
    let node = Node::start(&format!("jobs: {{}}\nmodels:\n{model}")).await;
    let job = create(&node, "", INPUT).await;
    let job = ended(&node, id_of(&job)).await;
    assert_eq!(job["status"], "succeeded", "{job}");
    assert_eq!(job["infergate"]["attempts"], 2, "{job}");
}

#[tokio::test]
async fn a_tariff_prices_the_seconds_of_a_job_and_of_nothing_else() {
    let server = SimulatedServer::start(simulate::Config {
        ttft_ms: 1000,
        ..simulate::Config::instant()
    })
    .await;
    let tariff = "    tariff: { coefficients: { predict_secs: 100, total_secs: 10000 } }\n";
    let node = Node::start(&with_jobs(server.address, 1, "", tariff)).await;
    done_live(&node).await;
    let first = create(&node, "", INPUT).await;
    let second = create(&node, "", INPUT).await;
    let first = ended(&node, id_of(&first)).await;
    let second = ended(&node, id_of(&second)).await;
    let events = node.events(3).await;
    assert_eq!(
        events[0]["neurons"], 0.0,
        "a live request has no such seconds"
    );
    for (event, job) in [(&events[1], &first), (&events[2], &second)] {
        let secs = |name: &str| job["metrics"][name].as_f64().unwrap();
        let upper = 100.0 * secs("predict_time") + 10_000.0 * secs("total_time");
        let neurons = event["neurons"].as_f64().unwrap();
        // The price is made a moment before the end is written.
        assert!(
            (0.7 * upper..upper + 50.0).contains(&neurons),
            "{event} {job}"
        );
    }
    let waited = events[2]["neurons"].as_f64() > Some(19_000.0);
    assert!(waited, "the second one waited for the first: {second}");
}

async fn done_live(node: &Node) {
    let body = r#"{"model":"acme/m","messages":[{"role":"user","content":"hi"}]}"#;
    let response = node.post_as("", "/v1/chat/completions", body).await;
    assert_eq!(response.status, 200, "{}", response.text());
}
