//! TLS towards model servers: a server proves who it is, or it is sent nothing.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::{
    ANSWER, Authority, Node, ScriptedServer, SimulatedServer, TestResponse, TlsFront, endpoint,
    eventually, json_answer, model,
};

/// Model `m` on one https endpoint; `more` are further keys of that endpoint.
fn over_tls(host: &str, address: SocketAddr, more: &str) -> String {
    let endpoint = format!(
        "url: \"https://{host}:{}\", max_concurrent_requests: 8, api_key: sk-secret{more}",
        address.port()
    );
    format!("models:\n{}", model("m", &[endpoint], ""))
}

async fn ask(node: &Node, more: &str) -> TestResponse {
    node.posting("", more).await.answer().await
}

#[tokio::test]
async fn a_server_that_proves_its_name_is_sent_requests_over_kept_connections() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let front = TlsFront::start(&authority.certify("localhost"), server.address).await;
    let ca = format!(", ca_file: \"{}\"", authority.write(dir.path()));
    let node = Node::start(&over_tls("localhost", front.address, &ca)).await;
    for _ in 0..10 {
        let answer = ask(&node, "").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // With its permit back, its connection is too.
        node.idle().await;
    }
    let event = node.event_of(&ask(&node, "").await).await;
    assert_eq!(
        event["upstream"],
        format!("https://localhost:{}", front.address.port())
    );
    assert_eq!(event["flags"]["external_endpoint"], true);
    let names = front.names();
    assert!(
        names
            .iter()
            .all(|name| name.as_deref() == Some("localhost")),
        "{names:?}"
    );
    // Probes come meanwhile, and one may take the connection that waits just when a request wants it.
    assert!(
        names.len() < 11,
        "{} connections for 11 requests",
        names.len()
    );

    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let front = TlsFront::start(&authority.certify("localhost"), server.address).await;
    let node = Node::start(&over_tls("localhost", front.address, &ca)).await;
    assert_eq!(ask(&node, "").await.status, 200);
    let request = server.requests().remove(0).to_ascii_lowercase();
    assert!(
        request.contains("authorization: bearer sk-secret\r\n"),
        "{request}"
    );
    let host = format!("host: localhost:{}\r\n", front.address.port());
    assert!(request.contains(&host), "{request}");
}

#[tokio::test]
async fn streams_and_large_bodies_pass_and_a_client_that_leaves_is_felt_behind_tls() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let front = TlsFront::start(&authority.certify("127.0.0.1"), server.address).await;
    let ca = format!(", ca_file: \"{}\"", authority.write(dir.path()));
    let node = Node::start(&over_tls("127.0.0.1", front.address, &ca)).await;
    let answer = ask(&node, r#","stream":true"#).await;
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "{}",
        answer.text()
    );
    let large = format!(r#","user":"{}""#, "x".repeat(1 << 20));
    assert_eq!(ask(&node, &large).await.status, 200);
    let stalls = r#","stream":true,"max_tokens":8,"x_sim_fault":"stall-mid-stream""#;
    let mut leaving = node.posting("", stalls).await.0;
    leaving.saw("data: ").await;
    leaving.close();
    node.settles(0, 0).await;
    eventually("the server sees it", async || {
        (server.count("cancelled").await == 1).then_some(())
    })
    .await;
}

/// Asks an endpoint whose server cannot prove itself: the answer, its event, and the log. The
/// health checks take such an endpoint down within a second, so each try is at a fresh one.
async fn refused(host: &str, front: &TlsFront, more: &str) -> (TestResponse, Value, String) {
    let sound = SimulatedServer::fast().await;
    let plain = format!("models:\n{}", model("m", &[endpoint(sound.address, 1)], ""));
    let node = Node::start(&plain).await;
    let mut round = 0;
    let answer = eventually("the endpoint is tried before it is down", async || {
        round += 1;
        let url = format!("https://{host}:{}", front.address.port());
        let config = over_tls(host, front.address, more).replace(&url, &format!("{url}/{round}"));
        let config = config.replace(
            "    endpoints:",
            "    queue: { when_unhealthy: refuse }\n    endpoints:",
        );
        let reloaded = node.reload(&config).await;
        assert_eq!(reloaded.status, 200, "{}", reloaded.text());
        Some(ask(&node, "").await).filter(|answer| answer.status != 503)
    })
    .await;
    let event = node.event_of(&answer).await;
    (answer, event, node.log())
}

