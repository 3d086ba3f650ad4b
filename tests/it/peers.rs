//! The peers listener: nodes of the fleet are let in by their certificates, nobody else is, and nobody
//! is served there what clients are.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use crate::support::{
    Authority, Certificate, ClusterCredentials, Node, SimulatedServer, TestClient, endpoint,
    eventually, free_address, model, one_model, over_tls,
};

const PING: &str = "GET /peer/ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Writes what node `a` shows, and the authority it believes.
fn write(dir: &Path, authority: &Authority, certificate: &Certificate) {
    let (certificate, key) = certificate.pem();
    std::fs::write(dir.join("node.pem"), certificate).unwrap();
    std::fs::write(dir.join("node-key.pem"), key).unwrap();
    authority.write(dir);
}

/// The peers listener.
fn listener(address: SocketAddr, dir: &Path) -> String {
    let file = |name: &str| dir.join(name).display().to_string();
    format!(
        "  peers: {{ address: \"{address}\", tls: {{ certificate: \"{}\", private_key: \"{}\", client_ca: \"{}\" }} }}\n",
        file("node.pem"),
        file("node-key.pem"),
        file("own-ca.pem"),
    )
}

/// Listener, name and one model.
fn config(address: SocketAddr, dir: &Path, server: &SimulatedServer) -> String {
    let listener = listener(address, dir);
    let model = model("m", &[endpoint(server.address, 8)], "");
    format!("{listener}node: {{ id: a, site: fra }}\nmodels:\n{model}")
}

/// The word of a node that it takes no further requests.
fn draining_report(name: &str, generation: u64) -> String {
    format!(
        "POST /peer/draining HTTP/1.1\r\nHost: a\r\nx-infergate-node: {name}\r\n\
         x-infergate-generation: {generation}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

/// Status and body.
fn parts(answer: &str) -> (&str, &str) {
    let status = answer.split(' ').nth(1).unwrap_or("none");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status, body)
}

#[tokio::test]
async fn a_node_of_the_fleet_is_answered_what_nodes_ask_and_nobody_else_anything() {
    let (fleet, other) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &fleet, &fleet.certify("a"));
    let (server, peers) = (SimulatedServer::fast().await, free_address());
    let node = Node::start(&config(peers, dir.path(), &server)).await;
    let b = fleet.certify("b");
    let ask = async |shown: Option<&Certificate>, request: &str| {
        over_tls(peers, "a", &fleet, shown, request).await
    };

    let answer = ask(Some(&b), PING).await.unwrap();
    assert_eq!(parts(&answer), ("204", ""), "{answer}");
    for (why, shown) in [
        ("no certificate", None),
        ("another authority", Some(other.certify("b"))),
        ("expired", Some(fleet.expired("b"))),
    ] {
        let refused = ask(shown.as_ref(), PING).await;
        assert!(refused.is_err(), "{why}: {refused:?}");
    }
    let mut plain = TestClient::connect(peers).await;
    plain.send(PING).await;
    assert!(plain.closes_within(Duration::from_secs(20)).await);
    assert!(!String::from_utf8_lossy(plain.pending()).contains("HTTP/"));
    eventually("four were refused", async || {
        let refused = node
            .metric("infergate_connections_refused_total{reason=\"peer-not-trusted\"}")
            .await;
        (refused == Some(4.0)).then_some(())
    })
    .await;
    assert!(
        node.log()
            .contains("did not prove to be a node of the cluster")
    );

    let answered = node.posting("", "").await.answer().await;
    let id = answered.header("x-request-id").unwrap();
    let trace = format!("GET /peer/explain/{id} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let reported = eventually("the trace is kept", async || {
        let answer = ask(Some(&b), &trace).await.unwrap();
        let (status, body) = parts(&answer);
        (status == "200").then(|| serde_json::from_str::<Value>(body).unwrap())
    })
    .await;
    assert_eq!(reported["request_id"], id);

    for (request, status) in [
        (draining_report("b", 1), "204"),
        (draining_report("c", 1), "403"),
        (trace.replace(id, "0123"), "404"),
        (PING.replace("/peer/ping", "/peer/nothing"), "404"),
        // What a client would be told, a node that forwards for nobody is not.
        (PING.replace("/peer/ping", "/v1/models"), "400"),
    ] {
        let answer = ask(Some(&b), &request).await.unwrap();
        assert_eq!(parts(&answer).0, status, "{request}");
    }
    let of_client = TestClient::exchange(node.clients, PING).await;
    assert_eq!(of_client.status, 404);
}

