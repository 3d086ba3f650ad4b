//! Reload is a transaction: the new configuration as a whole, or the old one untouched, and
//! nobody who is being served notices.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use crate::support::{
    ANSWER, Node, ScriptedServer, SimulatedServer, TestClient, accounts, chat, endpoint,
    eventually, model, model_of, one_model,
};

async fn generation(node: &Node) -> u64 {
    let state = node.state().await;
    state["config"]["generation"].as_u64().unwrap()
}

async fn until_generation(node: &Node, expected: u64) {
    eventually(&format!("generation {expected}"), async || {
        (generation(node).await == expected).then_some(())
    })
    .await;
}

fn texts(value: &Value) -> Vec<&str> {
    let list = value.as_array().unwrap();
    list.iter().map(|text| text.as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_changed_file_is_followed_however_it_was_changed() {
    let server = SimulatedServer::fast().await;
    let with = |permits| one_model(server.address, permits, "");
    let node = Node::start(&with(1)).await;
    assert_eq!(generation(&node).await, 1);

    // In place: for a moment it is empty, which no reload takes.
    std::fs::write(node.config_path(), node.config_text(&with(2))).unwrap();
    until_generation(&node, 2).await;

    let beside = node.dir().join("infergate.yaml.new");
    std::fs::write(&beside, node.config_text(&with(3))).unwrap();
    std::fs::rename(&beside, node.config_path()).unwrap();
    until_generation(&node, 3).await;

    // As Kubernetes does it: file -> ..data/file, and ..data changes over.
    for version in ["v1", "v2"] {
        std::fs::create_dir(node.dir().join(version)).unwrap();
        let permits = if version == "v1" { 4 } else { 5 };
        let file = node.dir().join(version).join("infergate.yaml");
        std::fs::write(file, node.config_text(&with(permits))).unwrap();
    }
    symlink("v1", node.dir().join("..data")).unwrap();
    let link = node.dir().join("link");
    symlink("..data/infergate.yaml", &link).unwrap();
    std::fs::rename(&link, node.config_path()).unwrap();
    until_generation(&node, 4).await;
    symlink("v2", node.dir().join("..data_tmp")).unwrap();
    std::fs::rename(node.dir().join("..data_tmp"), node.dir().join("..data")).unwrap();
    until_generation(&node, 5).await;

    let state = node.state().await;
    assert_eq!(state["models"][0]["endpoints"][0]["permits"]["limit"], 5);
    assert_eq!(state["config"]["last_reload_error"], Value::Null);
}

#[tokio::test]
async fn a_hangup_signal_reloads() {
    let server = SimulatedServer::fast().await;
    let mut node = Node::start(&one_model(server.address, 1, "")).await;
    node.write_config(&one_model(server.address, 2, ""));
    node.signal("HUP");
    until_generation(&node, 2).await;
    eventually("the log says why", async || {
        node.log().contains("reason=signal").then_some(())
    })
    .await;
    assert!(node.is_running());
}

#[tokio::test]
async fn a_reload_by_request_answers_with_what_changed() {
    let server = SimulatedServer::fast().await;
    let one = one_model(server.address, 1, "");
    let node = Node::start(&one).await;
    let same = node.post_reload().await;
    assert_eq!(same.status, 200);
    assert_eq!(same.json()["generation"], 1);
    assert_eq!(same.json()["changed"], serde_json::json!([]));

    let two = format!(
        "{}{}",
        one_model(server.address, 1, "    timeout_secs: 77\n"),
        model("n", &[endpoint(server.address, 1)], "")
    );
    // The file is watched too: where that was faster, nothing is left to change, and it is done anew.
    let report = eventually("the request is the first to reload", async || {
        let before = node.reload(&one).await.json()["generation"]
            .as_u64()
            .unwrap();
        let answer = node.reload(&two).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let report = answer.json();
        assert_eq!(report["generation"], before + 1);
        (!texts(&report["changed"]).is_empty()).then_some(report)
    })
    .await;
    let changed = texts(&report["changed"]);
    assert!(
        changed.iter().any(|path| path.contains("timeout_secs")),
        "{changed:?}"
    );
    assert!(
        changed.iter().all(|path| path.starts_with("models")),
        "{changed:?}"
    );
    assert_eq!(report["needs_restart"], serde_json::json!([]));
    let other = node.post("/v1/chat/completions", &chat("n", "")).await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_is_named_until_a_good_one_comes() {
    let server = SimulatedServer::fast().await;
    let good = one_model(server.address, 1, "");
    let node = Node::start(&good).await;
    let bad = "limits: { request_body_mib: -1 }\nno_such_key: 1\nmodels: []\n";
    let answer = node.reload(bad).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    let problems = answer.json()["problems"].as_array().unwrap().clone();
    assert!(problems.len() >= 2, "{problems:?}");
    for problem in &problems {
        assert!(problem["message"].is_string() && problem["path"].is_string());
        assert!(problem["line"].is_u64(), "{problem}");
    }
    let failed = "infergate_config_reload_failed_total";
    assert!(node.metric(failed).await.unwrap() >= 1.0);
    let config = node.state().await["config"].clone();
    assert_eq!(config["generation"], 1);
    assert_eq!(
        config["last_reload_error"]["problems"].as_array().unwrap(),
        &problems
    );
    assert!(
        config["last_reload_error"]["at"]
            .as_str()
            .unwrap()
            .contains('T')
    );
    assert_eq!(
        node.post("/v1/chat/completions", &chat("m", ""))
            .await
            .status,
        200
    );
    assert_eq!(node.get("/readyz").await.status, 200);

    let answer = node.reload(&good).await;
    assert_eq!(
        (answer.status, &answer.json()["generation"]),
        (200, &1.into())
    );
    let config = node.state().await["config"].clone();
    assert_eq!(config["last_reload_error"], Value::Null);
}

#[tokio::test]
async fn a_file_that_is_gone_or_cut_short_changes_nothing() {
    let server = SimulatedServer::fast().await;
    let good = one_model(server.address, 1, "");
    let node = Node::start(&good).await;
    std::fs::remove_file(node.config_path()).unwrap();
    assert_eq!(node.post_reload().await.status, 422);
    let text = node.config_text(&good);
    std::fs::write(node.config_path(), &text[..text.len() - 20]).unwrap();
    assert_eq!(node.post_reload().await.status, 422);
    assert_eq!(
        node.post("/v1/chat/completions", &chat("m", ""))
            .await
            .status,
        200
    );
    assert_eq!(node.reload(&good).await.status, 200);
    assert_eq!(generation(&node).await, 1);
}

#[tokio::test]
async fn a_bad_file_that_stays_is_logged_once() {
    let server = SimulatedServer::fast().await;
    let good = one_model(server.address, 1, "");
    let node = Node::start(&good).await;
    let failed = async || !node.state().await["config"]["last_reload_error"].is_null();
    node.write_config("no_such_key: 1\n");
    eventually("the file is refused", async || failed().await.then_some(())).await;
    // What happens beside the file is no reason to say it again.
    for name in ["one", "two"] {
        std::fs::write(node.dir().join(name), "x").unwrap();
    }
    node.write_config(&good);
    eventually("the file is good again", async || {
        (!failed().await).then_some(())
    })
    .await;
    let refused = node.log().matches("the configuration was refused").count();
    assert_eq!(refused, 1, "{}", node.log());
}

#[tokio::test]
async fn what_cannot_change_live_is_named_and_does_not_change() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let text = node.config_text(&one_model(server.address, 1, ""));
    let moved = text.replace(&node.clients.to_string(), "127.0.0.1:1");
    std::fs::write(node.config_path(), format!("threads: 3\n{moved}")).unwrap();
    let answer = node.post_reload().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let report = answer.json();
    let needs = texts(&report["needs_restart"]);
    assert!(needs.contains(&"threads"), "{needs:?}");
    assert!(
        needs.iter().any(|path| path.starts_with("listen.clients")),
        "{needs:?}"
    );
    assert_eq!(
        node.post("/v1/chat/completions", &chat("m", ""))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_request_keeps_the_configuration_it_began_with() {
    let server = ScriptedServer::held().await;
    let with = |name: &str| {
        format!(
            "node: {{ id: {name}, site: s }}\n{}",
            one_model(server.address, 2, "")
        )
    };
    let node = Node::start(&with("before")).await;
    let old = node.posting("", "").await;
    let until_open = async |count: usize| {
        eventually("it is at the server", async || {
            (server.open() == count).then_some(())
        })
        .await;
    };
    until_open(1).await;
    assert_eq!(node.reload(&with("after")).await.status, 200);
    let new = node.posting("", "").await;
    until_open(2).await;
    for (posted, name) in [(old, "before"), (new, "after")] {
        server.next();
        // Notified in order of arrival.
        let answer = posted.answer().await;
        assert_eq!(node.event_of(&answer).await["node"], name);
    }
}

#[tokio::test]
async fn permits_in_use_survive_and_a_lowered_limit_is_kept_by_new_grants() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    let mut posted = Vec::new();
    for count in 1..=2 {
        posted.push(node.posting("", "").await);
        node.settles(count as u64, 0).await;
        eventually("it is at the server", async || {
            (server.open() == count).then_some(())
        })
        .await;
    }
    assert_eq!(
        node.reload(&one_model(server.address, 1, "")).await.status,
        200
    );
    let permits = node.state().await["models"][0]["endpoints"][0]["permits"].clone();
    assert_eq!(permits, serde_json::json!({ "used": 2, "limit": 1 }));
    posted.push(node.posting("", "").await);
    node.settles(2, 1).await;
    server.next();
    node.settles(1, 1).await;
    assert_eq!(server.requests().len(), 2);
    server.next();
    eventually("the third is there", async || {
        (server.requests().len() == 3).then_some(())
    })
    .await;
    posted.push(node.posting("", "").await);
    node.settles(1, 1).await;
    // A raised limit lets the waiter in at once.
    assert_eq!(
        node.reload(&one_model(server.address, 5, "")).await.status,
        200
    );
    node.settles(2, 0).await;
    for (index, posted) in posted.into_iter().enumerate() {
        if index >= 2 {
            eventually("it is held", async || (server.open() > 0).then_some(())).await;
            server.next();
        }
        assert_eq!(posted.answer().await.text(), ANSWER);
    }
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_removed_endpoint_drains_and_is_forgotten_with_its_last_request() {
    let (old, new) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let node = Node::start(&one_model(old.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;
    assert_eq!(
        node.reload(&one_model(new.address, 1, "")).await.status,
        200
    );
    // The waiter is not bound to the endpoint that went.
    assert_eq!(waiter.answer().await.status, 200);
    let endpoints = node.state().await["models"][0]["endpoints"].clone();
    let draining = endpoints
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["health"] == "draining");
    assert_eq!(draining.unwrap()["permits"]["used"], 1);
    old.next();
    assert_eq!(holder.answer().await.text(), ANSWER);
    eventually("it is forgotten", async || {
        let state = node.state().await;
        (state["models"][0]["endpoints"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    assert_eq!((old.requests().len(), new.count("served").await), (1, 1));
}

#[tokio::test]
async fn those_who_wait_for_a_removed_model_are_told_and_those_it_serves_are_served() {
    let (server, other) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let other = format!("models:\n{}", model("n", &[endpoint(other.address, 1)], ""));
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;
    assert_eq!(node.reload(&other).await.status, 200);
    let reported = waiter.answer().await;
    assert_eq!(reported.status, 404, "{}", reported.text());
    assert_eq!(reported.json()["error"]["code"], "model_not_found");
    assert_eq!(node.event_of(&reported).await["error_code"], "5007");
    let unknown = node.posting("", "").await.answer().await;
    assert_eq!(unknown.json()["error"]["code"], "model_not_found");
    server.next();
    assert_eq!(holder.answer().await.text(), ANSWER);
}

#[tokio::test]
async fn a_request_of_the_old_configuration_cannot_wait_where_nobody_serves_any_more() {
    let (server, other) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let other = format!("models:\n{}", model("n", &[endpoint(other.address, 1)], ""));
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let mut late = node.client().await;
    let body = chat("m", "");
    let (begin, end) = body.split_at(10);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{begin}",
        body.len()
    );
    late.send(head).await;
    eventually("its body is awaited", async || {
        (node.metric("infergate_buffered_body_bytes").await? > 0.0).then_some(())
    })
    .await;
    assert_eq!(node.reload(&other).await.status, 200);
    late.send(end).await;
    let answer = late.response().await;
    assert_eq!(answer.status, 404, "{}", answer.text());
    assert_eq!(node.event_of(&answer).await["error_code"], "5007");
    assert_eq!(server.requests().len(), 0);
}

/// Closed-loop clients until told to stop; what is not a 200 is a failure.
struct LoadGenerator {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl LoadGenerator {
    fn on(node: &Node, clients: usize) -> LoadGenerator {
        let mut load = LoadGenerator {
            stop: Arc::default(),
            served: Arc::default(),
            clients: JoinSet::new(),
        };
        for _ in 0..clients {
            let (address, stop, served) = (node.clients, load.stop.clone(), load.served.clone());
            load.clients.spawn(async move {
                let mut client = TestClient::connect(address).await;
                while !stop.load(Ordering::Relaxed) {
                    client
                        .post("", "/v1/chat/completions", &chat("m", ""))
                        .await;
                    let answer = client.response().await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        load
    }

    /// Waits until `more` further requests were served.
    async fn wait_for_progress(&self, more: usize) {
        let enough = self.served.load(Ordering::Relaxed) + more;
        eventually("the load goes on", async || {
            (self.served.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }

    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
        self.served.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn algorithms_may_change_under_load_and_nobody_is_lost_or_served_twice() {
    let server = SimulatedServer::taking(2).await;
    let with = |algorithm: &str| {
        let queue = format!("    queue: {{ algorithm: {algorithm}, capacity: 50 }}\n");
        one_model(server.address, 2, &queue)
    };
    let node = Node::start(&with("fifo")).await;
    let load = LoadGenerator::on(&node, 12);
    for round in 1..=40 {
        let algorithm = ["fair", "priority", "token-fair", "fifo"][round % 4];
        assert_eq!(node.reload(&with(algorithm)).await.status, 200);
        load.wait_for_progress(2).await;
    }
    let served = load.end().await;
    node.settles(0, 0).await;
    assert_eq!(server.count("high_water").await, 2);
    assert_eq!(server.count("served").await, served as u64);
    assert_eq!(node.events(served).await.len(), served);
}

#[tokio::test]
async fn a_hundred_reloads_under_load_fail_no_request() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 4, "")).await;
    let load = LoadGenerator::on(&node, 4);
    for round in 0..100 {
        let answer = match round % 4 {
            0 => node.reload("models: [").await,
            1 => {
                std::fs::remove_file(node.config_path()).unwrap();
                node.post_reload().await
            }
            _ => {
                node.reload(&one_model(server.address, 4 + round % 3, ""))
                    .await
            }
        };
        let expected = if round % 4 < 2 { 422 } else { 200 };
        assert_eq!(answer.status, expected, "{}", answer.text());
    }
    load.wait_for_progress(10).await;
    let served = load.end().await;
    assert!(served > 10);
    assert!(server.count("high_water").await <= 6);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_model_that_returns_or_is_renamed_does_not_get_its_permits_twice() {
    let server = ScriptedServer::held().await;
    let named = |name: &str, more: &str| {
        let model = model(name, &[endpoint(server.address, 2)], more);
        format!("models:\n{model}")
    };
    let node = Node::start(&named("m", "")).await;
    let before = [node.posting("", "").await, node.posting("", "").await];
    node.settles(2, 0).await;
    assert_eq!(node.reload("models: []\n").await.status, 200);
    assert_eq!(node.reload(&named("m", "")).await.status, 200);
    let waits = node.posting("", "").await;
    node.settles(0, 1).await;
    assert_eq!(
        node.reload(&named("renamed", "    aliases: [m]\n"))
            .await
            .status,
        200
    );
    let waits_too = node.posting("", "").await;
    node.settles(0, 1).await;
    assert_eq!(server.requests().len(), 2);
    // Whoever waited for the name that went is told so.
    assert_ne!(waits.answer().await.status, 200);
    server.next();
    server.next();
    for posted in before {
        assert_eq!(posted.answer().await.status, 200);
    }
    eventually("the permit was handed on", async || {
        (server.requests().len() == 3).then_some(())
    })
    .await;
    server.next();
    assert_eq!(waits_too.answer().await.status, 200);
}

#[tokio::test]
async fn who_waits_while_the_model_becomes_another_kind_of_server_is_asked_in_its_protocol() {
    let (old, new) = (ScriptedServer::held().await, ScriptedServer::held().await);
    let node = Node::start(&one_model(old.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let mut waiter = node.client().await;
    waiter.post("", "/ai/run/m", r#"{"prompt":"hi"}"#).await;
    node.settles(1, 1).await;
    let tgi = model_of("m", "text-generation", "tgi", new.address);
    assert_eq!(node.reload(&format!("models:\n{tgi}")).await.status, 200);
    eventually("the waiter is at the new server", async || {
        (new.requests().len() == 1).then_some(())
    })
    .await;
    assert!(new.requests()[0].starts_with("POST /generate "));
    new.next();
    waiter.response().await;
    old.next();
    assert_eq!(holder.answer().await.status, 200);
}

#[tokio::test]
async fn who_waits_while_the_key_is_revoked_or_the_model_withdrawn_is_refused_at_its_turn() {
    for (change, status) in [("revoked", 401), ("withdrawn", 403)] {
        let server = ScriptedServer::held().await;
        let one = one_model(server.address, 1, "");
        let node = Node::start(&(accounts("") + &one)).await;
        let holder = node.posting("Authorization: Bearer key-b\r\n", "").await;
        node.settles(1, 0).await;
        let waiter = node.posting("Authorization: Bearer key-a\r\n", "").await;
        node.settles(1, 1).await;
        let hash = |key: &str| hex::encode(Sha256::digest(key));
        let next = match change {
            "revoked" => accounts("").replace(&hash("key-a"), &hash("key-c")),
            _ => accounts(", models: [other]"),
        };
        assert_eq!(node.reload(&(next + &one)).await.status, 200, "{change}");
        server.next();
        assert_eq!(holder.answer().await.status, 200);
        assert_eq!(waiter.answer().await.status, status, "{change}");
        assert_eq!(server.requests().len(), 1, "{change}");
        node.settles(0, 0).await;
    }
}
