//! Plugins change while requests and streams run, good ones for bad ones, and nobody notices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::support::{
    Node, SimulatedServer, TestClient, chat, flat_price, one_model, refusing_settings,
    trapping_price,
};
use infergate::simulate;

const RELOADS: usize = 50;
/// Requests that must have been answered before the next reload, so that each one meets load.
const REQUESTS_A_RELOAD: u64 = 40;
/// Rate of all clients together.
const REQUESTS_PER_SECOND: u32 = 200;
const CLIENTS: u32 = 4;

/// Configuration of a reload, and whether it must be accepted.
struct ReloadStep {
    bytes: Vec<u8>,
    /// SHA-256 of the bytes, in hex.
    sha256: String,
    world: &'static str,
    digest: Option<&'static str>,
    taken: bool,
}

fn reload_steps() -> Vec<ReloadStep> {
    let turn = |bytes: Vec<u8>, taken| ReloadStep {
        sha256: hex::encode(Sha256::digest(&bytes)),
        bytes,
        world: "billing-formula",
        digest: None,
        taken,
    };
    vec![
        turn(flat_price(1.0), true),
        turn(flat_price(2.0), true),
        turn(trapping_price(), true),
        turn(refusing_settings(), false),
        ReloadStep {
            digest: Some("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
            ..turn(flat_price(3.0), false)
        },
        ReloadStep {
            world: "routing-policy",
            ..turn(flat_price(4.0), false)
        },
        turn(vec![0; 50 << 20], false),
    ]
}

/// A configuration whose only plugin is that of the turn, in a file of its own.
fn config(
    server: &SimulatedServer,
    node_dir: Option<&std::path::Path>,
    turn: &ReloadStep,
) -> String {
    let file = format!("{}.wasm", &turn.sha256[..16]);
    if let Some(dir) = node_dir {
        std::fs::write(dir.join(&file), &turn.bytes).unwrap();
    }
    let named = turn.digest.unwrap_or(&turn.sha256);
    let model = "    tariff: { cost_per_infer: 100 }\n    plugins: { billing: p }\n";
    format!(
        "{}plugins:\n  - {{ name: p, world: {}, file: \"{file}\", sha256: \"{named}\", \
         limits: {{ deadline_ms: 500 }} }}\n",
        one_model(server.address, 64, model),
        turn.world
    )
}

/// Sends its part of [`REQUESTS_PER_SECOND`] chats, every other one a stream, until told to stop. A
/// machine that is too slow for the pace goes as fast as it can.
async fn crowd(node: Arc<Node>, stop: Arc<AtomicBool>, answered: Arc<AtomicU64>) -> u64 {
    let mut client: TestClient = node.client().await;
    let mut sent = 0;
    let mut pace = interval(Duration::from_secs(1) * CLIENTS / REQUESTS_PER_SECOND);
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        let more = match sent % 2 {
            0 => r#","max_tokens":3"#,
            _ => r#","max_tokens":3,"stream":true"#,
        };
        client
            .post("", "/v1/chat/completions", &chat("m", more))
            .await;
        let answer = client.response().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.broken);
        sent += 1;
        answered.fetch_add(1, Ordering::Relaxed);
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_reloads_of_good_and_bad_plugins_fail_no_request() {
    let server = SimulatedServer::start(simulate::Config {
        concurrency: 64,
        ..simulate::Config::instant()
    })
    .await;
    let turns = reload_steps();
    let node = Node::start(&one_model(server.address, 64, "")).await;
    let first = config(&server, Some(node.dir()), &turns[0]);
    let answer = node.reload(&first).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let node = Arc::new(node);
    let (stop, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut workers = JoinSet::new();
    for _ in 0..CLIENTS {
        let (node, stop) = (Arc::clone(&node), Arc::clone(&stop));
        workers.spawn(crowd(node, stop, Arc::clone(&answered)));
    }
    let mut good = BTreeSet::from([turns[0].sha256.clone()]);
    for reload in 0..RELOADS {
        let turn = &turns[reload % turns.len()];
        let text = config(&server, Some(node.dir()), turn);
        let before = answered.load(Ordering::Relaxed);
        let answer = node.reload(&text).await;
        let expected = if turn.taken { 200 } else { 422 };
        assert_eq!(
            answer.status,
            expected,
            "reload {reload}: {}",
            answer.text()
        );
        if turn.taken {
            good.insert(turn.sha256.clone());
        }
        crate::support::eventually("requests go on", async || {
            (answered.load(Ordering::Relaxed) >= before + REQUESTS_A_RELOAD).then_some(())
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut sent = 0;
    while let Some(done) = workers.join_next().await {
        sent += done.unwrap();
    }

    let trapping = &turns[2].sha256;
    let events = node.events(usize::try_from(sent).unwrap()).await;
    assert_eq!(events.len() as u64, sent);
    for event in &events {
        let plugins = event["plugins"].as_array().unwrap();
        assert_eq!(plugins.len(), 1, "one revision priced it: {event}");
        let digest = plugins[0]["sha256"].as_str().unwrap();
        assert!(good.contains(digest), "{event}");
        assert_ne!(digest, *trapping, "what traps prices nothing: {event}");
        let price = match digest {
            _ if digest == turns[0].sha256 => 1.0,
            _ => 2.0,
        };
        assert_eq!(event["neurons"], Value::from(price), "{event}");
        assert_eq!(event["priced_by"], "p", "{event}");
    }
}
