//! Durable jobs as operators see and change them: admin routes, commands, metrics and `/state`.
//!
//! Lives of single jobs are in `jobs`.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{
    ANSWER, HandledServer, Node, Reaction, ScriptedServer, SimulatedServer, TestClient,
    TestResponse, accounts, endpoint, eventually, free_address, json_answer, model, one_model,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
const INPUT: &str = r#"{"input":{"prompt":"hello"}}"#;
const QUEUE: &str = "/jobs/queues/acme/m";

fn config(server: std::net::SocketAddr, permits: u32) -> String {
    let model = model("acme/m", &[endpoint(server, permits)], "");
    format!("jobs: {{}}\nmodels:\n{model}")
}

async fn create(node: &Node, headers: &str, body: &str) -> String {
    let created = node.post_as(headers, PREDICTIONS, body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()["id"].as_str().unwrap().to_owned()
}

/// POST on the admin listener.
async fn post(node: &Node, path: &str) -> TestResponse {
    let mut client = TestClient::connect(node.admin).await;
    client.post("", path, "").await;
    client.response().await
}

async fn done(node: &Node, path: &str) -> Value {
    let response = post(node, path).await;
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.json()
}

async fn job(node: &Node, id: &str) -> Value {
    let shown = node.get(&format!("/jobs/{id}")).await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    shown.json()
}

async fn becomes(node: &Node, id: &str, state: &str) -> Value {
    eventually(state, async || {
        let shown = job(node, id).await;
        (shown["state"] == state).then_some(shown)
    })
    .await
}

async fn queue(node: &Node) -> Value {
    let queues = node.get("/jobs/queues").await.json();
    queues["queues"][0].clone()
}

async fn metric_becomes(node: &Node, series: &str, expected: f64) {
    eventually(&format!("{series} is {expected}"), async || {
        (node.metric(series).await == Some(expected)).then_some(())
    })
    .await;
}

fn ids(page: &Value) -> Vec<&str> {
    let jobs = page["jobs"].as_array().unwrap();
    jobs.iter().map(|job| job["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn jobs_are_listed_by_state_model_and_account_and_shown_without_secrets() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&format!("{}{}", accounts(""), config(server.address, 2))).await;
    let long = format!(r#"{{"input":{{"prompt":"{}"}}}}"#, "x".repeat(5000));
    let first = create(&node, KEY_A, INPUT).await;
    let second = create(&node, KEY_A, &long).await;
    for id in [&first, &second] {
        becomes(&node, id, "succeeded").await;
    }
    let page = node.get("/jobs").await.json();
    assert_eq!(ids(&page), [&*second, &*first]);
    assert!(page["next"].is_null());
    for (query, found) in [
        ("state=succeeded", 2),
        ("state=queued", 0),
        ("model=acme%2Fm", 2),
        ("model=other", 0),
        ("account=a&state=succeeded", 2),
        ("account=b", 0),
    ] {
        let page = node.get(&format!("/jobs?{query}")).await.json();
        assert_eq!(ids(&page).len(), found, "{query}");
    }
    for query in ["state=done", "cursor=x", "stat=queued"] {
        assert_eq!(node.get(&format!("/jobs?{query}")).await.status, 400);
    }
    let shown = job(&node, &first).await;
    assert_eq!(shown["model"], "acme/m");
    assert_eq!(
        (&shown["account"], &shown["api"]),
        (&json!("a"), &json!("replicate"))
    );
    assert_eq!(shown["input"], json!({ "prompt": "hello" }));
    assert!(
        shown["output"].is_array() && shown["upstream"].is_string(),
        "{shown}"
    );
    assert!(shown["metrics"]["predict_time"].is_number(), "{shown}");
    assert_eq!(shown["attempt_counts"]["taken"], 1);
    assert!(!shown.to_string().contains("token\""), "{shown}");
    let shown = job(&node, &second).await;
    assert!(shown["input"].is_null() && shown["input_bytes"].as_u64().unwrap() > 5000);
    for id in ["a".repeat(26), "nonsense".to_owned()] {
        assert_eq!(node.get(&format!("/jobs/{id}")).await.status, 404);
        assert_eq!(post(&node, &format!("/jobs/{id}/cancel")).await.status, 404);
        assert_eq!(
            post(&node, &format!("/jobs/{id}/requeue")).await.status,
            404
        );
    }
    let wrong = node.get(&format!("/jobs/{first}/cancel")).await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
}

#[tokio::test]
async fn pages_go_on_where_the_last_one_ended() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&config(server.address, 1)).await;
    done(&node, &format!("{QUEUE}/pause")).await;
    let mut created = Vec::new();
    for _ in 0..103 {
        created.push(create(&node, "", INPUT).await);
    }
    created.reverse();
    let page = node.get("/jobs?state=queued").await.json();
    assert_eq!(ids(&page), created[..100]);
    let next = page["next"].as_str().unwrap();
    let page = node.get(&format!("/jobs?state=queued&cursor={next}")).await;
    let page = page.json();
    assert_eq!(ids(&page), created[100..]);
    assert!(page["next"].is_null());
}

#[tokio::test]
async fn an_operator_cancels_and_submits_again() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&config(server.address, 1)).await;
    let running = create(&node, "", INPUT).await;
    becomes(&node, &running, "running").await;
    let queued = create(&node, "", INPUT).await;
    let live = post(&node, &format!("/jobs/{running}/requeue")).await;
    assert_eq!(live.status, 409, "{}", live.text());
    for (id, result) in [(&queued, "ended"), (&running, "requested")] {
        let canceled = done(&node, &format!("/jobs/{id}/cancel")).await;
        assert_eq!(canceled["result"], result);
        let ended = becomes(&node, id, "canceled").await;
        assert_eq!(ended["reason"], "canceled_by_operator");
    }
    let again = done(&node, &format!("/jobs/{running}/cancel")).await;
    assert_eq!(again["result"], "already_ended");
    let requeued = done(&node, &format!("/jobs/{running}/requeue")).await;
    assert_eq!(requeued["retry_of"], *running);
    let new = requeued["id"].as_str().unwrap();
    let shown = becomes(&node, new, "running").await;
    assert_eq!(shown["retry_of"], *running);
    assert_eq!(shown["input"], json!({ "prompt": "hello" }));
    server.next();
    becomes(&node, new, "succeeded").await;
    let page_post = "POST /jobs/queues/acme/m/pause HTTP/1.1\r\nHost: a\r\nOrigin: https://evil.example\r\n\r\n";
    let refused = TestClient::exchange(node.admin, page_post).await;
    assert_eq!(refused.status, 403);
}

