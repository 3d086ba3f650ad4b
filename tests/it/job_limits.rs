//! Limits of accounts on their durable jobs, the day's quota, the pace of tokens, and moderation.
//!
//! Deadlines of a single job are in `jobs`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    HandledServer, Node, Reaction, ScriptedServer, SimulatedServer, accounts, endpoint, eventually,
    json_answer, model,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const KEY_B: &str = "authorization: Bearer key-b\r\n";
const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
const INPUT: &str = r#"{"input":{"prompt":"hello"}}"#;

fn config(server: std::net::SocketAddr, rest: &str, more: &str) -> String {
    let model = model("acme/m", &[endpoint(server, 2)], more);
    format!("jobs: {{}}\n{rest}models:\n{model}")
}

async fn create(node: &Node, key: &str, path: &str) -> String {
    let created = node.post_as(key, path, INPUT).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()["id"].as_str().unwrap().to_owned()
}

/// A job as operators see it.
async fn job(node: &Node, id: &str) -> Value {
    node.get(&format!("/jobs/{id}")).await.json()
}

async fn becomes(node: &Node, id: &str, state: &str) -> Value {
    eventually(state, async || {
        let shown = job(node, id).await;
        (shown["state"] == state).then_some(shown)
    })
    .await
}

/// Seconds of the day of a time in RFC 3339.
fn second_of_day(time: &Value) -> i64 {
    let time = time.as_str().unwrap();
    let part = |at: usize| time[at..at + 2].parse::<i64>().unwrap();
    part(11) * 3600 + part(14) * 60 + part(17)
}

/// Seconds from the submit of a job to the end of its lifetime, less whole days.
fn lifetime(job: &Value) -> i64 {
    let span = second_of_day(&job["lifetime_until"]) - second_of_day(&job["created_at"]);
    span.rem_euclid(86_400)
}

#[tokio::test]
async fn an_accounts_limits_win_over_a_deployments_and_those_over_the_models() {
    let server = SimulatedServer::fast().await;
    let accounts = accounts(", jobs: { predict_timeout_secs: 77, max_run_lifetime_secs: 500 }");
    let deployments = "deployments: [{ id: acme/d, model: acme/m, max_run_lifetime_secs: 300 }]\n";
    let limits = "    jobs: { max_run_lifetime_secs: 900, predict_timeout_secs: 60 }\n";
    let rest = format!("{accounts}{deployments}");
    let node = Node::start(&config(server.address, &rest, limits)).await;
    let deployed = "/v1/deployments/acme/d/predictions";
    for (key, path, expected_lifetime, expected_timeout) in [
        (KEY_A, PREDICTIONS, 500, 77_000),
        (KEY_A, deployed, 500, 77_000),
        (KEY_B, PREDICTIONS, 900, 60_000),
        (KEY_B, deployed, 300, 60_000),
    ] {
        let id = create(&node, key, path).await;
        let shown = job(&node, &id).await;
        assert_eq!(lifetime(&shown), expected_lifetime, "{path} {shown}");
        assert_eq!(shown["run_timeout_ms"], expected_timeout, "{path}");
    }
}