#[tokio::test]
async fn silent_connections_from_the_address_of_a_node_do_not_keep_it_out() {
    let fleet = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &fleet, &fleet.certify("a"));
    let (server, peers) = (SimulatedServer::fast().await, free_address());
    let node = Node::start(&config(peers, dir.path(), &server)).await;
    let b = fleet.certify("b");
    let burst = async |count: usize| {
        let pings = (0..count).map(|_| over_tls(peers, "a", &fleet, Some(&b), PING));
        for answer in join_all(pings).await {
            assert_eq!(parts(&answer.unwrap()).0, "204");
        }
    };
    let limited = "infergate_connections_refused_total{reason=\"peer-limit\"}";
    burst(18).await;
    assert_eq!(node.metric(limited).await.unwrap_or(0.0), 0.0);
    // `over_tls` connects from there as well.
    let here = Ipv4Addr::LOCALHOST;
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TestClient::connect_from(here, peers).await);
    }
    eventually("the oldest of them had to give way", async || {
        (node.metric(limited).await >= Some(100.0)).then_some(())
    })
    .await;
    burst(40).await;
}

#[tokio::test]
async fn a_node_that_says_that_it_drains_is_believed_for_the_process_it_is() {
    let (fleet, server) = (ClusterCredentials::new(), SimulatedServer::fast().await);
    let (at_a, at_b) = (free_address(), free_address());
    let seeds = format!("seeds: [\"{at_a}\"]");
    let served = one_model(server.address, 4, "");
    let a = fleet.start("a", at_a, "seeds: []", &served).await;
    let b = fleet.start("b", at_b, &seeds, &served).await;
    let sees = async |node: &Node| {
        eventually("the other node is seen", async || {
            let state = node.state().await;
            let others = state["nodes"].as_array()?.first()?.clone();
            (others["gone"] == false).then_some(others)
        })
        .await
    };
    let address: SocketAddr = sees(&b).await["address"].as_str().unwrap().parse().unwrap();
    let generation = sees(&a).await["generation"].as_u64().unwrap();
    for (output, believed) in [(generation - 1, false), (generation, true)] {
        let answer = fleet
            .send_request("b", "a", address, &draining_report("b", output))
            .await;
        assert_eq!(parts(&answer).0, "204", "{answer}");
        assert_eq!(sees(&a).await["draining"], believed, "{output}");
    }
    // It speaks for itself alone.
    let answer = fleet
        .send_request("b", "a", address, &draining_report("a", generation))
        .await;
    assert_eq!(parts(&answer).0, "403", "{answer}");
}

#[tokio::test]
async fn certificates_of_nodes_are_followed_and_files_that_do_not_fit_change_nothing() {
    let (first, second) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &first, &first.certify("a"));
    let (server, peers) = (SimulatedServer::fast().await, free_address());
    let text = config(peers, dir.path(), &server);
    let node = Node::start(&text).await;
    let ping = async |fleet: &Authority| {
        let b = fleet.certify("b");
        let answer = over_tls(peers, "a", fleet, Some(&b), PING).await;
        answer.is_ok_and(|answer| parts(&answer).0 == "204")
    };
    assert!(ping(&first).await && !ping(&second).await);

    let (_, stray) = first.certify("a").pem();
    let key = dir.path().join("node-key.pem");
    std::fs::write(&key, stray).unwrap();
    let refused = node.post_reload().await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let problem = &refused.json()["problems"][0];
    assert_eq!(problem["path"], "listen.peers.tls.private_key");
    assert!(problem["line"].as_u64().unwrap() > 1);
    assert!(
        problem["message"]
            .as_str()
            .unwrap()
            .contains("does not go with")
    );
    assert!(ping(&first).await);

    write(dir.path(), &second, &second.certify("b"));
    let refused = node.post_reload().await.json();
    let message = refused["problems"][0]["message"].as_str().unwrap();
    assert!(message.contains("does not name this node"), "{message}");

    write(dir.path(), &second, &second.certify("a"));
    eventually("the second authority's are let in", async || {
        ping(&second).await.then_some(())
    })
    .await;
    assert!(!ping(&first).await);
    let state = node.state().await;
    assert!(state["config"]["last_reload_error"].is_null(), "{state}");

    let renamed = text.replace("{ id: a, site: fra }", "{ id: c, site: ams }");
    write(dir.path(), &second, &second.certify("c"));
    let report = node.reload(&renamed).await.json();
    assert_eq!(
        report["needs_restart"],
        serde_json::json!(["node.id", "node.site"])
    );
    let own = &node.state().await["node"];
    assert_eq!((&own["id"], &own["site"]), (&"a".into(), &"fra".into()));
    assert!(ping(&second).await, "it shows the certificate of its name");
    write(dir.path(), &second, &second.certify("a"));

    let moved = text.replace(&peers.to_string(), &free_address().to_string());
    let report = node.reload(&moved).await.json();
    assert_eq!(
        report["needs_restart"],
        serde_json::json!(["listen.peers.address"])
    );
    assert!(ping(&second).await, "it listens where it did");
}
