//! Trust boundary: headers of a client about hops, deadlines, accounts and sites have no effect.

use serde_json::json;

use super::{SERVING_NOTHING, member, wait_until_serving_known};
use crate::support::{
    ANSWER, Cluster, ClusterCredentials, ScriptedServer, accounts, chat, endpoint, eventually,
    free_address, json_answer, model,
};

const CHAT: &str = "/v1/chat/completions";

/// Header lines that are trusted from nodes only (one of them from privileged accounts), as an
/// attacker would forge them.
const LINES: [&str; 11] = [
    "x-infergate-hops: 3;1;29500;2;4;1;0;1;1;0;0;0;1;1;0;4:gpu01:r13:somebody-rich12:secret-model4:gpu010:mars/rover",
    "x-infergate-account: somebody-rich",
    "x-infergate-model: secret-model",
    "x-infergate-requested-model: another",
    "x-infergate-node-path: mars/rover",
    "x-infergate-attempts: 2",
    "x-infergate-elapsed-us: 3600000000",
    "x-infergate-queued-us: 1800000000",
    "x-infergate-forced-site: mars",
    "x-infergate-site: mars",
    "x-infergate-node: gpu0",
];

/// For model servers: what the gateway alone may say to them.
const TO_SERVERS: &str = "cf-ai-neurons: 1\r\ncf_ai_account: rich\r\nX_Infergate-Seen: 1\r\n";

fn heads() -> Vec<String> {
    let upper = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        format!("{}: {value}", name.to_uppercase())
    };
    let folded = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        format!("{}: {value}", name.replace('-', "_"))
    };
    let mut heads: Vec<String> = Vec::new();
    for line in LINES {
        heads.push(format!("{line}\r\n"));
        heads.push(format!("{line}\r\n{line}\r\n"));
        heads.push(format!("{}\r\n", upper(line)));
        heads.push(format!("{}\r\n", folded(line)));
    }
    for at in 0..6 {
        // All but one of them, as a whole head has them.
        let most = LINES.iter().enumerate().filter(|(other, _)| *other != at);
        let most: String = most.map(|(_, line)| format!("{line}\r\n")).collect();
        heads.push(most + TO_SERVERS);
    }
    assert_eq!(heads.len(), 50);
    heads
}

/// Head of a chat request that node `from` forwards for `account`.
pub fn forwarded(from: &str, generation: u64, account: &str) -> String {
    let body = chat("m", "");
    let length = body.len();
    let place = format!("fra/{from}");
    let texts = [
        from,
        "0123456789abcdef0123456789abcdef",
        account,
        "m",
        from,
        &place,
    ];
    let texts = texts.map(|text| format!("{}:{text}", text.len())).concat();
    format!(
        "POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         x-infergate-hops: 3;{generation};29500;2;4;1;0;1;1;0;0;0;1;1;0;{texts}\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn who_has_a_certificate_and_is_not_of_the_fleet_is_served_nothing() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let (kin, at_gpu, at_edge) = (ClusterCredentials::new(), free_address(), free_address());
    let limited = accounts(", neurons_per_day: 1000");
    let tariff = "    tariff: { cost_per_infer: 4, coefficients: {} }\n";
    let model = model("m", &[endpoint(server.address, 4)], tariff);
    let serving = format!("{limited}models:\n{model}");
    let gpu = kin.start("gpu0", at_gpu, "seeds: []", &serving).await;
    let peers = ClusterCredentials::peers_of(&gpu);
    let stranger = forwarded("grafana", 1, "a");
    let answer = kin.send_request("grafana", "gpu0", peers, &stranger).await;
    assert!(
        answer.contains("x-infergate-forward-rejected: no-capacity"),
        "{answer}"
    );
    assert!(!answer.contains(" 200 "), "{answer}");
    let refused = "infergate_connections_refused_total{reason=\"peer-not-member\"}";
    assert_eq!(gpu.metric(refused).await, Some(1.0));
    assert!(server.requests().is_empty());

    let seeds = format!("seeds: [\"{at_gpu}\"]");
    let edge = format!("{limited}{SERVING_NOTHING}");
    let edge = kin.start("edge", at_edge, &seeds, &edge).await;
    let generation = eventually("gpu0 knows the edge", async || {
        let state = gpu.state().await;
        let known = state["nodes"].as_array()?.first()?.clone();
        (known["gone"] == false).then(|| known["generation"].as_u64().unwrap())
    })
    .await;
    // Of another process of that name nothing is taken either.
    let former = forwarded("edge", generation - 1, "a");
    let answer = kin.send_request("edge", "gpu0", peers, &former).await;
    assert!(
        answer.contains("x-infergate-forward-rejected: no-capacity"),
        "{answer}"
    );
    // An account that is not configured here is served, and not counted.
    for account in ["a", "invented"] {
        let answer = kin
            .send_request(
                "edge",
                "gpu0",
                peers,
                &forwarded("edge", generation, account),
            )
            .await;
        assert!(answer.contains(" 200 "), "{answer}");
    }
    let kept = eventually("the day's use is on the disk", async || {
        let path = gpu.dir().join("state/neurons-of-the-day.json");
        let kept = std::fs::read_to_string(path).ok()?;
        kept.contains("4000000").then_some(kept)
    })
    .await;
    assert!(
        kept.contains("\"a\"") && !kept.contains("invented"),
        "{kept}"
    );
    drop(edge);
}

#[tokio::test]
async fn fifty_heads_that_pretend_to_come_from_a_node_change_nothing() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let model = model("m", &[endpoint(server.address, 4)], "");
    let fleet = Cluster::start(&[
        member("edge", "fra", SERVING_NOTHING),
        member("gpu0", "ams", &format!("models:\n{model}")),
    ])
    .await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    wait_until_serving_known(edge, "gpu0").await;
    for head in &heads() {
        for (asked, site, path) in [
            (edge, "fra", json!(["fra/edge", "ams/gpu0"])),
            (gpu, "ams", json!(["ams/gpu0"])),
        ] {
            let answer = asked.post_as(head, CHAT, &chat("m", "")).await;
            assert_eq!(answer.status, 200, "{head}: {}", answer.text());
            let event = gpu.event_of(&answer).await;
            assert_eq!(event["account_id"], "anonymous", "{head}");
            assert_eq!(event["path"], path, "{head}");
            assert_eq!(
                (&event["attempts"], &event["model_id"]),
                (&json!(1), &json!("m"))
            );
            assert_eq!(event["source_site"], site);
            let counted_ms = event["request_time_ms"].as_f64().unwrap();
            assert!(counted_ms < 1_800_000.0, "{head}: {event:#}");
        }
    }
    let received = server.requests();
    assert_eq!(received.len(), 100);
    for line in received.iter().flat_map(|request| request.lines()) {
        let name = line.split(':').next().unwrap_or_default();
        let name = name.to_ascii_lowercase().replace('_', "-");
        let is_internal = ["x-infergate-", "cf-ai-"]
            .iter()
            .any(|of| name.starts_with(of));
        assert!(!is_internal, "a model server was told {line:?}");
    }
    // Forwarding is not for the clients' listener, whoever asks.
    for path in ["/peer/ping", "/peer/draining", "/peer/explain/x"] {
        let answer = edge.post(path, "{}").await;
        assert!(
            matches!(answer.status, 401 | 404),
            "{path}: {}",
            answer.status
        );
    }
    assert_eq!(edge.state().await["node"]["draining"], false);
}