#[tokio::test]
async fn a_queue_is_paused_looked_at_purged_and_resumed() {
    let server = SimulatedServer::fast().await;
    let mut node = Node::start(&config(server.address, 3)).await;
    let before = queue(&node).await;
    assert_eq!(
        (&before["model"], &before["queued"]),
        (&json!("acme/m"), &json!(0))
    );
    done(&node, &format!("{QUEUE}/pause")).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(create(&node, "", INPUT).await);
    }
    node.signal("TERM");
    node.ended().await;
    node.start_again().await;
    let paused = queue(&node).await;
    assert_eq!(paused["deployable"], before["deployable"]);
    assert_eq!(
        (&paused["paused"], &paused["queued"]),
        (&json!(true), &json!(3))
    );
    assert_eq!(paused["ready"]["normal"], 3);
    assert_eq!(
        (&paused["permits"], &paused["running"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(paused["expected_work_secs"], 3.0);
    assert_eq!(paused["accounts"].as_object().unwrap().len(), 1);
    let key = paused["deployable"].as_str().unwrap();
    let purged = done(&node, &format!("/jobs/queues/{key}/purge")).await;
    assert_eq!(purged["canceled"], 3);
    for id in &waiting {
        let ended = job(&node, id).await;
        assert_eq!(ended["reason"], "canceled_by_operator");
    }
    let later = create(&node, "", INPUT).await;
    done(&node, &format!("{QUEUE}/resume")).await;
    becomes(&node, &later, "succeeded").await;
    let unknown = post(&node, "/jobs/queues/acme/other/purge").await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    let workers = node.get("/jobs/workers").await.json();
    assert_eq!(workers["workers"][0]["enabled"], true);
    let store = node.get("/jobs/stores").await.json()["stores"][0].clone();
    assert_eq!(
        (&store["kind"], &store["accepting"]),
        (&json!("embedded"), &json!(true))
    );
    assert!(store["file_bytes"].as_u64().unwrap() > 0, "{store}");
    assert!(store["free_disk_bytes"].as_u64().unwrap() > 0, "{store}");
    assert!(store["problem"].is_null());
}

#[tokio::test]
async fn metrics_and_state_have_the_counts_of_the_jobs() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&config(server.address, 1)).await;
    let running = create(&node, "", INPUT).await;
    becomes(&node, &running, "running").await;
    let queued = create(&node, "", INPUT).await;
    let key = queue(&node).await["deployable"]
        .as_str()
        .unwrap()
        .to_owned();
    let of_queue = |name: &str| format!("infergate_{name}{{deployable=\"{key}\"}}");
    metric_becomes(&node, &of_queue("jobs_running"), 1.0).await;
    let waiting = format!("infergate_jobs_queued{{class=\"normal\",deployable=\"{key}\"}}");
    metric_becomes(&node, &waiting, 1.0).await;
    metric_becomes(&node, &of_queue("jobs_start_delay_seconds_count"), 1.0).await;
    let submitted =
        r#"infergate_jobs_submitted_total{api="replicate",kind="prediction",model="acme/m"}"#;
    metric_becomes(&node, submitted, 2.0).await;
    let jobs = node.state().await["jobs"].clone();
    assert_eq!(
        (&jobs["live"], &jobs["queued"], &jobs["running"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!(
        (&jobs["accepting"], &jobs["draining"]),
        (&json!(true), &json!(false))
    );
    assert!(
        jobs["problem"].is_null() && jobs["store"]["kind"] == "embedded",
        "{jobs}"
    );
    done(&node, &format!("/jobs/{queued}/cancel")).await;
    server.next();
    becomes(&node, &running, "succeeded").await;
    for (status, reason) in [("succeeded", "none"), ("canceled", "canceled_by_operator")] {
        let series = format!(
            "infergate_jobs_finished_total{{kind=\"prediction\",model=\"acme/m\",reason=\"{reason}\",status=\"{status}\"}}"
        );
        metric_becomes(&node, &series, 1.0).await;
    }
    metric_becomes(&node, &of_queue("jobs_run_seconds_count"), 1.0).await;
    metric_becomes(&node, &of_queue("jobs_running"), 0.0).await;
    metric_becomes(&node, &of_queue("jobs_oldest_seconds"), 0.0).await;
    for (series, expected) in [
        (r#"infergate_store_up{store="embedded"}"#, 1.0),
        (r#"infergate_store_accepting{store="embedded"}"#, 1.0),
        (
            r#"infergate_store_call_seconds_count{store="embedded",verb="submit"}"#,
            2.0,
        ),
    ] {
        assert_eq!(node.metric(series).await, Some(expected), "{series}");
    }
    let batches = node.metric(r#"infergate_store_batch_items_count{store="embedded"}"#);
    assert!(batches.await.unwrap() >= 2.0);
    // A model that leaves takes its series along.
    let other = model("acme/n", &[endpoint(server.address, 1)], "");
    let reloaded = node.reload(&format!("jobs: {{}}\nmodels:\n{other}")).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(node.metric(submitted).await, None);
    assert_eq!(node.metric(&of_queue("jobs_running")).await, None);
}

#[tokio::test]
async fn a_run_that_is_lost_counts_as_released() {
    let server = ScriptedServer::held().await;
    let mut node = Node::start(&config(server.address, 1)).await;
    let id = create(&node, "", INPUT).await;
    becomes(&node, &id, "running").await;
    node.signal("KILL");
    node.ended().await;
    node.start_again().await;
    let lost = r#"infergate_jobs_released_total{reason="worker_lost"}"#;
    metric_becomes(&node, lost, 1.0).await;
    metric_becomes(&node, "infergate_jobs_workers_lost_total", 1.0).await;
    let shown = becomes(&node, &id, "running").await;
    assert_eq!(shown["attempt_counts"]["counted"], 1, "{shown}");
    assert_eq!(shown["runs"][0]["attempt"], 2, "{shown}");
    assert_eq!(duty(&node, "orphans").await["items"], 1);
    let orphans = r#"infergate_jobs_duty_items_total{duty="orphans"}"#;
    metric_becomes(&node, orphans, 1.0).await;
}

async fn duty(node: &Node, name: &str) -> Value {
    let jobs = node.state().await["jobs"].clone();
    let mut duties = jobs["duties"].as_array().unwrap().iter();
    duties.find(|duty| duty["name"] == name).unwrap().clone()
}

#[tokio::test]
async fn duties_tell_what_they_did_and_when_they_last_succeeded() {
    let server = ScriptedServer::held().await;
    let jobs = "jobs: { keep_secs: 1, retention_secs: 1 }";
    let config = config(server.address, 1).replace("jobs: {}", jobs);
    let node = Node::start(&config).await;
    done(&node, &format!("{QUEUE}/pause")).await;
    let id = create(&node, "", INPUT).await;
    eventually("the record is gone", async || {
        let shown = node.get(&format!("/jobs/{id}")).await;
        (shown.status == 404).then_some(())
    })
    .await;
    for (name, items) in [
        ("retention", 1),
        ("garbage", 1),
        ("deadlines", 0),
        ("releases", 0),
    ] {
        let duty = duty(&node, name).await;
        assert_eq!(duty["items"], items, "{duty}");
        assert!(duty["runs"].as_u64() >= Some(1), "{duty}");
        let at = duty["last_success_at"].as_str().unwrap();
        assert!(at.starts_with("20") && at.ends_with('Z'), "{at}");
        let series = format!("infergate_jobs_duty_last_success_seconds{{duty=\"{name}\"}}");
        assert!(node.metric(&series).await.unwrap() > 1.7e9, "{series}");
    }
    assert_eq!(
        duty(&node, "input_files").await["last_success_at"],
        Value::Null
    );
}

#[tokio::test]
async fn a_job_tells_its_attempts_with_their_servers_and_each_of_its_states() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let server =
        HandledServer::by(
            move |_| match count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => Reaction::Crash(std::time::Duration::ZERO),
                _ => Reaction::Answer(json_answer(ANSWER)),
            },
        )
        .await;
    let node = Node::start(&config(server.address, 1)).await;
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let id = create(&node, parent, INPUT).await;
    let shown = becomes(&node, &id, "succeeded").await;
    assert_eq!(shown["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    let runs = shown["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{shown}");
    for (run, result) in runs.iter().zip(["server_lost", "succeeded"]) {
        assert_eq!(run["result"], result, "{run}");
        let endpoint = run["endpoint"].as_str().unwrap();
        assert!(endpoint.contains(&server.address.to_string()), "{endpoint}");
        assert!(run["began_at"].is_string() && run["ended_at"].is_string());
    }
    let states: Vec<_> = shown["transitions"].as_array().unwrap().iter().collect();
    let names: Vec<&str> = states
        .iter()
        .map(|it| it["state"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["queued", "running", "queued", "running", "succeeded"]
    );
    assert_eq!(states[2]["reason"], "server_lost");
    assert_eq!(
        (&states[3]["attempt"], &states[0]["at"]),
        (&json!(2), &shown["created_at"])
    );
    let (_, out, _) = infergate(&node, &["show", &id]).await;
    assert!(
        out.contains("attempt   2 at ") && out.contains("reason server_lost"),
        "{out}"
    );
}

#[tokio::test]
async fn a_queue_tells_its_last_request_and_its_counts_of_the_last_two_minutes() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&config(server.address, 1)).await;
    let unused = queue(&node).await;
    assert!(unused["last_request_at"].is_null() && unused["snapshots"] == json!([]));
    let running = create(&node, "", INPUT).await;
    becomes(&node, &running, "running").await;
    create(&node, "", INPUT).await;
    let found = eventually("two samples", async || {
        let found = queue(&node).await;
        let count = found["snapshots"].as_array().unwrap().len();
        let last = found["snapshots"][count.checked_sub(1)?].clone();
        (count >= 2 && last["queued"] == 1).then_some(found)
    })
    .await;
    let last = found["snapshots"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["running"], &last["finished"]),
        (&json!(1), &json!(0))
    );
    assert!(found["last_request_at"].as_str() >= shown_at(&node, &running).await.as_deref());
}

async fn shown_at(node: &Node, id: &str) -> Option<String> {
    job(node, id).await["created_at"]
        .as_str()
        .map(str::to_owned)
}

#[tokio::test]
async fn without_jobs_there_are_no_routes_no_state_and_no_series() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    for path in [
        "/jobs",
        "/jobs/queues",
        "/jobs/stores",
        &format!("/jobs/{}", "a".repeat(26)),
    ] {
        let refused = node.get(path).await;
        assert_eq!(refused.status, 404, "{path}");
        assert!(refused.text().contains("jobs: {}"), "{}", refused.text());
    }
    assert_eq!(post(&node, "/jobs/queues/m/purge").await.status, 404);
    assert!(node.state().await.get("jobs").is_none());
    let text = node.get("/metrics").await.text();
    assert!(!text.contains("infergate_store_up"), "{text}");
}

async fn infergate(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let admin = node.admin.to_string();
    let args: Vec<String> = ["jobs", "--admin", &admin]
        .iter()
        .chain(args)
        .map(ToString::to_string)
        .collect();
    run(args).await
}

async fn run(args: Vec<String>) -> (Option<i32>, String, String) {
    let run = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
        command.args(args).output().unwrap()
    };
    let Output {
        status,
        stdout,
        stderr,
    } = tokio::task::spawn_blocking(run).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn the_command_lists_shows_and_changes_jobs() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&config(server.address, 1)).await;
    let running = create(&node, "", INPUT).await;
    becomes(&node, &running, "running").await;
    let queued = create(&node, "", INPUT).await;
    for (args, expected) in [
        (vec!["list"], vec![&*running, &*queued, "acme/m"]),
        (vec!["list", "--state", "queued"], vec![&*queued]),
        (vec!["show", &running], vec!["running", "account", "hello"]),
        (vec!["queues"], vec!["acme/m", "permits"]),
        (vec!["workers"], vec!["(asked)", "yes"]),
        (vec!["stores"], vec!["accepts jobs", "2 have not ended"]),
        (vec!["pause", "acme/m"], vec!["is paused"]),
        (vec!["cancel", &running], vec!["asked to end"]),
        (
            vec!["purge", "acme/m", "--state", "queued"],
            vec!["1 queued job(s)"],
        ),
        (vec!["resume", "acme/m"], vec!["is not paused"]),
    ] {
        let shown = async || {
            let (status, out, err) = infergate(&node, &args).await;
            assert_eq!(status, Some(0), "{args:?}: {out}{err}");
            expected.iter().all(|part| out.contains(part)).then_some(())
        };
        match args[0] {
            // Counts of the store are about a second old.
            "stores" => eventually("the count of the store", shown).await,
            _ => assert!({ shown }().await.is_some(), "{args:?}"),
        }
    }
    becomes(&node, &running, "canceled").await;
    let (status, out, _) = infergate(&node, &["requeue", &running, "--json"]).await;
    assert_eq!(status, Some(0));
    let requeued: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(requeued["retry_of"], *running);
    let (status, out, _) = infergate(&node, &["list", "--json"]).await;
    assert_eq!(status, Some(0));
    let page: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(ids(&page).len(), 3);
}

#[tokio::test]
async fn the_command_fails_with_a_code_and_a_reason() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&config(server.address, 1)).await;
    let unknown = "a".repeat(26);
    for args in [
        vec!["show", &*unknown],
        vec!["cancel", &*unknown],
        vec!["requeue", "../state"],
        vec!["pause", "acme/other"],
        vec!["list", "--state", "done"],
    ] {
        let (status, out, err) = infergate(&node, &args).await;
        assert_eq!(status, Some(1), "{args:?}: {out}{err}");
        assert!(err.starts_with("error: "), "{err}");
    }
    let closed = free_address().to_string();
    let args = ["jobs", "queues", "--admin", &closed].map(str::to_owned);
    let (status, _, err) = run(args.to_vec()).await;
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("does not answer"), "{err}");
    let args = ["purge", "acme/m", "--state", "running"];
    let (status, _, err) = infergate(&node, &args).await;
    assert_eq!(status, Some(2));
    assert!(err.contains("'running'") && err.contains("queued"), "{err}");
    let help = ["jobs", "--help"].map(str::to_owned).to_vec();
    let (status, out, _) = run(help).await;
    assert_eq!(status, Some(0));
    assert!(
        out.contains("Exit codes:") && out.contains("infergate jobs purge"),
        "{out}"
    );
}