#[tokio::test]
async fn a_spent_day_refuses_a_create_at_once_unless_jobs_wait_for_the_next() {
    let server = SimulatedServer::fast().await;
    let accounts = accounts(", neurons_per_day: 10");
    let price = "    tariff: { cost_per_infer: 10 }\n";
    let node = Node::start(&config(server.address, &accounts, price)).await;
    let first = create(&node, KEY_A, PREDICTIONS).await;
    becomes(&node, &first, "succeeded").await;
    // The charge follows the end that is shown.
    let refused = eventually("the day is spent", async || {
        let refused = node.post_as(KEY_A, PREDICTIONS, INPUT).await;
        (refused.status != 201).then_some(refused)
    })
    .await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("00:00 UTC")
    );
    // The other account has a day of its own.
    create(&node, KEY_B, PREDICTIONS).await;
    let waits = format!("{price}    jobs: {{ when_quota_used: wait }}\n");
    let reloaded = node
        .reload(&config(server.address, &accounts, &waits))
        .await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let waiting = create(&node, KEY_A, PREDICTIONS).await;
    let shown = eventually("it waits for the next day", async || {
        let shown = job(&node, &waiting).await;
        shown["due_at"].is_string().then_some(shown)
    })
    .await;
    assert_eq!(shown["state"], "queued");
    assert_eq!(second_of_day(&shown["due_at"]), 0, "{shown}");
    assert_eq!(shown["attempt_counts"]["counted"], 0);
    // One request to the server for each job that ran.
    eventually("the other account's job has run", async || {
        (server.count("served").await == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_job_over_the_pace_of_tokens_is_released_and_no_attempt_is_counted() {
    let server = SimulatedServer::fast().await;
    let accounts = accounts(", tokens_per_minute: 1");
    let node = Node::start(&config(server.address, &accounts, "")).await;
    let first = create(&node, KEY_A, PREDICTIONS).await;
    becomes(&node, &first, "succeeded").await;
    let second = create(&node, KEY_A, PREDICTIONS).await;
    let shown = eventually("it was released", async || {
        let shown = job(&node, &second).await;
        let taken = shown["attempt_counts"]["taken"].as_u64().unwrap_or(0);
        (taken >= 1 && shown["state"] == "queued").then_some(shown)
    })
    .await;
    assert_eq!(shown["attempt_counts"]["counted"], 0, "{shown}");
    assert_eq!(shown["attempt_counts"]["refused"], 0, "{shown}");
    let released = node
        .metric("infergate_jobs_released_total{reason=\"quota_wait\"}")
        .await;
    assert!(released.unwrap() >= 1.0);
    let events = node.events(1).await;
    assert_eq!(events.len(), 1, "{events:?}");
}

#[tokio::test]
async fn an_input_that_is_flagged_never_runs_and_costs_nothing() {
    let server = SimulatedServer::fast().await;
    let service = ScriptedServer::new(&[&json_answer(r#"{"flagged":true,"category":"x"}"#)]).await;
    let moderation = format!(
        "    tariff: {{ cost_per_infer: 4 }}\n    jobs: {{ moderation: {{ url: \"http://{}/judge\" }} }}\n",
        service.address
    );
    let node = Node::start(&config(server.address, "", &moderation)).await;
    let id = create(&node, "", PREDICTIONS).await;
    let failed = becomes(&node, &id, "failed").await;
    assert_eq!(failed["reason"], "moderated", "{failed}");
    assert_eq!(server.count("served").await, 0);
    let asked = service.requests().concat();
    assert!(asked.starts_with("POST /judge HTTP/1.1\r\n"), "{asked}");
    let body: Value = serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let expected = json!({
        "id": id, "account": "anonymous", "model": "acme/m", "input": { "prompt": "hello" },
    });
    assert_eq!(body, expected);
    let events = node.events(1).await;
    assert_eq!(
        (&events[0]["reason"], &events[0]["neurons"]),
        (&json!("moderated"), &json!(0.0))
    );
    assert_eq!(events[0]["model_id"], "acme/m", "{}", events[0]);
    assert_eq!(events[0]["face"], "replicate", "{}", events[0]);
    node.idle().await;
}

#[tokio::test]
async fn what_a_jobs_moderation_takes_is_part_of_its_time() {
    let server = ScriptedServer::held().await;
    let flagged = json_answer(r#"{"flagged":false}"#);
    let took = Duration::from_secs(4);
    let service = HandledServer::by(move |_| Reaction::AnswerAfter(took, flagged.clone())).await;
    let moderation = format!(
        "    jobs: {{ moderation: {{ url: \"http://{}/judge\", timeout_ms: 20000 }} }}\n",
        service.address
    );
    let node = Node::start(&config(server.address, "", &moderation)).await;
    let began = Instant::now();
    let id = create(&node, "Cancel-After: 5s\r\n", PREDICTIONS).await;
    // Its run has begun: it is canceled, and not aborted.
    let over = becomes(&node, &id, "canceled").await;
    assert_eq!(over["reason"], "deadline", "{over}");
    assert_eq!(service.seen(), 1);
    let whole = Duration::from_secs(5) + took;
    assert!(began.elapsed() < whole, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_output_that_cannot_be_kept_costs_nothing() {
    // More than the files of the account may have.
    let image = "A".repeat(2 << 20);
    let answer = json!({
        "choices": [{ "message": { "content": format!("data:image/png;base64,{image}") } }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
    });
    let answer = json_answer(&answer.to_string());
    let server = HandledServer::by(move |_| Reaction::Answer(answer.clone())).await;
    let rest = "public_url: \"https://h.example\"\nfiles: { account_max_mib: 1 }\n";
    let more = "    tariff: { cost_per_infer: 4 }\n";
    let config = config(server.address, rest, more);
    let node = Node::start(&config).await;
    let id = create(&node, "", PREDICTIONS).await;
    let failed = becomes(&node, &id, "failed").await;
    assert_eq!(failed["reason"], "output_store_failed", "{failed}");
    let events = node.events(1).await;
    let charged = (&events[0]["reason"], &events[0]["neurons"]);
    assert_eq!(charged, (&json!("output_store_failed"), &json!(0.0)));
}

#[tokio::test]
async fn a_job_runs_when_its_input_passes_or_moderation_may_fail() {
    let server = SimulatedServer::fast().await;
    let passing = ScriptedServer::new(&[&json_answer(r#"{"flagged":false}"#)]).await;
    let broken = ScriptedServer::new(&[&json_answer("[]")]).await;
    for (address, on_failure, state) in [
        (passing.address, "fail", "succeeded"),
        (broken.address, "allow", "succeeded"),
        (broken.address, "fail", "failed"),
        ("127.0.0.1:1".parse().unwrap(), "fail", "failed"),
    ] {
        let moderation = format!(
            "    jobs: {{ moderation: {{ url: \"http://{address}\", on_failure: {on_failure} }} }}\n"
        );
        let node = Node::start(&config(server.address, "", &moderation)).await;
        let id = create(&node, "", PREDICTIONS).await;
        becomes(&node, &id, state).await;
    }
}

#[tokio::test]
async fn an_input_of_an_account_that_may_not_run_it_is_not_moderated() {
    let server = SimulatedServer::fast().await;
    let passing = &json_answer(r#"{"flagged":false}"#);
    let service = ScriptedServer::new(&[passing, passing]).await;
    let accounts = accounts(", neurons_per_day: 10");
    let of = |rule: &str| {
        let rules = format!(
            "    tariff: {{ cost_per_infer: 10 }}\n    jobs: {{ when_quota_used: wait, {rule} moderation: \
             {{ url: \"http://{}\" }} }}\n",
            service.address
        );
        config(server.address, &accounts, &rules)
    };
    let node = Node::start(&of("")).await;
    let first = create(&node, KEY_A, PREDICTIONS).await;
    becomes(&node, &first, "succeeded").await;
    let waiting = create(&node, KEY_A, PREDICTIONS).await;
    eventually("it waits for the next day", async || {
        job(&node, &waiting).await["due_at"].as_str().map(drop)
    })
    .await;
    assert_eq!(service.requests().len(), 1, "of the first job alone");
    // A job whose life ends before the next day begins does not wait for it.
    assert_eq!(
        node.reload(&of("max_run_lifetime_secs: 5,")).await.status,
        200
    );
    let short = create(&node, KEY_A, PREDICTIONS).await;
    let ended = eventually("it ends, or waits over midnight", async || {
        let shown = job(&node, &short).await;
        (shown["state"] == "failed" || shown["due_at"].is_string()).then_some(shown)
    })
    .await;
    if ended["state"] == "failed" {
        assert_eq!(ended["reason"], "quota_used", "{ended}");
    } else {
        assert_eq!(second_of_day(&ended["due_at"]), 0, "{ended}");
    }
}

/// Longer than the deadline of the job, shorter than the moderation may take.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_deadline_ends_a_job_whose_moderation_hangs() {
    let server = SimulatedServer::fast().await;
    // The kernel takes the connection, and nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let moderation = format!(
        "    jobs: {{ moderation: {{ url: \"http://{}\", timeout_ms: 30000 }} }}\n",
        silent.local_addr().unwrap()
    );
    let node = Node::start(&config(server.address, "", &moderation)).await;
    let id = create(&node, "cancel-after: 5s\r\n", PREDICTIONS).await;
    let ended = tokio::time::timeout(SOON, becomes(&node, &id, "canceled")).await;
    assert!(ended.is_ok(), "{}", job(&node, &id).await);
    assert_eq!(server.count("served").await, 0);
    node.idle().await;
}
