//! Inputs of jobs that are too large for the store: kept as files, read back for the run and for shows, and gone with
//! the record.
//!
//! Large values inside of an input are in `files`.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::{
    HandledServer, Node, Reaction, TestClient, TestResponse, accounts, endpoint, eventually,
    json_answer, model,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
const QUEUE: &str = "/jobs/queues/acme/m";
const ANSWER: &str = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

/// A gateway, the bodies that its model server has got, and the server.
async fn node(jobs: &str, more: &str) -> (Node, Arc<Mutex<Vec<String>>>, HandledServer) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let server = HandledServer::by(move |request| {
        kept.lock().unwrap().push(request.to_owned());
        Reaction::Answer(json_answer(ANSWER))
    })
    .await;
    let model = model("acme/m", &[endpoint(server.address, 2)], "");
    let accounts = accounts("");
    let config = format!("{accounts}{more}jobs: {{ {jobs} }}\nmodels:\n{model}");
    (Node::start(&config).await, seen, server)
}

/// A text of so many bytes without a period.
fn prompt(bytes: usize) -> String {
    let mut text = String::new();
    let mut number = 0;
    while text.len() < bytes {
        text.push_str(&format!("{number} "));
        number += 7;
    }
    text.truncate(bytes);
    text
}

fn body(prompt: &str) -> String {
    json!({ "input": { "prompt": prompt } }).to_string()
}

async fn create(node: &Node, prompt: &str) -> Value {
    let created = node.post_as(KEY_A, PREDICTIONS, &body(prompt)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

async fn show(node: &Node, path: &str) -> Value {
    let mut client = node.client().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n{KEY_A}\r\n");
    client.send(request).await;
    client.response().await.json()
}

async fn ended(node: &Node, job: &Value) -> Value {
    let path = format!("/v1/predictions/{}", job["id"].as_str().unwrap());
    eventually("the job ends", async || {
        let object = show(node, &path).await;
        object["completed_at"].is_string().then_some(object)
    })
    .await
}

/// POST on the admin listener.
async fn post(node: &Node, path: &str) -> TestResponse {
    let mut client = TestClient::connect(node.admin).await;
    client.post("", path, "").await;
    client.response().await
}

fn files(node: &Node) -> usize {
    let folder = node.dir().join("state/files");
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_record = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".json");
    names.filter(|entry| is_record(&entry.file_name())).count()
}

#[tokio::test]
async fn an_input_beyond_the_store_is_kept_as_a_file_over_a_kill_and_read_back_as_it_was() {
    let (mut node, seen, _server) = node("", "").await;
    assert_eq!(post(&node, &format!("{QUEUE}/pause")).await.status, 200);
    let prompts = [prompt(300 << 10), prompt(5 << 20)];
    let mut jobs = Vec::new();
    for prompt in &prompts {
        let object = create(&node, prompt).await;
        assert_eq!(object["input"]["prompt"], **prompt);
        assert!(object["infergate"]["input"].is_null());
        jobs.push(object);
    }
    create(&node, &prompt(200 << 10)).await;
    assert_eq!(files(&node), 2, "a smaller one stays in the store");
    let bytes = node.metric(r#"infergate_files_bytes{store="local"}"#).await;
    assert!(bytes.unwrap() > 5.5e6, "{bytes:?}");
    let list = show(&node, "/v1/predictions").await;
    assert!(
        list["results"][1]["input"].is_null(),
        "a list leaves it out"
    );
    let note = list["results"][1]["infergate"]["input"].as_str().unwrap();
    assert!(note.starts_with("left out: 5242"), "{note}");
    node.signal("KILL");
    node.ended().await;
    node.start_again().await;
    assert_eq!(post(&node, &format!("{QUEUE}/resume")).await.status, 200);
    for (job, prompt) in jobs.iter().zip(&prompts) {
        let object = ended(&node, job).await;
        assert_eq!(object["status"], "succeeded", "{}", object["error"]);
        assert_eq!(object["input"], json!({ "prompt": prompt }));
        let is_there = |request: &String| request.contains(&**prompt);
        assert_eq!(
            seen.lock()
                .unwrap()
                .iter()
                .filter(|it| is_there(it))
                .count(),
            1
        );
    }
    let id = jobs[1]["id"].as_str().unwrap();
    let shown = node.get(&format!("/jobs/{id}")).await.json();
    assert_eq!(shown["input_bytes"], 5 * (1 << 20) + 13);
    assert!(shown["input"].is_null());
    let again = post(&node, &format!("/jobs/{id}/requeue")).await;
    assert_eq!(again.status, 200, "{}", again.text());
    let object = ended(&node, &again.json()).await;
    assert_eq!(object["input"]["prompt"], *prompts[1]);
    assert_eq!(files(&node), 3, "the second job has a file of its own");
}

#[tokio::test]
async fn the_file_of_an_input_goes_with_the_record_and_with_a_refused_create() {
    let (node, _seen, _server) = node("keep_secs: 1, payload_max_kib: 16", "").await;
    let large = prompt(20 << 10);
    let key = format!("{KEY_A}idempotency-key: k\r\nprefer: wait=30\r\n");
    for _ in 0..2 {
        let created = node.post_as(&key, PREDICTIONS, &body(&large)).await;
        assert_eq!(
            created.json()["input"]["prompt"],
            *large,
            "also of a repeat"
        );
    }
    let other = node
        .post_as(&key, PREDICTIONS, &body(&prompt(21 << 10)))
        .await;
    assert_eq!(other.status, 422);
    assert!(
        files(&node) <= 1,
        "neither a repeat nor a refusal leaves one"
    );
    eventually("the file is gone with its record", async || {
        (files(&node) == 0).then_some(())
    })
    .await;
    let removed = r#"infergate_jobs_duty_items_total{duty="input_files"}"#;
    eventually("its removal is counted", async || {
        (node.metric(removed).await == Some(1.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_input_that_the_account_has_no_room_for_is_refused_and_a_deleted_one_fails_its_job() {
    let more = "files: { account_max_mib: 1 }\n";
    let (node, seen, _server) = node("", more).await;
    let refused = node
        .post_as(KEY_A, PREDICTIONS, &body(&prompt(2 << 20)))
        .await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("files.account_max_mib"));
    assert_eq!(post(&node, &format!("{QUEUE}/pause")).await.status, 200);
    let job = create(&node, &prompt(300 << 10)).await;
    let list = show(&node, "/v1/files").await;
    let file = list["results"][0]["id"].as_str().unwrap();
    let mut client = node.client().await;
    let delete = format!("DELETE /v1/files/{file} HTTP/1.1\r\nhost: h\r\n{KEY_A}\r\n");
    client.send(delete).await;
    assert_eq!(client.response().await.status, 204);
    assert_eq!(post(&node, &format!("{QUEUE}/resume")).await.status, 200);
    let object = ended(&node, &job).await;
    assert_eq!(object["infergate"]["reason"], "invalid_input", "{object}");
    assert!(object["error"].as_str().unwrap().contains("is not there"));
    assert!(object["input"].is_null());
    assert_eq!(seen.lock().unwrap().len(), 0);
    let id = job["id"].as_str().unwrap();
    let again = post(&node, &format!("/jobs/{id}/requeue")).await;
    assert_eq!(again.status, 409, "{}", again.text());
}