#[tokio::test]
async fn a_server_that_does_not_prove_its_name_is_sent_nothing_and_the_log_says_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let own = format!(", ca_file: \"{}\"", authority.write(dir.path()));
    let cases = [
        (
            authority.certify("somebody.else"),
            &*own,
            "not valid for name",
        ),
        (other.certify("127.0.0.1"), &own, "UnknownIssuer"),
        (authority.expired("127.0.0.1"), &own, "expired"),
        (authority.certify("127.0.0.1"), "", "UnknownIssuer"),
    ];
    for (certificate, ca, why) in cases {
        let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
        let front = TlsFront::start(&certificate, server.address).await;
        let (answer, event, log) = refused("127.0.0.1", &front, ca).await;
        assert_eq!(answer.status, 502, "{why}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "upstream_not_trusted");
        assert_eq!(
            (&event["reason"], &event["error_code"], &event["outcome"]),
            (
                &"upstream_not_trusted".into(),
                &"3050".into(),
                &"failed".into()
            )
        );
        assert!(log.contains("certificate is not trusted"), "{log}");
        assert!(log.contains(why), "no {why:?} in {log}");
        assert!(!log.contains("sk-secret"));
        assert_eq!(
            (server.requests().len(), front.names().len()),
            (0, 0),
            "{why}"
        );
        assert!(front.failed() > 0);
    }
}

#[tokio::test]
async fn a_server_that_speaks_plain_text_gets_no_request_in_plain_text() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let node = Node::start(&over_tls("127.0.0.1", server.address, "")).await;
    eventually("it is down", async || {
        let state = node.state().await;
        (state["models"][0]["endpoints"][0]["health"] == "down").then_some(())
    })
    .await;
    assert_eq!(server.requests(), [""; 0]);
}

#[tokio::test]
async fn certificates_are_followed_and_a_file_that_is_of_no_use_changes_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let front = TlsFront::start(&authority.certify("127.0.0.1"), server.address).await;
    let path = other.write(dir.path());
    let config = over_tls(
        "127.0.0.1",
        front.address,
        &format!(", ca_file: \"{path}\""),
    );
    let node = Node::start(&config).await;
    let health = async || node.state().await["models"][0]["endpoints"][0]["health"].clone();
    eventually("nobody trusts it", async || {
        (health().await == "down").then_some(())
    })
    .await;

    std::fs::write(&path, "nothing").unwrap();
    let refused = node.post_reload().await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let problem = &refused.json()["problems"][0];
    assert_eq!(problem["path"], "models[0].endpoints[0].ca_file");
    assert!(problem["line"].as_u64().unwrap() > 1);
    assert!(
        problem["message"]
            .as_str()
            .unwrap()
            .contains("no certificate in it")
    );

    authority.write(dir.path());
    eventually("it is trusted by its own", async || {
        (health().await == "healthy").then_some(())
    })
    .await;
    assert_eq!(ask(&node, "").await.status, 200);
}

#[tokio::test]
async fn bytes_behind_an_answer_are_no_answer_to_the_next_request() {
    // As much as one read takes, head included; what follows comes in the same record.
    const READ_BYTES: usize = 4096;
    let mut answer = json_answer(ANSWER);
    let padded = |by: usize| ANSWER.replace("\"a\"", &format!("\"{}\"", "a".repeat(by + 1)));
    // The length gets a digit more.
    answer = json_answer(&padded(READ_BYTES - answer.len() - 1));
    assert_eq!(answer.len(), READ_BYTES);
    let surplus = json_answer(&ANSWER.replace("\"a\"", "\"of nobody\""));
    let server = ScriptedServer::new(&[&(answer + &surplus)]).await;
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let front = TlsFront::start(&authority.certify("localhost"), server.address).await;
    let ca = format!(", ca_file: \"{}\"", authority.write(dir.path()));
    let node = Node::start(&over_tls("localhost", front.address, &ca)).await;
    for _ in 0..3 {
        let answer = ask(&node, "").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("of nobody"), "{}", answer.text());
        node.idle().await;
    }
    assert_eq!(server.requests().len(), 3);
}
